"""The machinery under a run: Ray, the policy engine, the rollout workers, the trainer.

Started once, used by one run after another (the arms of an experiment), closed in order.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import ray

from coevo.config import RunConfig
from rollout.policy.vllm import VLLMEngine
from rollout.policy.weights import fingerprint_file
from rollout.pool import RolloutPool
from trainer.group import TrainerGroup

Note = Callable[[str], None]


RAY_ATTEMPTS = 3
ENGINE_CPUS, WORKER_CPUS = 0.5, 0.25
"""What Ray books for an engine and a worker: they wait for each other most of the time."""


class StackError(RuntimeError):
    """The machinery could not start, or does not fit the run."""


class RayStartError(RuntimeError):
    """Ray's own processes did not come up: infrastructure, worth another try later."""


@dataclass(slots=True)
class Stack:
    """A started engine and its workers. model: directory of M_0. level: isolation of harnesses."""

    config: RunConfig
    model: Path
    engine: VLLMEngine
    pool: RolloutPool
    level: str
    base_fingerprint: str
    measured: dict[Hashable, Any] = field(default_factory=dict)
    """What runs measured of (H, M_0): arms that start alike measure alike, so it is done once."""

    @classmethod
    async def start(cls, config: RunConfig, model: Path, note: Note) -> Self:
        """Start Ray (unless it runs), the engine and the workers, side by side."""
        init_ray(config)
        note("starting the policy engine (vLLM) and the rollout workers …")
        rollout = config.rollout
        engine_config = config.policy.engine.resolved(
            str(model), rollout.max_context + rollout.max_new_tokens, config.seed
        )
        engine = await VLLMEngine.start(engine_config, num_cpus=ENGINE_CPUS)
        try:
            pool = RolloutPool(
                config.environment, rollout, str(model), engine, num_cpus=WORKER_CPUS
            )
            level = await pool.start()
        except BaseException:
            await engine.shutdown()
            raise
        return cls(config, model, engine, pool, level, fingerprint_file(_weights(model)))

    async def serve_base(self) -> None:
        """Put M_0 back into the engine, as version 0."""
        await self.engine.update(str(_weights(self.model)), 0, self.base_fingerprint)

    def trainer(self) -> TrainerGroup:
        """A fresh trainer on M_0. Raises StackError where Ray would wait for ever to place it."""
        ranks = self.config.trainer.world_size * self.config.trainer.threads_per_rank
        booked = ENGINE_CPUS + WORKER_CPUS * self.config.rollout.workers
        free = ray.cluster_resources().get("CPU", 0.0) - booked
        if free < ranks:
            raise StackError(
                f"the trainer books {ranks} CPUs ({self.config.trainer.world_size} ranks of "
                f"{self.config.trainer.threads_per_rank} threads) and the Ray cluster has {free:g} "
                "beside engine and workers; lower trainer.threads_per_rank or give the cluster more"
            )
        return TrainerGroup(self.config.trainer, self.model)

    async def close(self) -> None:
        await self.pool.close()
        await self.engine.shutdown()
        await asyncio.to_thread(ray.shutdown)

    def check_fits(self, config: RunConfig) -> None:
        """Raises StackError where a run needs another machinery than this one."""
        for key in ("environment", "policy", "rollout"):
            if getattr(config, key) != getattr(self.config, key):
                raise StackError(
                    f"run {config.name!r} has another `{key}` than the engines were started for; "
                    "start it by itself with `coevo run`"
                )


def _weights(model: Path) -> Path:
    file = model / "model.safetensors"
    if not file.is_file():
        raise StackError(
            f"policy model {model}: there is no model.safetensors; sharded checkpoints must be "
            "saved as one file to be published to the engine"
        )
    return file


def init_ray(config: RunConfig) -> None:
    """Start or join Ray, quietly. Authentication is off for a cluster of one machine."""
    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # The trainer's share is booked for every mode: arms of all modes use one stack.
    ranks = config.trainer.world_size * config.trainer.threads_per_rank
    needed = ENGINE_CPUS + WORKER_CPUS * config.rollout.workers + ranks
    given = config.resources.num_cpus
    if given is not None and given < needed:
        raise StackError(
            f"resources.num_cpus is {given}, but the run books {needed:g}: an engine "
            f"{ENGINE_CPUS:g}, {config.rollout.workers} workers {WORKER_CPUS:g} each, "
            f"{config.trainer.world_size} trainer ranks {config.trainer.threads_per_rank} each; "
            "raise it, or leave it out to share what there is"
        )
    # Without a limit of the user's, ranks and engine may share cores rather than wait for ever.
    cpus = given or max(math.ceil(needed), os.cpu_count() or 1)
    address = os.environ.get("RAY_ADDRESS")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address:
        ray.init(address=address, **options)
        return
    for attempt in range(1, RAY_ATTEMPTS + 1):
        try:
            ray.init(
                address="local",
                num_cpus=cpus,
                include_dashboard=False,
                object_store_memory=config.resources.object_store_bytes,
                **options,
            )
            return
        except Exception as error:
            # Ray raises the bare class where its node does not come up within 30 s.
            if type(error) is not Exception:
                raise
            ray.shutdown()
            if attempt == RAY_ATTEMPTS:
                raise RayStartError(
                    f"Ray did not start in {RAY_ATTEMPTS} attempts ({error}); the machine may be "
                    "too busy or short of memory"
                ) from error
