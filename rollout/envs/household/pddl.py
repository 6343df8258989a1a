"""ALFWorld's on-disk games: reads a `.tw-pddl` game into a Layout, writes a spec as one.

The file is read as data only (an s-expression parser); nothing in it is evaluated.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollout.envs.household.goals import Goal
from rollout.envs.household.layout import GameSpec, Item, Layout, Receptacle, layout_of
from rollout.envs.household.tables import load_tables

Sexp = str | list["Sexp"]
_TOKEN = re.compile(r"\(|\)|[^\s()]+")
_ESCAPES = (
    ("-", "_minus_"),
    ("#", "-"),
    ("|", "_bar_"),
    ("+", "_plus_"),
    (".", "_dot_"),
    (",", "_comma_"),
)


class PddlError(ValueError):
    """A game file that cannot be read, or whose goal is none of the six task types."""


def parse_game(game: Mapping[str, Any]) -> Layout:
    """The layout of a `.tw-pddl` game: JSON with pddl_problem and grammar.

    Raises PddlError."""
    for key in ("pddl_problem", "grammar"):
        if key not in game:
            raise PddlError(f"game lacks {key!r}; expected the JSON of a .tw-pddl file")
    task = re.search(r"Your task is to: (.*?\.)\"", game["grammar"])
    sections = {
        part[0]: part[1:]
        for part in _parse(game["pddl_problem"])
        if isinstance(part, list) and part and isinstance(part[0], str)
    }
    for key in (":init", ":goal"):
        if key not in sections:
            raise PddlError(
                f"pddl_problem has no ({key} …) section; the file is not a PDDL problem"
            )
    facts: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for fact in sections[":init"]:
        if isinstance(fact, list) and fact[0] != "=":
            facts[str(fact[0])].add(tuple(str(a) for a in fact[1:]))
    goal = _goal(sections[":goal"])
    return _layout(facts, goal, task.group(1) if task else "")


def problem_text(spec: GameSpec, standpoints: Mapping[int, int] | None = None) -> str:
    """The PDDL problem of a spec. `standpoints`: receptacle index -> standpoint number (> 0), to
    put several receptacles at one; None gives each its own, as `layout_of` does."""
    t = load_tables()
    layout = layout_of(spec)
    where = standpoints or {r: recep.location for r, recep in enumerate(layout.receptacles)}
    recep_ids = _ids(spec.receptacles)
    item_ids = _ids(tuple(item.type for item in layout.items))
    init: list[str] = [f"(atLocation agent1 loc|{layout.start})"]
    for r, (rid, recep) in enumerate(zip(recep_ids, layout.receptacles, strict=True)):
        init.append(f"(receptacleType {rid} {recep.type}Type)")
        init.append(f"(receptacleAtLocation {rid} loc|{where[r]})")
        if recep.openable:
            init.append(f"(openable {rid})")
    for oid, item in zip(item_ids, layout.items, strict=True):
        init.append(f"(objectType {oid} {item.type}Type)")
        if item.container:
            init.append(f"(isReceptacleObject {oid})")
        for flag in ("pickupable", "cleanable", "heatable", "coolable", "toggleable", "sliceable"):
            if getattr(item, flag):
                init.append(f"({flag} {oid})")
        for r in item.inside:
            init.append(f"(inReceptacle {oid} {recep_ids[r]})")
            init.append(f"(objectAtLocation {oid} loc|{where[r]})")
    init += [f"(canContain {r}Type {o}Type)" for r, o in sorted(layout.can_contain)]
    objects = ["agent1 # agent"]
    objects += [f"{kind}Type # otype" for kind in t.object_types]
    objects += [f"{kind}Type # rtype" for kind in t.receptacle_types]
    objects += [f"{oid} # object" for oid in item_ids]
    objects += [f"{rid} # receptacle" for rid in recep_ids]
    objects += [f"loc|{n} # location" for n in sorted({layout.start, *where.values()})]
    text = (
        f"(define (problem plan_{spec.scene})\n(:domain alfred)\n(:objects\n"
        + "\n".join(objects)
        + "\n)\n(:init\n"
        + "\n".join(init)
        + "\n)\n"
        + _goal_text(spec.goal)
        + "\n)\n"
    )
    table = dict(_ESCAPES)
    return re.sub("[-#|+.,]", lambda found: table[found.group(0)], text)


def game_json(
    spec: GameSpec, domain: str, grammar: str, standpoints: Mapping[int, int] | None = None
) -> dict[str, Any]:
    """The `.tw-pddl` game of a spec. `domain`, `grammar`: texts of alfworld's alfred.pddl and
    alfred.twl2, which the real engine needs and this package does not ship."""
    return {
        "pddl_domain": domain,
        "grammar": grammar.replace("UNKNOWN GOAL.", spec.instruction),
        "pddl_problem": problem_text(spec, standpoints),
        "solvable": None,
        "walkthrough": None,
    }


def write_game(
    spec: GameSpec,
    root: Path,
    domain: str,
    grammar: str,
    standpoints: Mapping[int, int] | None = None,
) -> Path:
    """Write a spec in ALFWorld's layout below `root`; returns the path of game.tw-pddl."""
    goal = spec.goal
    kind = load_tables().task_types[goal.task_type].alfworld
    name = f"{kind}-{goal.target}-None-{goal.parent or goal.lamp}-{spec.scene}"
    trial = "trial_" + re.sub(r"\W+", "_", spec.seed)
    folder = root / name / trial
    folder.mkdir(parents=True, exist_ok=True)
    trajectory = {
        "task_id": trial,
        "task_type": kind,
        "pddl_params": {
            "object_target": goal.target,
            "parent_target": goal.parent,
            "toggle_target": goal.lamp,
            "mrecep_target": "",
            "object_sliced": False,
        },
        "scene": {"floor_plan": f"FloorPlan{spec.scene}", "scene_num": spec.scene},
        "turk_annotations": {"anns": [{"task_desc": spec.instruction.removesuffix(".")}]},
    }
    game = game_json(spec, domain, grammar, standpoints)
    (folder / "traj_data.json").write_text(json.dumps(trajectory), encoding="utf-8")
    (folder / "initial_state.pddl").write_text(game["pddl_problem"], encoding="utf-8")
    path = folder / "game.tw-pddl"
    path.write_text(json.dumps(game), encoding="utf-8")
    return path


