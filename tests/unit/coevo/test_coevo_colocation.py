"""Engines and trainer in turns: which GPUs belong together, and what runs after what."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coevo.colocation import ColocationError, grouped
from coevo.config import ConfigError, load_config
from coevo.placement import booked_cpus, gpus_needed
from coevo.schedule import Rounds

RECIPE = "configs/models/qwen3_8b.yaml"


def test_the_gpus_of_a_replica_lie_on_one_node() -> None:
    assert grouped(["a", "b", "a", "b"], 2, 2) == [(0, 2), (1, 3)]
    assert grouped(["a"] * 4, 4, 1) == [(0,), (1,), (2,), (3,)]


def test_a_replica_over_two_nodes_is_refused_with_what_is_left() -> None:
    with pytest.raises(ColocationError, match=r"replica 1 needs 2 GPUs .* \[1, 1\] left"):
        grouped(["a", "a", "a", "b"], 2, 2)


class Phases:
    """Notes when each phase begins and ends."""

    def __init__(self) -> None:
        self.order: list[str] = []

    async def phase(self, name: str, wall: float) -> dict[str, Any]:
        self.order.append(f"{name} begins")
        await asyncio.sleep(0)
        self.order.append(f"{name} ends")
        return {"wall": wall}

    async def measure(self, number: int) -> dict[str, Any]:
        return await self.phase("measure", 1.0)

    async def rollout(self, number: int) -> dict[str, Any]:
        return await self.phase("rollout", 2.0)

    async def evolve(self, number: int, rolled: dict[str, Any]) -> dict[str, Any]:
        return await self.phase("evolve", 4.0)

    async def train(self, number: int) -> dict[str, Any]:
        return await self.phase("train", 8.0)


@pytest.mark.parametrize(("in_turns", "wall"), [(True, 15.0), (False, 11.0)])
def test_in_turns_training_begins_when_evolution_has_ended(in_turns: bool, wall: float) -> None:
    phases = Phases()
    played = asyncio.run(Rounds(phases, 1, "synchronous", in_turns).play(0))
    assert played.wall == wall
    begins, ends = phases.order.index("train begins"), phases.order.index("evolve ends")
    assert (begins > ends) == in_turns


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("trainer.world_size=2", "each GPU holds one engine worker and one rank"),
        ("trainer.publish=collective", "use trainer.publish: filesystem"),
    ],
)
def test_what_cannot_share_gpus_is_refused(override: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(RECIPE, [override])
    assert said in str(caught.value)


def test_shared_gpus_are_counted_once_and_carry_cpus_for_both() -> None:
    config = load_config(RECIPE)
    assert gpus_needed(config) == 4
    # Four GPUs with a rank's core and half a core of an engine each; four workers.
    assert booked_cpus(config) == 4 * 1.5 + 4 * 0.25
    assert gpus_needed(load_config(RECIPE, ["resources.placement=disaggregated"])) == 8
