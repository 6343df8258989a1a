"""The order of a run's phases under both schedules, on a virtual clock; no engine, no journal."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coevo import virtual_clock
from coevo.schedule import Rounds, together
from coevo.stop import StopRequested


class Timed:
    """Phases that take known seconds and tell when they began and under which policy version."""

    def __init__(self, **seconds: float) -> None:
        self.seconds, self.version = seconds, 0
        self.log: list[tuple[float, str, int]] = []

    async def _phase(self, name: str, number: int) -> dict[str, Any]:
        self.log.append((asyncio.get_running_loop().time(), f"{number}/{name}", self.version))
        version = self.version
        await asyncio.sleep(self.seconds[name])
        assert self.version == version, f"{number}/{name} saw two policies"
        return {"wall": self.seconds[name], "version": version}

    async def measure(self, number: int) -> dict[str, Any]:
        return await self._phase("measure", number)

    async def rollout(self, number: int) -> dict[str, Any]:
        return await self._phase("rollout", number)

    async def evolve(self, number: int, rolled: dict[str, Any]) -> dict[str, Any]:
        return await self._phase("evolve", number) | {"of": rolled["version"]}

    async def train(self, number: int) -> dict[str, Any]:
        return await self._phase("train", number)


async def play(phases: Timed, rounds: int, schedule: Any) -> tuple[list[Any], float]:
    clock = asyncio.get_running_loop().time
    order = Rounds(phases, rounds, schedule)
    played = []
    for number in range(rounds):
        played.append(await order.play(number))
        phases.version += 1  # where the loop publishes
    return played, clock()


def test_a_synchronous_round_is_a_measurement_a_rollout_and_the_longer_of_evolving_and_training():
    phases = Timed(measure=1, rollout=4, evolve=3, train=5)
    played, total = virtual_clock.run(play(phases, 2, "synchronous"))
    assert [p.wall for p in played] == [10, 10]
    assert total == pytest.approx(20)
    assert phases.log[:5] == [
        (0, "0/measure", 0), (1, "0/rollout", 0), (5, "0/evolve", 0), (5, "0/train", 0),
        (10, "1/measure", 1),
    ]  # fmt: skip
    assert [p.evolved["of"] for p in played] == [0, 1]


def test_a_pipelined_round_rolls_the_next_one_out_while_it_trains():
    phases = Timed(measure=1, rollout=4, evolve=3, train=5)
    played, total = virtual_clock.run(play(phases, 3, "pipelined"))
    assert [p.wall for p in played] == [4 + 5, 5, 5]
    assert total == pytest.approx(19)
    assert [(t, name, v) for t, name, v in phases.log if "rollout" in name] == [
        (0, "0/rollout", 0), (5, "1/rollout", 0), (10, "2/rollout", 1),
    ]  # fmt: skip
    # What trains from version 1 on was sampled a version before it.
    assert [p.evolved["version"] - p.evolved["of"] for p in played] == [0, 1, 1]


@pytest.mark.parametrize("schedule", ["synchronous", "pipelined"])
def test_a_phase_that_fails_ends_the_others(schedule: Any):
    phases = Timed(measure=1, rollout=4, evolve=3, train=5)

    async def broken(number: int) -> dict[str, Any]:
        raise ValueError("broken")

    phases.train = broken  # type: ignore[method-assign]

    async def both() -> float:
        with pytest.raises(ExceptionGroup) as error:
            await play(phases, 2, schedule)
        assert error.group_contains(ValueError)
        return asyncio.get_running_loop().time()

    assert virtual_clock.run(both()) == pytest.approx(5 if schedule == "synchronous" else 4)


def test_a_stop_lets_the_phases_that_run_come_to_their_end():
    ended = []

    async def phase(seconds: float) -> None:
        await asyncio.sleep(seconds)
        ended.append(seconds)

    async def stops() -> None:
        await asyncio.sleep(1)
        raise StopRequested("stopped between two phases (SIGUSR1)")

    async def all_of_them() -> None:
        with pytest.raises(StopRequested, match="SIGUSR1"):
            await together(stops(), phase(3), stops(), phase(2))

    virtual_clock.run(all_of_them())
    assert ended == [2, 3]