def _parse(text: str) -> list[Sexp]:
    stack: list[list[Sexp]] = [[]]
    for token in _TOKEN.findall(re.sub(r";.*", "", text).lower()):
        if token == "(":
            stack.append([])
        elif token == ")":
            if len(stack) == 1:
                raise PddlError("pddl_problem has a ')' without its '('")
            done = stack.pop()
            stack[-1].append(done)
        else:
            stack[-1].append(token)
    if len(stack) != 1 or not stack[0] or not isinstance(stack[0][0], list):
        raise PddlError("pddl_problem is no balanced s-expression; expected (define (problem …) …)")
    return stack[0][0]


def _goal(section: list[Sexp]) -> Goal:
    atoms: list[list[str]] = []

    def collect(node: Sexp) -> None:
        if isinstance(node, list):
            if node and all(isinstance(part, str) for part in node):
                atoms.append([str(part) for part in node])
            for part in node:
                collect(part)

    for node in section:
        collect(node)
    names = {atom[0] for atom in atoms}
    if unsupported := names & {"issliced", "inreceptacleobject"}:
        raise PddlError(
            f"goal asks for {', '.join(sorted(unsupported))}; sliced objects and movable "
            "receptacles are none of the six task types (ALFWorld leaves them out as well)"
        )
    types = {a[1]: a[2].removesuffix("type") for a in atoms if a[0] == "objecttype"}
    parents = {a[2].removesuffix("type") for a in atoms if a[0] == "receptacletype"}
    if "istoggled" in names:
        lamp_variable = next(a[1] for a in atoms if a[0] == "istoggled")
        lamp = types.pop(lamp_variable)
        return Goal("look_light", next(iter(types.values())), lamp=lamp)
    if len(set(types.values())) != 1 or len(parents) != 1 or len(types) > 2:
        raise PddlError(
            f"goal names object types {sorted(types.values())} and receptacle types "
            f"{sorted(parents)}; expected one of each"
        )
    kind = "pick_two" if len(types) == 2 else "pick_place"
    for state, name in (("isclean", "pick_clean"), ("ishot", "pick_heat"), ("iscool", "pick_cool")):
        if state in names:
            kind = name
    return Goal(kind, next(iter(types.values())), next(iter(parents)))


