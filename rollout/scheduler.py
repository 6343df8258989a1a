"""Which worker runs which episode, again after a failure, each counted once: no engine, no Ray.

Episodes are dealt to the workers in turn, so what a worker runs does not depend on timing. All
episodes that are asked for are waited for: a phase that stopped at the first ones to finish would
prefer short ones (`rollout.phase.length_bias` says by how much).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from harness.runloop import RunResult
from harness.trace import Level
from rollout.config import RolloutConfig
from rollout.episode import EpisodeResult, trajectory_of
from rollout.logs import Said, replay
from rollout.spec import EpisodeSpec
from rollout.staleness import StalenessManager

START_S = 600.0
"""A worker that is just being started may be silent for so long: imports on a busy file system."""

POLL_S = 0.05
"""How often a phase without room asks again whether the policy has moved on."""

_log = logging.getLogger(__name__)


class RolloutError(RuntimeError):
    """A phase that cannot be finished: too many infrastructure errors, or workers that keep dying."""


class WorkerDied(RolloutError):
    """A worker's process is gone; the message says what is known of the reason."""


class Worker(Protocol):
    """One process that runs episodes. Every method raises WorkerDied where the process is gone."""

    def run(
        self, specs: Sequence[EpisodeSpec], bundles: str, trace: Level
    ) -> AsyncIterator[tuple[int, EpisodeResult]]:
        """(index in `specs`, result) of each, as they finish."""
        ...

    async def alive(self) -> Sequence[Said]:
        """Returns while the worker's event loop turns: what was logged there since the last call."""
        ...

    def kill(self) -> None:
        """End the process, even a stopped one; `run` then raises WorkerDied."""
        ...


@dataclass(frozen=True, slots=True)
class Admission:
    """Pacing of a phase: `manager` decides how many start under the policy `version()`."""

    manager: StalenessManager
    version: Callable[[], int]

    async def admit(self, wanted: int) -> int:
        """Wait for room; how many of `wanted` may start, at least 1."""
        while not (admitted := self.manager.admit(self.version(), wanted)):
            await asyncio.sleep(POLL_S)
        return admitted


@dataclass(slots=True)
class _Phase:
    specs: Sequence[EpisodeSpec]
    bundles: str
    trace: Level
    progress: Callable[[EpisodeResult], None] | None
    results: dict[int, EpisodeResult] = field(default_factory=dict)


