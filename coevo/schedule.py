"""The order of a run's phases: which waits for which. Neither engine nor journal is known here.

`synchronous`: measure, roll out, then evolve and train side by side (in turns where they share GPUs),
publish. `pipelined`: while round
t evolves and trains, round t+1 is rolled out under the harness and the policy that round t began with,
so what trains is a version older. In both, the engines get new weights only where a round has ended:
no phase sees two policies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from coevo.config import Schedule
from coevo.stop import StopRequested

Result = dict[str, Any]
"""A phase's result; `wall`: its seconds."""

LEAD: dict[Schedule, int] = {"synchronous": 0, "pipelined": 1}
"""Rounds by which the rollout runs ahead of the training: versions that staleness grows by."""


class Phases(Protocol):
    """What `Rounds` orders: the phases of round `number`, each computed where the run stands."""

    async def measure(self, number: int) -> Result: ...

    async def rollout(self, number: int) -> Result: ...

    async def evolve(self, number: int, rolled: Result) -> Result: ...

    async def train(self, number: int) -> Result: ...


@dataclass(frozen=True, slots=True)
class Played:
    """What the phases of one round gave. wall: seconds from its first phase to its last; a rollout
    made ahead counts where it was made."""

    measured: Result
    rolled: Result
    evolved: Result
    trained: Result
    wall: float


class Rounds:
    """Plays the rounds 0 … rounds − 1 in order, and holds what was rolled out ahead.

    in_turns: a synchronous round trains after it has evolved, because both use the same GPUs."""

    def __init__(
        self, phases: Phases, rounds: int, schedule: Schedule, in_turns: bool = False
    ) -> None:
        self._phases, self._last, self._schedule = phases, rounds - 1, schedule
        self._in_turns = in_turns
        self._ahead: Result | None = None

    async def play(self, number: int) -> Played:
        """All phases of the round; publication is left to the caller, for then none runs."""
        if self._schedule == "pipelined":
            return await self._pipelined(number)
        phases = self._phases
        measured = await phases.measure(number)
        rolled = await phases.rollout(number)
        if self._in_turns:
            evolved = await phases.evolve(number, rolled)
            trained = await phases.train(number)
            both_s = evolved["wall"] + trained["wall"]
        else:
            evolved, trained = await together(phases.evolve(number, rolled), phases.train(number))
            both_s = max(evolved["wall"], trained["wall"])
        wall = measured["wall"] + rolled["wall"] + both_s
        return Played(measured, rolled, evolved, trained, wall)

    async def _pipelined(self, number: int) -> Played:
        phases, rolled, first_s = self._phases, self._ahead, 0.0
        if rolled is None:
            rolled = await phases.rollout(number)
            first_s = rolled["wall"]

        async def serve() -> tuple[Result, Result | None]:
            measured = await phases.measure(number)
            return measured, await phases.rollout(number + 1) if number < self._last else None

        (measured, self._ahead), evolved, trained = await together(
            serve(), phases.evolve(number, rolled), phases.train(number)
        )
        served_s = measured["wall"] + (self._ahead["wall"] if self._ahead else 0.0)
        wall = first_s + max(served_s, evolved["wall"], trained["wall"])
        return Played(measured, rolled, evolved, trained, wall)


async def together(*phases: Coroutine[Any, Any, Any]) -> list[Any]:
    """The results of all. Where one fails the others are not left running; a requested stop lets
    those that run come to their end, so that nothing they did is lost."""
    stops: list[StopRequested] = []

    async def run(phase: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await phase
        except StopRequested as stop:
            stops.append(stop)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run(phase)) for phase in phases]
    if stops:
        raise stops[0]
    return [task.result() for task in tasks]
