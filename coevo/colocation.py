"""Engines and trainer on the same GPUs: where Ray puts them, and whose turn it is.

One placement group holds a bundle a GPU. Each bundle is booked in part by an engine's worker and in
part by a trainer's rank, so both see that GPU; they use it in turns, because the engine sleeps while
the trainer lives. Engines over several GPUs let vLLM place its own workers in the bundles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.util import placement_group_table
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from coevo.config import RunConfig
from coevo.placement import ENGINE_CPUS, gpus_needed
from rollout.policy.config import SHARED_GPU
from rollout.policy.replicas import EnginePlace

RANK_GPU = 0.5
"""Share of a GPU that a trainer's rank books of Ray, beside SHARED_GPU of the engine."""


class ColocationError(RuntimeError):
    """The GPUs cannot be shared as the configuration asks."""


@dataclass(slots=True)
class SharedGPUs:
    """The placement group; `nodes`: of each bundle, by index."""

    group: Any
    nodes: tuple[str, ...]

    @classmethod
    def reserve(cls, config: RunConfig, timeout_s: float) -> SharedGPUs:
        """A bundle for each GPU of the run. Raises ColocationError where Ray has not that many."""
        count = gpus_needed(config)
        bundle = {"GPU": 1.0, "CPU": config.trainer.threads_per_rank + ENGINE_CPUS}
        group = placement_group([bundle] * count, strategy="PACK")
        done, _ = ray.wait([group.ready()], timeout=timeout_s)
        if not done:
            remove_placement_group(group)
            raise ColocationError(
                f"resources.placement is 'colocated' and the run needs {count} GPUs with "
                f"{bundle['CPU']:g} CPUs each; the Ray cluster did not have them free within "
                f"{timeout_s:g} s (it has {ray.cluster_resources().get('GPU', 0):g} GPUs and "
                f"{ray.cluster_resources().get('CPU', 0):g} CPUs)"
            )
        where = placement_group_table(group)["bundles_to_node_id"]
        return cls(group, tuple(where[i] for i in range(count)))

    def strategy(self, bundle: int) -> PlacementGroupSchedulingStrategy:
        """Of an actor in this bundle; what it starts stays in the group."""
        return PlacementGroupSchedulingStrategy(
            self.group, bundle, placement_group_capture_child_tasks=True
        )

    def release(self) -> None:
        """Give the GPUs back to Ray, ending the actors on them."""
        remove_placement_group(self.group)

    def engines(self, replicas: int, tensor_parallel: int) -> list[EnginePlace]:
        """Of each replica. Raises ColocationError where a replica's GPUs lie on two nodes."""
        return [self._engine(bundles) for bundles in grouped(self.nodes, replicas, tensor_parallel)]

    def _engine(self, bundles: tuple[int, ...]) -> EnginePlace:
        strategy = self.strategy(bundles[0])
        if len(bundles) == 1:
            return EnginePlace({"num_gpus": SHARED_GPU, "scheduling_strategy": strategy})
        # The actor itself uses no GPU: its workers, whom vLLM places by index, do.
        return EnginePlace({"num_gpus": 0, "scheduling_strategy": strategy}, bundles)


def grouped(nodes: Sequence[str], replicas: int, size: int) -> list[tuple[int, ...]]:
    """Bundle indices of each replica, those of one on one node. Raises ColocationError."""
    free: dict[str, list[int]] = {}
    for index, node in enumerate(nodes):
        free.setdefault(node, []).append(index)
    out = []
    for replica in range(replicas):
        home = next((node for node, left in free.items() if len(left) >= size), None)
        if home is None:
            raise ColocationError(
                f"replica {replica} needs {size} GPUs of one node (policy.engine.tensor_parallel), and "
                f"the nodes have {[len(left) for left in free.values()]} left; use a tensor_parallel "
                "that divides the GPUs of a node"
            )
        out.append(tuple(free[home][:size]))
        del free[home][:size]
    return out
