"""The group of trainer ranks: one Ray actor each, driven together from one process.

Imports neither torch nor DeepSpeed: those live in the ranks.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray
import ray.exceptions
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rollout.logs import replay
from rollout.policy.broadcast import Broadcast
from trainer.batch import TrainBatch
from trainer.checkpoint import layout_of, seal, staging, verify
from trainer.config import TrainerConfig
from trainer.errors import TrainerError
from trainer.worker import RankWorker

_log = logging.getLogger(__name__)

SETTLE_S = 5.0
"""How long to wait, after a first failure, to learn which rank died and which only noticed."""


class TrainerGroup:
    """All ranks of the trainer. Use as a context manager, or call `shutdown`.

    A rank that dies or fails ends the group: its collectives cannot be completed. The error names
    the rank; build a new group and load the last checkpoint.
    """

    def __init__(
        self,
        config: TrainerConfig,
        model_path: str | Path,
        *,
        placement_group: Any = None,
        gpus_per_rank: float = 1.0,
        env: dict[str, str] | None = None,
    ) -> None:
        """Start `config.world_size` actors and load `model_path` (a local model directory).

        placement_group: a Ray placement group with a bundle a rank. gpus_per_rank: what a rank books
        of a GPU, less than 1 where it shares it with an engine. env: further environment
        variables of the ranks. Ray must be initialised.
        """
        path = Path(model_path)
        if not (path / "config.json").is_file():
            raise TrainerError(
                f"model_path {str(path)!r} holds no config.json; expected a Hugging Face model directory"
            )
        self.config = config
        self._path = str(path.resolve())
        self._actors: list[Any] = []
        variables = {
            "OMP_NUM_THREADS": str(config.threads_per_rank),
            "DS_ACCELERATOR": config.device,
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            **(env or {}),
        }
        actor = ray.remote(RankWorker)
        for rank in range(config.world_size):
            options: dict[str, Any] = {
                "num_cpus": config.threads_per_rank,
                "num_gpus": gpus_per_rank if config.device == "cuda" else 0,
                "max_restarts": 0,
                "runtime_env": {"env_vars": variables},
            }
            if placement_group is not None:
                options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                    placement_group, placement_group_bundle_index=rank
                )
            self._actors.append(actor.options(**options).remote(config, self._path, rank))
        master, port = self._call_one(0, "address")
        self.info: list[dict[str, Any]] = self._call("start", master, port)
        for rank, info in enumerate(self.info):
            _log.info(
                "started as process %d, layout %s", info["pid"], self.layout,
                extra={"actor": f"rank {rank}"},
            )  # fmt: skip
        self._fetch_logs()

    @property
    def layout(self) -> str:
        """The packing layout that the ranks chose, with the reason."""
        return f"{self.info[0]['layout']}: {self.info[0]['layout_reason']}"

    # ---- what the loop calls

    def behaviour_logprobs(self, batch: TrainBatch) -> np.ndarray:
        """float32 [n]: the trainer's log-prob of each sampled token of the batch, 0 elsewhere."""
        out = np.zeros(len(batch.token_ids), dtype=np.float32)
        for index, values in self._call("behaviour_logprobs", ray.put(batch)):
            out[index] = values
        return out

    def train(self, batch: TrainBatch) -> list[dict[str, float]]:
        """One round of optimiser steps; the metrics of each, over all ranks."""
        metrics: list[dict[str, float]] = self._call("train", ray.put(batch))[0]
        self._fetch_logs()
        return metrics

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probs at temperature 1 of tokens 1… of each sequence (the probe after an update)."""
        values: list[list[float]] = self._call("score", [list(map(int, s)) for s in sequences])[0]
        return values

    def publish(self, path: str | Path) -> str:
        """Write the weights to the safetensors file `path` with its marker; the fingerprint."""
        return str(self._call("publish", str(Path(path).resolve()))[0])

    def publish_adapter(self, directory: str | Path) -> str:
        """Write the adapters as a peft directory; the fingerprint of adapter_model.safetensors."""
        return str(self._call("publish_adapter", str(Path(directory).resolve()))[0])

    def prepare_broadcast(self, receivers: int) -> Broadcast:
        """What engines need to receive the weights: `receivers` worker processes of all engines."""
        host, port = self._call_one(0, "address")
        return Broadcast(
            host=host,
            port=port,
            receivers=receivers,
            backend="nccl" if self.config.device == "cuda" else "gloo",
            timeout_s=self.config.publish_timeout_s,
            buckets=self._call_one(0, "buckets"),
        )

    def broadcast(self, plan: Broadcast) -> str:
        """Send the weights while the engines receive `plan`; the fingerprint. PublishError names what
        did not arrive."""
        return str(self._call("broadcast", plan)[0])

    def export_hf(self, directory: str | Path) -> None:
        """Write a Hugging Face model directory that any engine loads."""
        self._call("export_hf", str(Path(directory).resolve()))

    def save_checkpoint(self, directory: str | Path, extra: dict[str, Any] | None = None) -> None:
        """Everything needed to go on exactly, and `extra` (plain values), sealed in `directory`.

        The directory must be on storage that all ranks share.
        """
        target = Path(directory).resolve()
        beside = staging(target)
        steps = self._call("save_shards", str(beside), extra or {})
        seal(beside, target, layout_of(self.config), steps[0])

    def load_checkpoint(self, directory: str | Path) -> dict[str, Any]:
        """Verify and restore a checkpoint; returns its `extra`. CheckpointError names a bad file.

        One of another number of ranks is converted beside it first (ZeRO 1, 2 and 3).
        """
        target = Path(directory).resolve()
        manifest = verify(target, layout_of(self.config))
        extra: dict[str, Any]
        if self.config.zero_stage == 0 or (
            manifest["layout"]["world_size"] == self.config.world_size
        ):
            extra = self._call("load_shards", str(target))[0]
            return extra
        beside = target.with_name(target.name + ".universal")
        shutil.rmtree(beside, ignore_errors=True)
        try:
            self._call_one(0, "to_universal", str(target), str(beside))
            extra = self._call("load_shards", str(beside), True)[0]
        finally:
            shutil.rmtree(beside, ignore_errors=True)
        return extra

    def shutdown(self) -> None:
        """End every rank in order (barrier, process group), then its process. Safe to call twice."""
        if not self._actors:
            return
        try:
            self._call("close")
        finally:
            self._kill()

    def abort(self) -> None:
        """End every rank at once, whatever it is doing; calls under way raise TrainerError."""
        self._kill()

    def __enter__(self) -> TrainerGroup:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After an error the ranks may stand in a collective that never ends.
        if kind is None:
            self.shutdown()
        else:
            self._kill()

    # ---- calls

    def _kill(self) -> None:
        for actor in self._actors:
            ray.kill(actor)
        self._actors = []

    def _fetch_logs(self) -> None:
        for rank, said in enumerate(self._call("logs")):
            replay(said, f"rank {rank}")

    def _call_one(self, rank: int, method: str, *args: Any) -> Any:
        return self._gather({getattr(self._actors[rank], method).remote(*args): rank}, method)[rank]

    def _call(self, method: str, *args: Any) -> list[Any]:
        """Call every rank and return the answers by rank; TrainerError where one fails."""
        if not self._actors:
            raise TrainerError(f"{method}: the trainer group is shut down; build a new one")
        futures = {getattr(a, method).remote(*args): r for r, a in enumerate(self._actors)}
        answers = self._gather(futures, method)
        return [answers[r] for r in range(len(self._actors))]

    def _gather(self, futures: dict[Any, int], method: str) -> dict[int, Any]:
        answers: dict[int, Any] = {}
        failures: dict[int, ray.exceptions.RayError] = {}
        waiting = list(futures)
        deadline = time.monotonic() + self.config.rank_timeout_s
        while waiting:
            limit = SETTLE_S if failures else max(0.0, deadline - time.monotonic())
            done, waiting = ray.wait(waiting, num_returns=1, timeout=limit)
            if not done:
                break
            rank = futures[done[0]]
            try:
                answers[rank] = ray.get(done[0])
            except ray.exceptions.RayError as error:
                failures[rank] = error
        if failures:
            self._kill()
            raise self._blame(failures, method)
        if waiting:
            late = sorted(futures[f] for f in waiting)
            self._kill()
            raise TrainerError(
                f"{method}: rank {late[0]} of {self.config.world_size} did not answer within "
                f"{self.config.rank_timeout_s:.0f} s (trainer.rank_timeout_s); late ranks: {late}",
                late[0],
            )
        return answers

    def _blame(self, failures: dict[int, ray.exceptions.RayError], method: str) -> TrainerError:
        """The error of the rank that failed first hand: a death before what the others noticed."""
        died = [
            r
            for r, e in failures.items()
            if isinstance(e, ray.exceptions.ActorDiedError | ray.exceptions.ActorUnavailableError)
        ]
        if died:
            rank = min(died)
            error = TrainerError(
                f"{method}: rank {rank} of {self.config.world_size} died "
                f"({' '.join(str(failures[rank]).split())[:400]}); load the last checkpoint in a "
                "new group",
                rank,
            )
            error.__cause__ = failures[rank]
            return error
        typed = {
            r: e.cause
            for r, e in failures.items()
            if isinstance(e, ray.exceptions.RayTaskError) and isinstance(e.cause, TrainerError)
        }
        if typed:
            rank = min(typed)
            cause = typed[rank]
            cause.rank = rank
            return cause
        rank = min(failures)
        error = TrainerError(
            f"{method}: rank {rank} of {self.config.world_size} failed: "
            f"{str(failures[rank]).strip()[-1500:]}",
            rank,
        )
        error.__cause__ = failures[rank]
        return error
