"""Engines and trainer in turns: which GPUs belong together, and what runs after what."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coevo.colocation import ColocationError, grouped, in_turn
from coevo.config import ConfigError, load_config
from coevo.placement import booked_cpus, gpus_needed

RECIPE = "configs/models/qwen3_8b.yaml"


def test_the_gpus_of_a_replica_lie_on_one_node() -> None:
    assert grouped(["a", "b", "a", "b"], 2, 2) == [(0, 2), (1, 3)]
    assert grouped(["a"] * 4, 4, 1) == [(0,), (1,), (2,), (3,)]


def test_a_replica_over_two_nodes_is_refused_with_what_is_left() -> None:
    with pytest.raises(ColocationError, match=r"replica 1 needs 2 GPUs .* \[1, 1\] left"):
        grouped(["a", "a", "a", "b"], 2, 2)


def test_the_second_begins_when_the_first_has_ended() -> None:
    order: list[str] = []

    async def phase(name: str) -> str:
        order.append(f"{name} begins")
        await asyncio.sleep(0)
        order.append(f"{name} ends")
        return name

    assert asyncio.run(in_turn(phase("evolve"), phase("train"))) == ("evolve", "train")
    assert order == ["evolve begins", "evolve ends", "train begins", "train ends"]


def test_the_second_is_not_begun_where_the_first_fails() -> None:
    begun = []

    async def fails() -> Any:
        raise ValueError("no")

    async def second() -> Any:
        begun.append(1)

    with pytest.raises(ValueError, match="no"):
        asyncio.run(in_turn(fails(), second()))
    assert not begun


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
