"""A household game as plain records: rooms' receptacles, objects, start state and goal.

`GameSpec` is the compact JSON form that a task carries; `Layout` is the full initial state that a
`World` runs, made from a spec here or from an ALFWorld file in `pddl`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rollout.envs.household.goals import Goal
from rollout.envs.household.tables import load_tables

SCHEMA = 1


class SpecError(ValueError):
    """A payload that is no household game of this schema."""


@dataclass(frozen=True, slots=True)
class GameSpec:
    """One game. `receptacles`: types, sorted. `objects`: (type, index into receptacles), sorted
    by type. Both orders are the order of the texts. `instruction` ends with a full stop."""

    goal: Goal
    scene: int
    room: str
    seed: str
    instruction: str
    receptacles: tuple[str, ...]
    objects: tuple[tuple[str, int], ...]

    def to_json(self) -> dict[str, Any]:
        goal = self.goal
        return {
            "schema": SCHEMA,
            "task_type": goal.task_type,
            "target": goal.target,
            "parent": goal.parent,
            "lamp": goal.lamp,
            "scene": self.scene,
            "room": self.room,
            "seed": self.seed,
            "instruction": self.instruction,
            "receptacles": list(self.receptacles),
            "objects": [[kind, where] for kind, where in self.objects],
        }

    @staticmethod
    def from_json(raw: Mapping[str, Any]) -> GameSpec:
        """Inverse of `to_json`. Raises SpecError for another schema or a missing field."""
        if raw.get("schema") != SCHEMA:
            raise SpecError(
                f"household payload has schema {raw.get('schema')!r}, expected {SCHEMA}; "
                "take the task from HouseholdEnv.tasks of this version"
            )
        try:
            return GameSpec(
                goal=Goal(raw["task_type"], raw["target"], raw["parent"], raw["lamp"]),
                scene=raw["scene"],
                room=raw["room"],
                seed=raw["seed"],
                instruction=raw["instruction"],
                receptacles=tuple(raw["receptacles"]),
                objects=tuple((kind, where) for kind, where in raw["objects"]),
            )
        except KeyError as error:
            raise SpecError(
                f"household payload lacks the field {error}; "
                "take the task from HouseholdEnv.tasks of this version"
            ) from error


@dataclass(frozen=True, slots=True)
class Receptacle:
    """A fixed place. `location`: index of the standpoint; several receptacles may share one."""

    name: str
    type: str
    location: int
    openable: bool = False
    opened: bool = False


@dataclass(frozen=True, slots=True)
class Item:
    """An object. `inside`: receptacle indices; `locations`: standpoints recorded for it (slicing
    asks for them, as ALFWorld does); `within`: index of the container object that holds it."""

    name: str
    type: str
    inside: tuple[int, ...] = ()
    locations: tuple[int, ...] = ()
    within: int | None = None
    pickupable: bool = False
    cleanable: bool = False
    heatable: bool = False
    coolable: bool = False
    toggleable: bool = False
    sliceable: bool = False
    container: bool = False
    clean: bool = False
    hot: bool = False
    cool: bool = False
    toggled: bool = False
    sliced: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """Initial state. The orders of `receptacles` and `items` are the orders of the texts.

    can_contain: (receptacle type, object type). start: standpoint; held: item index or None."""

    goal: Goal
    instruction: str
    receptacles: tuple[Receptacle, ...]
    items: tuple[Item, ...]
    can_contain: frozenset[tuple[str, str]]
    start: int = 0
    held: int | None = None


def numbered(types: tuple[str, ...]) -> list[str]:
    """ALFWorld's names: within a type the first gets the highest number."""
    left = Counter(types)
    names = []
    for kind in types:
        names.append(f"{kind} {left[kind]}")
        left[kind] -= 1
    return names


def layout_of(spec: GameSpec) -> Layout:
    """The initial state of a generated game: each receptacle at a standpoint of its own, closed."""
    t = load_tables()
    receptacles = tuple(
        Receptacle(name, kind, index + 1, openable=kind in t.openable)
        for index, (name, kind) in enumerate(
            zip(numbered(spec.receptacles), spec.receptacles, strict=True)
        )
    )
    kinds = tuple(kind for kind, _ in spec.objects)
    items = tuple(
        _item(name, kind, where)
        for name, (kind, where) in zip(numbered(kinds), spec.objects, strict=True)
    )
    present = set(kinds)
    fits = frozenset(
        (r, o) for r in set(spec.receptacles) for o in t.holds.get(r, ()) if o in present
    )
    return Layout(spec.goal, spec.instruction, receptacles, items, fits)


_templates: dict[str, Item] = {}


def _item(name: str, kind: str, where: int) -> Item:
    template = _templates.get(kind)
    if template is None:
        t = load_tables()
        template = _templates[kind] = Item(
            name="",
            type=kind,
            pickupable=kind not in t.toggleable,
            cleanable=kind in t.cleanable,
            heatable=kind in t.heatable,
            coolable=kind in t.coolable,
            toggleable=kind in t.toggleable,
            sliceable=kind in t.sliceable,
            container=kind in t.containers,
        )
    return replace(template, name=name, inside=(where,), locations=(where + 1,))
