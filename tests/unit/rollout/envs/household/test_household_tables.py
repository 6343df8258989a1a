import json
from importlib import resources

from rollout.envs.household.tables import load_tables


def test_there_are_120_floor_plans_thirty_a_room() -> None:
    rooms = [scene.room for scene in load_tables().scenes.values()]
    assert {room: rooms.count(room) for room in set(rooms)} == {
        "kitchen": 30,
        "livingroom": 30,
        "bedroom": 30,
        "bathroom": 30,
    }


def test_floor_plan_1_is_alfworlds() -> None:
    plan = load_tables().scenes[1]
    assert plan.receptacles["cabinet"] == 8
    assert plan.receptacles["fridge"] == 1
    assert "apple" in plan.objects
    assert "stoveknob" not in plan.objects


def test_the_affordances_are_alfworlds() -> None:
    tables = load_tables()
    assert tables.fits("apple", "fridge")
    assert not tables.fits("apple", "toilet")
    assert tables.openable == {"fridge", "cabinet", "microwave", "drawer", "safe"}
    assert tables.toggleable == {"desklamp", "floorlamp"}


def test_the_data_file_carries_its_source_and_the_mit_notice() -> None:
    path = resources.files("rollout.envs.household") / "data" / "tables.json"
    source = json.loads(path.read_text(encoding="utf-8"))["source"]
    assert (source["package"], source["version"], source["license"]) == (
        "alfworld",
        "0.4.2",
        "MIT",
    )
    assert "Copyright (c) 2020 Mohit Shridhar and others" in source["license_text"]