class Scheduler:
    """Phases over `config.workers` workers made by `spawn`; a dead one is replaced by another.

    Phases that are asked for at once run one after another: in lockstep, two on one worker would each
    wait for sandbox slots that the other holds.
    """

    def __init__(self, config: RolloutConfig, spawn: Callable[[], Worker]) -> None:
        self.config = config
        self.deaths = 0
        self.workers: list[Worker] = [spawn() for _ in range(config.workers)]
        self._spawn = spawn
        self._one = asyncio.Lock()
        self._death = ""  # what is known of the last worker that died

    async def run(
        self,
        specs: Sequence[EpisodeSpec],
        bundles: str,
        trace: Level = "full",
        progress: Callable[[EpisodeResult], None] | None = None,
        admission: Admission | None = None,
    ) -> list[EpisodeResult]:
        """Roll all episodes out; results in the order of `specs`.

        An episode that ended in an infrastructure error, or whose worker died or hung, is issued
        again under the same id and seed, at most `retries` times. progress: called with each
        result that counts, in the order in which they finish. admission: start no more than it
        allows; one wave of episodes ends before the next starts. Raises RolloutError where fewer
        than `min_coverage` of the episodes could be scored.
        """
        phase = _Phase(specs, bundles, trace, progress)
        waiting = list(range(len(specs)))
        while waiting:
            n = len(waiting) if admission is None else await admission.admit(len(waiting))
            wave, waiting = waiting[:n], waiting[n:]
            async with self._one:
                await self._wave(phase, wave)
            if admission is not None:
                scored = sum(phase.results[i].trajectory.scored for i in wave)
                admission.manager.accept(scored)
                admission.manager.reject(len(wave) - scored)
        self._check_coverage(phase)
        return [phase.results[i] for i in range(len(specs))]

    async def _wave(self, phase: _Phase, pending: list[int]) -> None:
        n = len(self.workers)
        for _ in range(self.config.retries + 1):
            shares = [pending[k::n] for k in range(n)]
            lost = await asyncio.gather(
                *(self._share(phase, w, share) for w, share in enumerate(shares) if share)
            )
            pending = sorted(index for share in lost for index in share)
            if not pending:
                return
        for index in pending:
            if index not in phase.results:
                phase.results[index] = _lost(phase.specs[index], self._death)
        reasons = sorted({phase.results[i].trajectory.outcome.reason for i in pending})[:3]
        _log.warning(
            "%d episodes ended in infrastructure errors: %s", len(pending), "; ".join(reasons),
            extra={
                "event": "episodes_lost", "fields": {"count": len(pending), "reasons": reasons},
            },
        )  # fmt: skip

    async def _share(self, phase: _Phase, number: int, share: Sequence[int]) -> list[int]:
        """Run a worker's share; the indices that must be issued again."""
        worker = self.workers[number]
        left = set(share)
        watch = asyncio.create_task(self._watch(number, worker))
        try:
            specs = [phase.specs[i] for i in share]
            async for k, result in worker.run(specs, phase.bundles, phase.trace):
                phase.results[share[k]] = result
                if result.trajectory.outcome.kind == "infra_error":
                    continue
                left.discard(share[k])
                if phase.progress:
                    phase.progress(result)
        except WorkerDied as error:
            self._death = watch.result() if watch.done() else str(error)
            self.deaths += 1
            _log.warning(
                "rollout worker %d is replaced and %d of its episodes are issued again: %s",
                number, len(left), self._death,
                extra={
                    "actor": f"worker {number}", "event": "worker_replaced",
                    "fields": {"worker": number, "episodes": len(left), "reason": self._death},
                },
            )  # fmt: skip
            self.workers[number] = self._spawn()
        finally:
            watch.cancel()
        return sorted(left)

    async def _watch(self, number: int, worker: Worker) -> str:
        """Kill the worker when it gives no sign of life; why it was killed, or how it died."""
        limit, wait = START_S, self.config.worker_deadline_s
        while True:
            try:
                async with asyncio.timeout(max(limit, wait)):
                    said = await worker.alive()
            except TimeoutError:
                worker.kill()
                return (
                    f"worker {number} gave no sign of life for {max(limit, wait):g} s "
                    "(rollout.worker_deadline_s, longer at its start) and was killed"
                )
            except WorkerDied as error:
                return str(error)
            replay(said, f"worker {number}")
            limit = 0.0
            await asyncio.sleep(wait / 4)

    def _check_coverage(self, phase: _Phase) -> None:
        asked = len(phase.specs)
        scored = sum(r.trajectory.scored for r in phase.results.values())
        if scored >= self.config.min_coverage * asked:
            return
        reasons = {
            r.trajectory.outcome.reason for r in phase.results.values() if not r.trajectory.scored
        }
        raise RolloutError(
            f"{asked - scored} of {asked} episodes ended in infrastructure errors "
            f"after {self.config.retries + 1} attempts; at least "
            f"{self.config.min_coverage:.0%} must be scored (rollout.min_coverage). "
            f"Reasons: {'; '.join(sorted(reasons)[:3])}"
        )


def _lost(spec: EpisodeSpec, death: str) -> EpisodeResult:
    """The record of an episode that no worker could finish."""
    result = RunResult("infra_error", f"its rollout worker died each time: {death}", 0, "")
    return EpisodeResult(trajectory_of(spec, result, "", None, None, 0.0))
