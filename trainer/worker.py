"""One rank as a Ray actor's class: numpy arrays in, numpy arrays and plain records out."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import numpy as np

from rollout.logs import Kept, Said
from rollout.policy.broadcast import Broadcast, Bucket
from trainer.batch import TrainBatch
from trainer.config import TrainerConfig


class RankWorker:
    """A rank of the trainer. Torch and DeepSpeed are imported in `start`, in the actor's process."""

    def __init__(self, config: TrainerConfig, model_path: str, rank: int) -> None:
        self._config = config
        self._model_path = model_path
        self._rank = rank
        self._engine: Any = None
        self._log = Kept.install()

    def logs(self) -> list[Said]:
        """What was logged here since the last call."""
        return self._log.fetch()

    def address(self) -> tuple[str, int]:
        """This host's address, and a port free on it: rank 0 serves the rendezvous there."""
        import ray

        with socket.socket() as s:
            s.bind(("", 0))
            return ray.util.get_node_ip_address(), int(s.getsockname()[1])

    def start(self, master: str, port: int) -> dict[str, Any]:
        """Join the ranks and build the engine; what was chosen, for the log."""
        os.environ.update(
            RANK=str(self._rank),
            WORLD_SIZE=str(self._config.world_size),
            # Ray shows each actor its own device only, so the local index is always the first.
            LOCAL_RANK="0",
            MASTER_ADDR=master,
            MASTER_PORT=str(port),
        )
        import torch

        torch.set_num_threads(self._config.threads_per_rank)
        from trainer import compat
        from trainer.engine import TrainerEngine

        compat.quiet()
        self._engine = TrainerEngine(self._config, self._model_path)
        return {
            "rank": self._rank,
            "pid": os.getpid(),
            "layout": self._engine.layout,
            "layout_reason": self._engine.layout_reason,
            "parity": self._engine.parity,
            "peak_flops": self._engine.peak_flops,
        }

    def behaviour_logprobs(self, batch: TrainBatch) -> tuple[np.ndarray, np.ndarray]:
        """This rank's share: (token index int64 [k], log-prob float32 [k])."""
        found: tuple[np.ndarray, np.ndarray] = self._engine.token_logprobs(batch)
        return found

    def train(self, batch: TrainBatch) -> list[dict[str, float]]:
        metrics: list[dict[str, float]] = self._engine.train(batch)
        return metrics

    def score(self, sequences: list[list[int]]) -> list[list[float]]:
        values: list[list[float]] = self._engine.score(sequences)
        return values

    def publish(self, path: str) -> str:
        """The fingerprint on rank 0, "" elsewhere."""
        from trainer.publish import publish

        return publish(self._engine.named_weights(), Path(path), write=self._rank == 0)

    def publish_adapter(self, directory: str) -> str:
        """As `publish`, of the adapters alone."""
        from trainer.publish import publish_adapter

        return publish_adapter(
            self._engine, Path(directory), Path(self._model_path), write=self._rank == 0
        )

    def buckets(self) -> tuple[Bucket, ...]:
        from trainer.publish import buckets

        return buckets(self._engine)

    def broadcast(self, plan: Broadcast) -> str:
        """The fingerprint on rank 0, "" elsewhere."""
        from trainer.publish import broadcast

        return broadcast(self._engine, plan)

    def export_hf(self, directory: str) -> None:
        from trainer.publish import export_hf

        export_hf(
            self._engine.engine.module,
            self._engine.named_weights(),
            Path(directory),
            Path(self._model_path),
            write=self._rank == 0,
        )

    def save_shards(self, directory: str, extra: dict[str, Any]) -> int:
        """Write this rank's shards; the optimiser step they hold."""
        self._engine.save_shards(Path(directory), extra)
        return int(self._engine.step)

    def to_universal(self, source: str, target: str) -> None:
        from trainer.universal import to_universal

        to_universal(Path(source), Path(target))

    def load_shards(self, directory: str, universal: bool = False) -> dict[str, Any]:
        extra: dict[str, Any] = self._engine.load_shards(Path(directory), universal)
        return extra

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None
