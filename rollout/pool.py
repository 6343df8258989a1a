"""The rollout pool: the scheduler over Ray workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from harness.trace import Level
from rollout.config import EnvironmentConfig, RolloutConfig
from rollout.episode import EpisodeResult
from rollout.logs import Said
from rollout.policy.base import ChatEngine, PolicyEngine
from rollout.scheduler import Admission, RolloutError, Scheduler, WorkerDied
from rollout.spec import EpisodeSpec
from rollout.worker import RolloutWorker

__all__ = ["Admission", "RolloutError", "RolloutPool"]

WORKER_ENV = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


class RolloutPool:
    """`config.workers` Ray workers over one engine."""

    def __init__(
        self,
        environment: EnvironmentConfig,
        config: RolloutConfig,
        tokenizer: str | None,
        engine: PolicyEngine | ChatEngine,
        num_cpus: float = 0.5,
    ) -> None:
        self.config = config
        actor = ray.remote(RolloutWorker).options(
            num_cpus=num_cpus, max_concurrency=8, runtime_env={"env_vars": WORKER_ENV}
        )
        self._scheduler = Scheduler(
            config, lambda: _RayWorker(actor.remote(environment, config, tokenizer, engine))
        )

    @property
    def deaths(self) -> int:
        """Workers that died or hung and were replaced, since the start."""
        return self._scheduler.deaths

    async def start(self) -> str:
        """Wait until every worker runs; the weakest isolation level among them."""
        levels = await asyncio.gather(*(w.level() for w in self._workers))
        return min(levels, key=len)

    async def run(
        self,
        specs: Sequence[EpisodeSpec],
        bundles: Path,
        trace: Level = "full",
        progress: Callable[[EpisodeResult], None] | None = None,
        admission: Admission | None = None,
    ) -> list[EpisodeResult]:
        """Roll all episodes out as `Scheduler.run` does; results in the order of `specs`.

        bundles: directory of harness bundles, one a harness id. trace: level of the traces kept.
        """
        return await self._scheduler.run(specs, str(bundles), trace, progress, admission)

    async def close(self) -> None:
        """End the workers and their harness processes."""
        for worker in self._workers:
            try:
                await worker.close()
            except WorkerDied:
                pass  # already dead: its children died with it
            worker.kill()
        self._scheduler.workers = []

    @property
    def _workers(self) -> list[_RayWorker]:
        return self._scheduler.workers  # type: ignore[return-value]


class _RayWorker:
    """`rollout.scheduler.Worker` over a `RolloutWorker` actor."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def run(
        self, specs: Sequence[EpisodeSpec], bundles: str, trace: Level
    ) -> AsyncIterator[tuple[int, EpisodeResult]]:
        stream = self._actor.run.options(num_returns="streaming").remote(
            list(specs), bundles, trace
        )
        try:
            async for reference in stream:
                yield await reference
        except RayActorError as error:
            raise WorkerDied(" ".join(str(error).split())[:500]) from error
        except RayTaskError as error:
            raise RolloutError(f"rollout worker: {error.cause or error}") from error

    async def alive(self) -> list[Said]:
        said: list[Said] = await self._call(self._actor.alive.remote())
        return said

    async def level(self) -> str:
        level: str = await self._call(self._actor.level.remote())
        return level

    async def close(self) -> None:
        await self._call(self._actor.close.remote())

    def kill(self) -> None:
        ray.kill(self._actor)

    @staticmethod
    async def _call(reference: Any) -> Any:
        try:
            return await reference
        except RayActorError as error:
            raise WorkerDied(" ".join(str(error).split())[:500]) from error
        except RayTaskError as error:
            raise RolloutError(
                f"a rollout worker could not start: {error.cause or error}"
            ) from error
