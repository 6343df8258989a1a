"""What a household task asks for: when it is done, and the sub-goals on the way there.

Success is ALFWorld's PDDL goal (goal_library.py). The sub-goals are ours, for reward shaping:
each counts once and stays reached, so nothing is gained by undoing and repeating one.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from rollout.envs.household.tables import load_tables

if TYPE_CHECKING:
    from rollout.envs.household.world import World

# Task type -> the command verb that processes the object, and the receptacle type it needs.
STATIONS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "pick_clean": ("clean", "sinkbasin"),
        "pick_heat": ("heat", "microwave"),
        "pick_cool": ("cool", "fridge"),
    }
)

SUBGOALS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "pick_place": ("found", "holding", "placed"),
        "look_light": ("found", "holding", "found_lamp", "processed"),
        "pick_clean": ("found", "holding", "processed", "placed"),
        "pick_heat": ("found", "holding", "processed", "placed"),
        "pick_cool": ("found", "holding", "processed", "placed"),
        "pick_two": ("found", "holding", "placed_first", "holding_second", "placed"),
    }
)
"""In order of dependence; the last one is the goal itself. look_light's `processed` is: holding
the object at the lit lamp."""


@dataclass(frozen=True, slots=True)
class Goal:
    """`target` object type; `parent` receptacle type ("" for look_light); `lamp` type (else "")."""

    task_type: str
    target: str
    parent: str = ""
    lamp: str = ""


class InstructionError(ValueError):
    """A sentence that is no household instruction."""


def goal_of(instruction: str) -> Goal:
    """The goal that a task sentence states, e.g. "put a clean apple in fridge.".

    Raises InstructionError where no template matches."""
    text = instruction.strip().removesuffix(".")
    for name, pattern in _patterns():
        if found := pattern.fullmatch(text):
            got = found.groupdict()
            return Goal(name, got["obj"], got.get("recep") or "", got.get("toggle") or "")
    raise InstructionError(
        f"instruction {instruction!r} matches none of the templates of the six task types; "
        "expected a sentence like 'put a clean apple in fridge.'"
    )


@functools.cache
def _patterns() -> list[tuple[str, re.Pattern[str]]]:
    return [
        (name, re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[a-z]+)", template)))
        for name, task_type in load_tables().task_types.items()
        for template in task_type.templates
    ]


def satisfied(goal: Goal, world: World) -> bool:
    """ALFWorld's goal condition in the world's present state."""
    items = [i for i, item in enumerate(world.items) if item.type == goal.target]
    if goal.task_type == "look_light":
        return (world.held in items if world.held is not None else False) and any(
            world.items[i].type == goal.lamp and i in world.toggled
            for r in world.here
            for i in world.contents[r]
        )
    good = _processed(goal, world, items)
    parents = [r for r, recep in enumerate(world.receptacles) if recep.type == goal.parent]
    need = 2 if goal.task_type == "pick_two" else 1
    return any(len(world.contents[r] & good) >= need for r in parents)


def _processed(goal: Goal, world: World, items: list[int]) -> set[int]:
    states = {"pick_clean": world.clean, "pick_heat": world.hot, "pick_cool": world.cool}
    state = states.get(goal.task_type)
    return {i for i in items if state is None or i in state}


class Progress:
    """Which sub-goals of a goal have been reached so far; call `update` after each command."""

    def __init__(self, goal: Goal) -> None:
        self.goal = goal
        self.reached: dict[str, bool] = dict.fromkeys(SUBGOALS[goal.task_type], False)

    def update(self, world: World, won: bool) -> None:
        """`won`: whether the goal holds now, as `satisfied` says."""
        goal, reached = self.goal, self.reached
        visible = world.visible()
        items = [i for i, item in enumerate(world.items) if item.type == goal.target]
        holding = world.held in items if world.held is not None else False
        now = {
            "found": holding or any(i in visible for i in items),
            "holding": holding,
            "found_lamp": any(world.items[i].type == goal.lamp for i in visible),
        }
        if goal.task_type == "pick_two":
            placed = any(
                world.contents[r].intersection(items)
                for r, recep in enumerate(world.receptacles)
                if recep.type == goal.parent
            )
            now["placed_first"] = placed
            now["holding_second"] = holding and placed
        if goal.task_type in STATIONS:
            now["processed"] = bool(_processed(goal, world, items))
        for name in reached:
            reached[name] = reached[name] or won or now.get(name, False)

    def fraction(self) -> float:
        """Share of the sub-goals reached, in [0, 1]; 1 only when the goal was reached."""
        return sum(self.reached.values()) / len(self.reached)
