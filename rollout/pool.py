"""The rollout pool: episodes over workers, issued again after a worker's death, each counted once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from harness.runloop import RunResult
from harness.trace import Level
from rollout.config import EnvironmentConfig, RolloutConfig
from rollout.episode import EpisodeResult, trajectory_of
from rollout.policy.base import PolicyEngine
from rollout.spec import EpisodeSpec
from rollout.worker import RolloutWorker

WORKER_ENV = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


class RolloutError(RuntimeError):
    """A phase that cannot be finished: too many infrastructure errors, or workers that keep dying."""


class RolloutPool:
    """`config.workers` Ray workers over one engine.

    Episodes are dealt to the workers in turn, so which worker runs what does not depend on timing.
    """

    def __init__(
        self,
        environment: EnvironmentConfig,
        config: RolloutConfig,
        tokenizer: str,
        engine: PolicyEngine,
        num_cpus: float = 0.5,
    ) -> None:
        self.config = config
        self._death = ""  # what Ray said of the last worker that died
        self._arguments = (environment, config, tokenizer, engine)
        self._actor = ray.remote(RolloutWorker).options(
            num_cpus=num_cpus, max_concurrency=8, runtime_env={"env_vars": WORKER_ENV}
        )
        self._workers: list[Any] = [
            self._actor.remote(*self._arguments) for _ in range(config.workers)
        ]

    async def start(self) -> str:
        """Wait until every worker runs; the weakest isolation level among them."""
        levels = await asyncio.gather(*(self._call(w.level.remote()) for w in self._workers))
        return min(levels, key=len)

    async def run(
        self,
        specs: Sequence[EpisodeSpec],
        bundles: Path,
        trace: Level = "full",
        progress: Callable[[EpisodeResult], None] | None = None,
    ) -> list[EpisodeResult]:
        """Roll all episodes out; results in the order of `specs`.

        bundles: directory of harness bundles, one a harness id. trace: level of the traces kept. An episode that ended in an infrastructure error, or whose worker died, is issued again
        under the same id and seed, at most `retries` times. Raises RolloutError where fewer than
        `min_coverage` of the episodes could be scored.
        """
        results: dict[int, EpisodeResult] = {}
        pending = list(range(len(specs)))
        for attempt in range(self.config.retries + 1):
            n = len(self._workers)
            shares = [pending[k::n] for k in range(n)]
            outcomes = await asyncio.gather(
                *(
                    self._share(worker, share, specs, (str(bundles), trace), results, progress)
                    for worker, share in enumerate(shares)
                    if share
                )
            )
            failed = sorted(index for lost in outcomes for index in lost)
            if not failed:
                break
            pending = failed
            if attempt == self.config.retries:
                for index in failed:
                    results.setdefault(index, _lost(specs[index], self._death))
        scored = sum(r.trajectory.scored for r in results.values())
        if specs and scored < self.config.min_coverage * len(specs):
            reasons = sorted(
                {r.trajectory.outcome.reason for r in results.values() if not r.trajectory.scored}
            )
            raise RolloutError(
                f"{len(specs) - scored} of {len(specs)} episodes ended in infrastructure errors "
                f"after {self.config.retries + 1} attempts; at least "
                f"{self.config.min_coverage:.0%} must be scored (rollout.min_coverage). "
                f"Reasons: {'; '.join(reasons[:3])}"
            )
        return [results[i] for i in range(len(specs))]

    async def _share(
        self,
        worker: int,
        share: Sequence[int],
        specs: Sequence[EpisodeSpec],
        how: tuple[str, Level],
        results: dict[int, EpisodeResult],
        progress: Callable[[EpisodeResult], None] | None,
    ) -> list[int]:
        """Run a worker's share; the indices that must be issued again."""
        left = set(share)
        stream = (
            self._workers[worker]
            .run.options(num_returns="streaming")
            .remote([specs[i] for i in share], *how)
        )
        try:
            async for reference in stream:
                k, result = await reference
                index = share[k]
                if result.trajectory.outcome.kind == "infra_error":
                    results[index] = result
                    continue
                left.discard(index)
                results[index] = result
                if progress:
                    progress(result)
        except RayActorError as error:
            self._death = " ".join(str(error).split())[:500]
            self._workers[worker] = self._actor.remote(*self._arguments)
        except RayTaskError as error:
            raise RolloutError(f"rollout worker {worker}: {error.cause or error}") from error
        return sorted(left)

    async def close(self) -> None:
        """End the workers and their harness processes."""
        for worker in self._workers:
            try:
                await self._call(worker.close.remote())
            except RayActorError:
                pass  # already dead: its children died with it
            ray.kill(worker)
        self._workers = []

    @staticmethod
    async def _call(reference: Any) -> Any:
        try:
            return await reference
        except RayTaskError as error:
            raise RolloutError(
                f"a rollout worker could not start: {error.cause or error}"
            ) from error


def _lost(spec: EpisodeSpec, death: str) -> EpisodeResult:
    """The record of an episode that no worker could finish."""
    result = RunResult("infra_error", f"its rollout worker died each time: {death}", 0, "")
    return EpisodeResult(trajectory_of(spec, result, "", None, None, 0.0))