def _layout(facts: Mapping[str, set[tuple[str, ...]]], goal: Goal, instruction: str) -> Layout:
    def ones(name: str) -> set[str]:
        return {args[0] for args in facts.get(name, ())}

    def pairs(name: str) -> dict[str, str]:
        return {args[0]: args[1] for args in facts.get(name, ())}

    ids = {arg for found in facts.values() for args in found for arg in args}
    names = _names(ids)
    place = pairs("receptacleatlocation")
    numbers = {loc: n for n, loc in enumerate(sorted(i for i in ids if "loc" in i[:3]))}
    recep_type, item_type = pairs("receptacletype"), pairs("objecttype")
    receptacle_ids = sorted(place)
    item_ids = sorted(item_type)
    recep_index = {rid: n for n, rid in enumerate(receptacle_ids)}
    item_index = {oid: n for n, oid in enumerate(item_ids)}
    openable, opened = ones("openable"), ones("opened")
    receptacles = tuple(
        Receptacle(
            names[rid],
            recep_type.get(rid, "").removesuffix("type"),
            numbers[place[rid]],
            rid in openable,
            rid in opened,
        )
        for rid in receptacle_ids
    )
    inside: dict[str, list[int]] = defaultdict(list)
    for oid, rid in sorted(facts.get("inreceptacle", ())):
        inside[oid].append(recep_index[rid])
    locations: dict[str, list[int]] = defaultdict(list)
    for oid, loc in sorted(facts.get("objectatlocation", ())):
        locations[oid].append(numbers[loc])
    within = pairs("inreceptacleobject")
    flags = {
        "pickupable": ones("pickupable"),
        "cleanable": ones("cleanable"),
        "heatable": ones("heatable"),
        "coolable": ones("coolable"),
        "toggleable": ones("toggleable"),
        "sliceable": ones("sliceable"),
        "container": ones("isreceptacleobject"),
        "clean": ones("isclean"),
        "hot": ones("ishot"),
        "cool": ones("iscool"),
        "toggled": ones("istoggled"),
        "sliced": ones("issliced"),
    }
    items = tuple(
        Item(
            name=names[oid],
            type=item_type[oid].removesuffix("type"),
            inside=tuple(inside[oid]),
            locations=tuple(locations[oid]),
            within=item_index[within[oid]] if oid in within else None,
            **{flag: oid in members for flag, members in flags.items()},
        )
        for oid in item_ids
    )
    can = frozenset(
        (r.removesuffix("type"), o.removesuffix("type")) for r, o in facts.get("cancontain", ())
    )
    held = next((item_index[args[1]] for args in facts.get("holds", ())), None)
    start = next((numbers[args[1]] for args in facts.get("atlocation", ())), None)
    if start is None:
        raise PddlError("pddl_problem has no (atLocation agent location) fact in :init")
    return Layout(goal, instruction, receptacles, items, can, start, held)


def _names(ids: set[str]) -> dict[str, str]:
    """ALFWorld's demangler: the type before the first bar, numbered downwards in id order."""

    def base(identifier: str) -> str:
        kind = identifier.split("_bar_", 1)[0]
        return f"{kind}basin" if "basin" in identifier else kind

    ordered = sorted(i for i in ids if "_bar_" in i)
    left = Counter(base(i) for i in ordered)
    names = {}
    for identifier in ordered:
        kind = base(identifier)
        names[identifier] = f"{kind} {left[kind]}"
        left[kind] -= 1
    return names


def _ids(types: tuple[str, ...]) -> list[str]:
    """Ids in AI2-THOR's form whose sorted order is the given one within each type."""
    seen: Counter[str] = Counter()
    ids = []
    for kind in types:
        position = f"+{seen[kind]:02d}.00|+00.00|+00.00"
        seen[kind] += 1
        whole = kind.removesuffix("basin")
        ids.append(f"{whole}|{position}|{kind}" if whole != kind else f"{kind}|{position}")
    return ids


def _goal_text(goal: Goal) -> str:
    """goal_library.py's condition of the task type."""
    target, parent, lamp = f"{goal.target}Type", f"{goal.parent}Type", f"{goal.lamp}Type"
    placed = f"(objectType ?o {target}) (receptacleType ?r {parent}) (inReceptacle ?o ?r)"
    states = {
        "pick_place": "",
        "pick_clean": "(cleanable ?o) (isClean ?o) ",
        "pick_heat": "(heatable ?o) (isHot ?o) ",
        "pick_cool": "(coolable ?o) (isCool ?o) ",
    }
    if goal.task_type in states:
        body = (
            f"(exists (?r # receptacle) (exists (?o # object) "
            f"(and {states[goal.task_type]}{placed})))"
        )
    elif goal.task_type == "pick_two":
        body = (
            f"(exists (?r # receptacle) (exists (?o # object) (and {placed} "
            f"(exists (?o2 # object) (and (not (= ?o ?o2)) (objectType ?o2 {target}) "
            f"(receptacleType ?r {parent}) (inReceptacle ?o2 ?r))))))"
        )
    else:
        body = (
            "(exists (?ot # object ?r # receptacle ?a # agent ?l # location) "
            f"(and (objectType ?ot {lamp}) (toggleable ?ot) (isToggled ?ot) "
            "(receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?ot ?r))) "
            f"(exists (?o # object ?a # agent) (and (objectType ?o {target}) (holds ?a ?o)))"
        )
    return f"(:goal (and {body}))"
