"""What a run books of Ray's CPUs and GPUs, and whether an allocation holds it. Imports no Ray."""

from __future__ import annotations

from coevo.cluster import ClusterConfig
from coevo.config import RunConfig

ENGINE_CPUS, WORKER_CPUS = 0.5, 0.25
"""What Ray books for an engine and a worker: they wait for each other most of the time."""


def booked_cpus(config: RunConfig) -> float:
    """The trainer's share is booked for every mode: arms of all modes use one stack."""
    return engine_cpus(config) + WORKER_CPUS * config.rollout.workers + _trainer_cpus(config)


def engine_cpus(config: RunConfig) -> float:
    """Of all replicas; a hosted model has no engine here. On shared GPUs a share stands beside each."""
    engine = config.policy.engine
    if config.policy.api:
        return 0.0
    shared = engine.device == "cuda" and config.colocated
    return ENGINE_CPUS * (gpus_needed(config) if shared else engine.replicas)


def booked_gpus(config: RunConfig) -> tuple[int, int]:
    """(of the engine's replicas, each on one node; of the trainer, one a rank)."""
    engine = config.policy.engine
    if config.policy.api:
        return 0, 0
    return (
        engine.tensor_parallel * engine.replicas if engine.device == "cuda" else 0,
        config.trainer.world_size if config.trainer.device == "cuda" else 0,
    )


def gpus_needed(config: RunConfig) -> int:
    """Of the whole run: colocated, engines and trainer share each of them."""
    engine, trainer = booked_gpus(config)
    if config.colocated:
        return max(engine, trainer)
    return engine + trainer


def misplaced(config: RunConfig, cluster: ClusterConfig) -> list[str]:
    """Why the run does not fit the allocation: Ray would wait for ever to place it."""
    problems = []
    ranks, threads = config.trainer.world_size, config.trainer.threads_per_rank
    if (cpus := booked_cpus(config)) > cluster.cpus():
        problems.append(
            f"the run books {cpus:g} CPUs (engines {engine_cpus(config):g}, {config.rollout.workers} "
            f"workers {WORKER_CPUS:g} each, {ranks} trainer ranks {threads} each) and the job has "
            f"{cluster.cpus()} ({cluster.nodes} nodes x cluster.cpus_per_task "
            f"{cluster.cpus_per_task}); raise cluster.cpus_per_task or cluster.nodes"
        )
    elif threads > cluster.cpus_per_task:
        problems.append(
            f"a trainer rank books {threads} CPUs (trainer.threads_per_rank) and a node has "
            f"cluster.cpus_per_task {cluster.cpus_per_task}; a rank lies on one node"
        )
    engine, trainer = booked_gpus(config)
    if (needed := gpus_needed(config)) > cluster.gpus():
        problems.append(
            f"the run books {needed} GPUs (engine {engine}, trainer {trainer}, "
            f"{config.resources.placement}) and the job has {cluster.gpus()} ({cluster.nodes} nodes x "
            f"cluster.gpus_per_node {cluster.gpus_per_node}); raise cluster.gpus_per_node or cluster.nodes"
        )
    elif engine and config.policy.engine.tensor_parallel > cluster.gpus_per_node:
        problems.append(
            f"policy.engine.tensor_parallel is {config.policy.engine.tensor_parallel} and a node has cluster.gpus_per_node "
            f"{cluster.gpus_per_node}; an engine lies on one node"
        )
    return problems


def _trainer_cpus(config: RunConfig) -> int:
    if config.policy.api:
        return 0
    return config.trainer.world_size * config.trainer.threads_per_rank
