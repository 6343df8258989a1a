"""The training phase of a round: behaviour pass, cross-harness GRPO, checkpoint, publication."""

from __future__ import annotations

import asyncio
import math
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from coevo.config import RunConfig
from coevo.live import LiveTable
from coevo.rundir import RunDir
from coevo.stack import Stack
from rollout.buffer import ReplayBuffer
from trainer.batch import TrainBatch, for_scoring, from_view
from trainer.checkpoint import MANIFEST
from trainer.group import TrainerGroup

PROBES = 8
PROBE_LIMIT = {"float32": 1e-3, "bfloat16": 0.5, "float16": 0.5}
"""Largest |engine − trainer| log-prob on the probe. fp32 against fp32 measures about 1e-5, a bf16
engine up to 0.57; stale or missing weights give whole nats on some token."""

ABANDON_S = 0.5
"""How often the ranks of an abandoned training are ended: it may be just starting some."""

OWN = ("incumbent",)
"""Parts of a round itself that its training reads: evolution appends others meanwhile, and what is
trained on must not depend on how far it has come."""

METRICS = (
    "loss",
    "grad_norm",
    "kl_mismatch",
    "abs_dlogp",
    "clip_fraction",
    "kept_fraction",
    "entropy",
    "tokens_per_s",
    "mfu",
)
"""Of the trainer's metrics of a step, those that a round's record keeps as means."""


class PublishError(RuntimeError):
    """The engine does not compute what the trainer does: the weights did not arrive whole."""


