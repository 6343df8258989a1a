"""The machinery under a run: Ray, the policy engine, the rollout workers, the trainer.

Started once, used by one run after another (the arms of an experiment), closed in order.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import ray

from coevo.cluster import ClusterConfig
from coevo.colocation import RANK_GPU, ColocationError, SharedGPUs
from coevo.config import RunConfig
from coevo.placement import ENGINE_CPUS, WORKER_CPUS, booked_cpus, booked_gpus, engine_cpus
from coevo.schedule import together
from coevo.stop import STOP
from harness.evolve.llm.errors import LLMSetupError
from rollout.policy.api import APIEngine
from rollout.policy.replicas import ReplicaSet, begin_replicas
from rollout.policy.vllm import VLLMEngine
from rollout.policy.weights import checkpoint_files, fingerprint_files
from rollout.pool import RolloutPool
from trainer.group import TrainerGroup

Note = Callable[[str], None]


RAY_ATTEMPTS = 3


class StackError(RuntimeError):
    """The machinery could not start, or does not fit the run."""


class RayStartError(RuntimeError):
    """Ray's own processes did not come up: infrastructure, worth another try later."""


@dataclass(slots=True)
class Stack:
    """A started engine and its workers. model: directory of M_0, None for a hosted one, whose
    weights nobody changes (`api`). level: isolation of harnesses."""

    config: RunConfig
    model: Path | None
    engine: VLLMEngine | ReplicaSet | APIEngine
    pool: RolloutPool
    level: str
    base_fingerprint: str
    gpus: SharedGPUs | None = None
    """Those that engines and trainer share, where they do."""
    measured: dict[Hashable, Any] = field(default_factory=dict)
    """What runs measured of (H, M_0): arms that start alike measure alike, so it is done once."""

    @classmethod
    async def start(cls, config: RunConfig, model: Path | None, note: Note) -> Self:
        """Start Ray (unless it runs), the engine and the workers, side by side."""
        init_ray(config)
        STOP.listen()
        api = config.policy.api
        what = f"API, {api.model}" if api else "vLLM"
        note(f"starting the policy engine ({what}) and the rollout workers …")
        gpus = None
        if booked_gpus(config)[0] and config.colocated:
            gpus = _shared(config)
        engine = await _engine(config, model, gpus)
        pool = RolloutPool(
            config.environment,
            config.rollout,
            str(model) if model else None,
            engine,
            num_cpus=WORKER_CPUS,
        )
        try:
            _, level = await together(engine.ready(), pool.start())
        except BaseException:
            await pool.close()
            await engine.shutdown()
            raise
        base = fingerprint_files(checkpoint_files(model)) if model else ""
        return cls(config, model, engine, pool, level, base, gpus)

    @property
    def policy(self) -> VLLMEngine | ReplicaSet:
        """The engine of weights that change. Raises StackError for a hosted model."""
        if isinstance(self.engine, APIEngine):
            raise StackError(
                "policy.api is a hosted model: it takes no weights and gives no scores"
            )
        return self.engine

    async def begin(self, config: RunConfig) -> None:
        """The next run starts. What it pays a hosted model for is kept beside its other records."""
        self.config = config
        if isinstance(self.engine, APIEngine):
            ledger = Path(config.runs_dir) / config.name / "api_calls.jsonl"
            await self.engine.open_ledger(ledger.resolve())

    async def serve_base(self) -> None:
        """Put M_0 back into the engine, as version 0; a hosted model has no other."""
        if self.model is not None:
            await self.policy.update(str(self.model), 0, self.base_fingerprint)

    def trainer(self) -> TrainerGroup:
        """A fresh trainer on M_0. Raises StackError where Ray would wait for ever to place it."""
        ranks = self.config.trainer.world_size * self.config.trainer.threads_per_rank
        booked = engine_cpus(self.config) + WORKER_CPUS * self.config.rollout.workers
        free = ray.cluster_resources().get("CPU", 0.0) - booked
        if free < ranks:
            raise StackError(
                f"the trainer books {ranks} CPUs ({self.config.trainer.world_size} ranks of "
                f"{self.config.trainer.threads_per_rank} threads) and the Ray cluster has {free:g} "
                "beside engine and workers; lower trainer.threads_per_rank or give the cluster more"
            )
        if self.model is None:
            raise StackError("policy.api is a hosted model: there are no weights to train")
        if self.gpus is None:
            return TrainerGroup(self.config.trainer, self.model)
        return TrainerGroup(
            self.config.trainer,
            self.model,
            placement_group=self.gpus.group,
            gpus_per_rank=RANK_GPU,
        )

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


def _shared(config: RunConfig) -> SharedGPUs:
    try:
        return SharedGPUs.reserve(config, config.policy.engine.start_timeout_s)
    except ColocationError as error:
        raise StackError(str(error)) from error


async def _engine(
    config: RunConfig, model: Path | None, gpus: SharedGPUs | None
) -> VLLMEngine | ReplicaSet | APIEngine:
    """Begun; `ready` loads it."""
    policy, rollout = config.policy, config.rollout
    if policy.api is not None:
        try:
            return await APIEngine.start(policy.api)
        except LLMSetupError as error:
            raise StackError(str(error)) from error
    settings = policy.engine.resolved(
        str(model), rollout.max_context + rollout.max_new_tokens, config.seed
    )
    settings = settings.model_copy(update={"sleeps": config.colocated})
    replicas = policy.engine.replicas
    if gpus is not None:
        try:
            places = gpus.engines(replicas, policy.engine.tensor_parallel)
        except ColocationError as error:
            raise StackError(str(error)) from error
        return begin_replicas(settings, replicas, places, num_cpus=ENGINE_CPUS)
    if replicas == 1:
        return VLLMEngine.begin(settings, num_cpus=ENGINE_CPUS)
    return begin_replicas(settings, replicas, num_cpus=ENGINE_CPUS)


def init_ray(config: RunConfig) -> None:
    """Start or join Ray, quietly. Authentication is off for a cluster of one machine."""
    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    address = os.environ.get("RAY_ADDRESS")
    if address:
        _join_ray(address, config.cluster, options)
        return
    needed = booked_cpus(config)
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


def _join_ray(address: str, cluster: ClusterConfig | None, options: dict[str, Any]) -> None:
    """Join the Ray that runs at `address`, when the nodes of the job are all in it."""
    nodes, patience = (cluster.nodes, cluster.start_timeout_s) if cluster else (1, 0)
    try:
        ray.init(address=address, **options)
    except (ConnectionError, RuntimeError) as error:
        raise RayStartError(
            f"the Ray at RAY_ADDRESS={address} cannot be joined: {error}"
        ) from error
    end = time.monotonic() + patience
    while (alive := sum(bool(n["Alive"]) for n in ray.nodes())) < nodes:
        if time.monotonic() > end:
            raise RayStartError(
                f"{alive} of {nodes} nodes joined the Ray at {address} within {patience} s; see "
                "ray-*.log of the attempt"
            )
        time.sleep(0.3)
