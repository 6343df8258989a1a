"""Generates household games: seeded, and the same on every machine.

A game is drawn from a floor plan's own receptacle and object types under ALFWorld's affordances;
object positions are random (ALFWorld takes them from a 3-D simulator).
"""

from __future__ import annotations

import hashlib
import random
from typing import Literal

from rollout.envs.household.goals import STATIONS, Goal
from rollout.envs.household.layout import GameSpec, SpecError
from rollout.envs.household.tables import Scene, load_tables

Pairs = Literal["usual", "held_out", "all"]
"""Which (object, receptacle or lamp) pairs a goal may use; see `held_out`."""

HELD_OUT_SHARE = 0.15


class Unsatisfiable(ValueError):
    """No game of this task type fits this scene under these constraints: draw another scene."""


def held_out(task_type: str, target: str, place: str) -> bool:
    """Whether the pair is kept out of all splits but `ood`: 15% of the pairs of each task type,
    by a hash, so that the choice depends on neither tables nor seeds. `place`: receptacle or,
    for look_light, lamp type."""
    digest = hashlib.sha256(f"{task_type}/{target}/{place}".encode()).digest()
    return int.from_bytes(digest[:4], "big") < HELD_OUT_SHARE * 2**32


def generate(
    task_type: str,
    scene: int,
    seed: str,
    max_receptacles: int | None = None,
    pairs: Pairs = "usual",
) -> GameSpec:
    """One game. `max_receptacles` thins the room (those that the task needs stay); None keeps all.

    Raises Unsatisfiable, naming what the scene lacks; SpecError for an unknown type or scene."""
    tables = load_tables()
    if task_type not in tables.task_types:
        raise SpecError(
            f"task type {task_type!r} is unknown; expected one of {', '.join(tables.task_types)}"
        )
    if scene not in tables.scenes:
        raise SpecError(f"scene {scene} is unknown; expected 1-30, 201-230, 301-330 or 401-430")
    plan = tables.scenes[scene]
    rng = random.Random(f"{task_type}/{scene}/{seed}/{max_receptacles}/{pairs}")
    if plan.room not in tables.task_types[task_type].rooms:
        raise Unsatisfiable(f"{task_type}: scene {scene} is a {plan.room}")
    goal = _draw_goal(rng, task_type, plan, pairs)
    receptacles = sorted(kind for kind, n in plan.receptacles.items() for _ in range(n))
    if max_receptacles is not None:
        receptacles = _thin(rng, goal, receptacles, max_receptacles)
    objects = _place(rng, goal, plan, receptacles)
    template = rng.choice(tables.task_types[task_type].templates)
    sentence = template.format(obj=goal.target, recep=goal.parent, toggle=goal.lamp)
    return GameSpec(
        goal, scene, plan.room, seed, f"{sentence}.", tuple(receptacles), tuple(objects)
    )


def possible_goals(task_type: str, plan: Scene, pairs: Pairs) -> list[Goal]:
    """All goals of a task type that a scene's full floor plan admits, in a fixed order."""
    tables = load_tables()
    kinds = sorted(plan.receptacles)
    station = STATIONS[task_type][1] if task_type in STATIONS else ""
    if station and station not in plan.receptacles:
        return []
    usable = {
        "pick_clean": tables.cleanable,
        "pick_heat": tables.heatable,
        "pick_cool": tables.coolable,
    }.get(task_type)
    targets = [
        o
        for o in plan.objects
        if (usable is None or o in usable) and any(tables.fits(o, r) for r in kinds)
    ]
    if task_type == "look_light":
        if not any(r in tables.lamp_hosts for r in kinds):
            return []
        goals = [Goal(task_type, o, lamp=lamp) for o in targets for lamp in plan.lamps]
    else:
        goals = [
            Goal(task_type, o, r)
            for o in targets
            for r in kinds
            if tables.fits(o, r)
            and r != station
            and any(tables.fits(o, other) for other in kinds if other != r)
        ]
    if pairs == "all":
        return goals
    return [
        g
        for g in goals
        if held_out(task_type, g.target, g.parent or g.lamp) == (pairs == "held_out")
    ]


def _draw_goal(rng: random.Random, task_type: str, plan: Scene, pairs: Pairs) -> Goal:
    goals = possible_goals(task_type, plan, pairs)
    if not goals:
        raise Unsatisfiable(f"{task_type}: scene {plan.number} admits no goal ({pairs} pairs)")
    return rng.choice(goals)


def _thin(rng: random.Random, goal: Goal, receptacles: list[str], limit: int) -> list[str]:
    """Keep what the goal needs (destination, station, lamp stand, a source), fill up at random."""
    tables = load_tables()
    pool = list(receptacles)
    rng.shuffle(pool)
    station = STATIONS[goal.task_type][1] if goal.task_type in STATIONS else ""
    keep: list[str] = []

    def move(index: int) -> None:
        keep.append(pool.pop(index))

    for kind in sorted({goal.parent, station} - {""}):
        move(pool.index(kind))
    if goal.lamp:
        move(next(i for i, r in enumerate(pool) if r in tables.lamp_hosts))
    source = next(
        (i for i, r in enumerate(pool) if r != goal.parent and tables.fits(goal.target, r)), None
    )
    if source is None:
        raise Unsatisfiable(f"{goal.task_type}: nowhere to find {goal.target} but its destination")
    move(source)
    keep += pool[: max(0, limit - len(keep))]
    return sorted(keep)


def _place(
    rng: random.Random, goal: Goal, plan: Scene, receptacles: list[str]
) -> list[tuple[str, int]]:
    tables = load_tables()
    objects: list[tuple[str, int]] = []
    for kind in plan.objects:
        hosts = [i for i, r in enumerate(receptacles) if tables.fits(kind, r)]
        count = rng.randint(1, tables.max_instances)
        if kind == goal.target:
            hosts = [i for i in hosts if receptacles[i] != goal.parent]  # never solved at the start
            count = max(count, 2) if goal.task_type == "pick_two" else count
            if not hosts:
                raise Unsatisfiable(f"{goal.task_type}: nowhere to put {kind} in {plan.number}")
        if hosts:
            objects += [(kind, rng.choice(hosts)) for _ in range(count)]
    stands = [i for i, r in enumerate(receptacles) if r in tables.lamp_hosts]
    if stands:
        objects += [(lamp, rng.choice(stands)) for lamp in plan.lamps]
    return sorted(objects, key=lambda placed: placed[0])
