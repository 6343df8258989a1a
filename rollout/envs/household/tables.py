"""The household tables: floor plans, affordances and goal templates, read once from data/.

Source: alfworld 0.4.2 (MIT; notice inside data/tables.json), made by build_tables.py.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True, slots=True)
class TaskType:
    """A kind of task. `templates` are ALFWorld's sentences with {obj}, {recep} or {toggle}."""

    name: str
    alfworld: str
    rooms: tuple[str, ...]
    templates: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Scene:
    """A floor plan: how many receptacles of each type, which object and lamp types it has."""

    number: int
    room: str
    receptacles: Mapping[str, int]
    objects: tuple[str, ...]
    lamps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tables:
    """Everything below is lower case. `holds`: receptacle type -> object types that fit it."""

    task_types: Mapping[str, TaskType]
    scenes: Mapping[int, Scene]
    holds: Mapping[str, frozenset[str]]
    receptacle_types: tuple[str, ...]
    object_types: tuple[str, ...]
    openable: frozenset[str]
    containers: frozenset[str]
    lamp_hosts: frozenset[str]
    cleanable: frozenset[str]
    heatable: frozenset[str]
    coolable: frozenset[str]
    toggleable: frozenset[str]
    sliceable: frozenset[str]
    max_instances: int

    def fits(self, obj: str, receptacle: str) -> bool:
        return obj in self.holds.get(receptacle, frozenset())


@functools.cache
def load_tables() -> Tables:
    """The one shared copy; read-only."""
    path = resources.files("rollout.envs.household") / "data" / "tables.json"
    raw = json.loads(path.read_text(encoding="utf-8"))
    scenes = {
        int(number): Scene(
            int(number), s["room"], s["receptacles"], tuple(s["objects"]), tuple(s["lamps"])
        )
        for number, s in raw["scenes"].items()
    }
    affordances = {name: frozenset(types) for name, types in raw["affordances"].items()}
    held = {t for types in raw["holds"].values() for t in types}
    return Tables(
        task_types={
            name: TaskType(name, t["alfworld"], tuple(t["rooms"]), tuple(t["templates"]))
            for name, t in raw["task_types"].items()
        },
        scenes=scenes,
        holds={t: frozenset(types) for t, types in raw["holds"].items()},
        receptacle_types=tuple(raw["receptacle_types"]),
        object_types=tuple(sorted(held | affordances["toggleable"])),
        openable=frozenset(raw["openable"]),
        containers=frozenset(raw["containers"]),
        lamp_hosts=frozenset(raw["lamp_hosts"]),
        max_instances=raw["max_instances"],
        **affordances,
    )
