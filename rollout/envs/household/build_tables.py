"""Builds data/tables.json from an installed `alfworld` wheel: python build_tables.py OUT.

Run once a release of the source, never at run time. The tables are ALFWorld's own constants
(floor plans, affordances, goal templates) in a compact form, under its MIT licence, which the
file carries. All type names are lower case, as the texts and the PDDL state write them.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
from pathlib import Path
from typing import Any

# Short task type -> ALFWorld's name.
TASK_TYPES = {
    "pick_place": "pick_and_place_simple",
    "look_light": "look_at_obj_in_light",
    "pick_clean": "pick_clean_then_place_in_recep",
    "pick_heat": "pick_heat_then_place_in_recep",
    "pick_cool": "pick_cool_then_place_in_recep",
    "pick_two": "pick_two_obj_and_place",
}
ROOMS = {
    "Kitchen": "kitchen",
    "LivingRoom": "livingroom",
    "Bedroom": "bedroom",
    "Bathroom": "bathroom",
}
# Where a lamp may stand: ours, since ALFWorld takes lamp positions from the 3-D simulator.
LAMP_HOSTS = ("coffeetable", "desk", "diningtable", "dresser", "shelf", "sidetable")
BASINS = ("SinkBasin", "BathtubBasin")


def lower(names: Any) -> list[str]:
    return sorted(name.lower() for name in names)


def receptacle_type(receptacle_id: str) -> str:
    """`Sink|+00.1|…|SinkBasin` is a SinkBasin; any other id starts with its type."""
    parts = receptacle_id.split("|")
    return parts[-1] if parts[-1] in BASINS else parts[0]


def build(package: Path, version: str, licence: str) -> dict[str, Any]:
    """The tables as one JSON-able mapping. `package`: the directory of the `alfworld` package."""
    from alfworld.gen import constants as C
    from alfworld.gen import goal_library as G

    fixed = C.RECEPTACLES - C.MOVABLE_RECEPTACLES_SET
    holds = {t: C.VAL_RECEPTACLE_OBJECTS[t] & C.OBJECTS_SET for t in C.VAL_RECEPTACLE_OBJECTS}
    portable = set().union(*(v for t, v in holds.items() if t in fixed)) - fixed
    lamps = C.VAL_ACTION_OBJECTS["Toggleable"]

    scenes: dict[str, Any] = {}
    for scene in sorted(C.SCENE_NUMBERS):
        layouts = package / "gen" / "layouts"
        points = json.loads((layouts / f"FloorPlan{scene}-openable.json").read_text())
        types = set(json.loads((layouts / f"FloorPlan{scene}-objects.json").read_text()))
        counts: dict[str, int] = {}
        for rid in points:
            if (kind := receptacle_type(rid)) in fixed:
                counts[kind] = counts.get(kind, 0) + 1
        for kind in types & fixed - set(counts):  # in the room, but without a recorded standpoint
            counts[kind] = 4 if kind == "StoveBurner" else 1
        room = next(name for name, numbers in C.SCENE_TYPE.items() if scene in numbers)
        scenes[str(scene)] = {
            "room": ROOMS[room],
            "receptacles": {k.lower(): n for k, n in sorted(counts.items())},
            "objects": lower(types & portable),
            "lamps": lower(types & lamps),
        }

    affordances = {
        name.lower(): lower(members & (portable | lamps))
        for name, members in C.VAL_ACTION_OBJECTS.items()
    }
    return {
        "schema": 1,
        "source": {
            "package": "alfworld",
            "version": version,
            "url": "https://github.com/alfworld/alfworld",
            "derived_from": [
                "alfworld/gen/constants.py",
                "alfworld/gen/goal_library.py",
                "alfworld/gen/layouts/*.json",
            ],
            "changes": "names lower-cased; receptacles counted by type; lamp_hosts added",
            "license": "MIT",
            "license_text": licence,
        },
        "task_types": {
            short: {
                "alfworld": name,
                "rooms": sorted(ROOMS[r] for r in C.GOALS_VALID[name]),
                "templates": G.gdict[name]["templates"],
            }
            for short, name in TASK_TYPES.items()
        },
        "holds": {t.lower(): lower(v & portable) for t, v in sorted(holds.items()) if t in fixed},
        "receptacle_types": lower(fixed),
        "openable": lower(C.OPENABLE_CLASS_SET & fixed),
        "containers": lower(C.MOVABLE_RECEPTACLES_SET),
        "lamp_hosts": list(LAMP_HOSTS),
        "affordances": affordances,
        "max_instances": C.MAX_NUM_OF_OBJ_INSTANCES,
        "scenes": scenes,
    }


def dump(tables: dict[str, Any]) -> str:
    """Indented two levels deep, one line below: compact, and still readable in a diff."""
    lines = []
    for key, value in tables.items():
        if isinstance(value, dict):
            inner = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items())
            lines.append(f"{json.dumps(key)}: {{\n{inner}\n}}")
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    out: Path = parser.parse_args().out
    import alfworld

    dist = importlib.metadata.distribution("alfworld")
    notice = next(f for f in dist.files or () if f.name.upper().startswith("LICENSE"))
    licence = Path(str(notice.locate())).read_text(encoding="utf-8")
    package = Path(alfworld.__path__[0])
    out.write_text(dump(build(package, dist.version, licence)), encoding="utf-8")


if __name__ == "__main__":
    main()