class Learner:
    """Holds the trainer group, started with the first round that trains and kept in step with the
    policy version that the journal speaks of."""

    def __init__(
        self, run: RunDir, config: RunConfig, stack: Stack, buffer: ReplayBuffer, live: LiveTable
    ) -> None:
        self.run, self.config, self.stack, self.buffer, self.live = run, config, stack, buffer, live
        self._group: TrainerGroup | None = None
        self._version = 0

    async def train(self, number: int, version: int) -> dict[str, Any]:
        """M_version to M_version+1 on the window of this round, or nothing where it is too short."""
        window = self.buffer.window(number, OWN)
        if not self.config.trains or len(window) < self.config.buffer.min_rounds:
            return {"version": version, "metrics": None, "staleness": {}}
        self.live.start("train", None)
        if self.config.colocated:
            await self.stack.policy.sleep()
        work = asyncio.create_task(asyncio.to_thread(self._train, number, version))
        try:
            result = await asyncio.shield(work)
        except asyncio.CancelledError:
            await self._abandon(work)
            raise
        if (
            self.config.colocated
        ):  # the GPUs are the engines' again; the next round starts from the checkpoint
            await asyncio.to_thread(self.close)
        self.live.finish("train")
        return result

    async def _abandon(self, work: asyncio.Task[dict[str, Any]]) -> None:
        """End a training that nobody waits for any more, with its ranks.

        Its thread cannot be cancelled, and a call of Ray after Ray's end would end the process
        without a word.
        """
        while not work.done():
            if self._group is not None:
                self._group.abort()
            await asyncio.wait([work], timeout=ABANDON_S)
        work.exception()  # taken: the ranks were ended under it
        self._group = None

    def _train(self, number: int, version: int) -> dict[str, Any]:
        group = self._ready(version)
        if self.config.buffer.trainer_logprobs:
            self._behaviour_pass(group, number, version)
        view = self.buffer.select(number, self.config.buffer.include, version, OWN)
        batch, _ = from_view(view, self.config.trainer.advantage)
        steps = group.train(batch)
        self._version = version + 1
        checkpoint = self.run.checkpoint(version + 1)
        shutil.rmtree(checkpoint, ignore_errors=True)  # of an attempt that was never journaled
        group.save_checkpoint(checkpoint, {"round": number, "version": version + 1})
        weights = self.run.weights(version + 1)
        if self._adapters:
            fingerprint = group.publish_adapter(weights.parent)
        else:
            fingerprint = group.publish(weights)
        probe = _probe(batch)
        ages = Counter(str(version - v) for v in view.policy_versions.tolist())
        return {
            "version": version + 1,
            "fingerprint": fingerprint,
            "probe": probe,
            "probe_logprobs": group.score(probe),
            "metrics": {"steps": len(steps)} | _means(steps) | self._mismatch(number),
            "steps": [{k: v for k, v in s.items() if math.isfinite(v)} for s in steps],
            "staleness": {
                "histogram": dict(ages),
                "max": max(map(int, ages), default=0),
                "dropped": view.stale,
            },
            "files": [
                checkpoint / MANIFEST,
                *sorted(weights.parent.glob("*.json")),
                *self.buffer.trainer_markers(number, OWN),
            ],
        }

    @property
    def _adapters(self) -> bool:
        lora = self.config.trainer.lora
        return lora is not None and lora.publish == "adapter"

    async def serve(self, version: int, fingerprint: str) -> None:
        """Put M_version (from 1) into the engines: from its file, or from the trainer where
        trainer.publish is 'collective' and the trainer holds that version."""
        group = self._group
        if (
            self.config.trainer.publish == "collective"
            and group is not None
            and self._version == version
        ):
            await self._broadcast(group, version, fingerprint)
            return
        weights = self.run.weights(version)
        path = weights.parent if self._adapters else weights
        await self.stack.policy.update(str(path), version, fingerprint)

    async def _broadcast(self, group: TrainerGroup, version: int, fingerprint: str) -> None:
        engine = self.config.policy.engine
        plan = await asyncio.to_thread(
            group.prepare_broadcast, engine.replicas * engine.tensor_parallel
        )
        sending = asyncio.create_task(asyncio.to_thread(group.broadcast, plan))
        try:
            await self.stack.policy.update(plan, version, fingerprint)
        except BaseException:
            # The trainer would wait for the engine until its own deadline.
            group.abort()
            self._group = None
            await asyncio.gather(sending, return_exceptions=True)
            raise
        await sending

    async def check_probe(
        self, probe: list[list[int]], expected: list[list[float]]
    ) -> dict[str, Any]:
        """Largest difference between the engine's and the trainer's log-probs on the probe.

        Raises PublishError above the limit. A check that something changed would pass with a
        stale output head; only comparing values finds it."""
        served = await self.stack.policy.score(probe)
        worst = max(
            abs(a - b)
            for mine, theirs in zip(served, expected, strict=True)
            for a, b in zip(mine, theirs, strict=True)
        )
        limit = PROBE_LIMIT[self.config.policy.engine.dtype]
        if not worst <= limit:
            raise PublishError(
                f"after publication the engine's log-probs differ from the trainer's by {worst:.3g} "
                f"on the probe; at most {limit:g} is expected with a {self.config.policy.engine.dtype} "
                "engine: the weights did not arrive whole. The run's state is kept"
            )
        return {"probe_max_abs": worst}

    def close(self) -> None:
        if self._group is not None:
            self._group.shutdown()
            self._group = None

    def _ready(self, version: int) -> TrainerGroup:
        if self._group is None:
            self._group = self.stack.trainer()
            self._version = 0
        if self._version != version:
            self._group.load_checkpoint(self.run.checkpoint(version))
            self._version = version
        return self._group

    def _behaviour_pass(self, group: TrainerGroup, number: int, version: int) -> None:
        """The trainer's own log-probs of what M_version just sampled, before its next step.

        They are kept in the buffer, so each part is scored once. What candidates sampled in earlier
        rounds is scored too where the objective needs π_old of every token.
        """
        for round, part in self.buffer.without_trainer_logprobs(number, OWN):
            if round == number or self.config.trainer.ratio == "decoupled":
                values = group.behaviour_logprobs(for_scoring(self.buffer.part_view(round, part)))
                self.buffer.write_trainer_logprobs(round, part, values, version)

    def _mismatch(self, number: int) -> dict[str, float | None]:
        """Engine against trainer on what this round sampled, for the round's record."""
        found = self.buffer.mismatch(number, "incumbent")
        return {
            f"mismatch_{name}": None if found is None else getattr(found, name)
            for name in ("mean", "p99", "max")
        }


def _probe(batch: TrainBatch) -> list[list[int]]:
    """The first few segments: real prompts with real answers."""
    bounds = zip(batch.offsets[:PROBES], batch.offsets[1 : PROBES + 1], strict=False)
    return [batch.token_ids[a:b].tolist() for a, b in bounds]


def _means(steps: Sequence[Mapping[str, float]]) -> dict[str, float | None]:
    out: dict[str, float | None] = {}
    for name in METRICS:
        values = [s[name] for s in steps if math.isfinite(s.get(name, math.nan))]
        out[name] = sum(values) / len(values) if values else None
    return out
