import os
import subprocess
import sys
from itertools import product

import pytest

from rollout.envs.household import HouseholdEnv
from rollout.envs.household.generator import Unsatisfiable, generate, held_out, possible_goals
from rollout.envs.household.goals import STATIONS
from rollout.envs.household.layout import GameSpec, SpecError
from rollout.envs.household.tables import load_tables

FINGERPRINT = """
import hashlib, json
from rollout.envs.household import HouseholdEnv
for knob in (4, 8, None):
    env = HouseholdEnv(knob, counts=dict.fromkeys(("evolve", "valid_seen", "heldout", "ood"), 24))
    tasks = [t for s in ("evolve", "valid_seen", "heldout", "ood") for t in env.tasks(s)]
    text = json.dumps([(t.id, t.view.instruction, dict(t.payload)) for t in tasks])
    print(knob, hashlib.sha256(text.encode()).hexdigest()[:16])
"""
# A change here changes every task of every user: say so in the CHANGELOG.
GOLDEN = """\
4 09cf0f4c7f653135
8 3e1a67703c761394
None 12deb2370a945585
"""


@pytest.mark.parametrize("hash_seed", ["0", "12345"])
def test_tasks_are_the_same_in_every_process(hash_seed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FINGERPRINT],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
    )
    assert done.stdout == GOLDEN


def test_a_room_that_cannot_host_a_task_type_is_refused_with_its_name() -> None:
    with pytest.raises(Unsatisfiable, match="scene 401 is a bathroom"):
        generate("pick_heat", 401, "s")


def test_an_unknown_scene_or_task_type_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SpecError, match=r"scene 99 is unknown; expected 1-30"):
        generate("pick_place", 99, "s")
    with pytest.raises(SpecError, match=r"task type 'pick' is unknown; expected one of pick_place"):
        generate("pick", 1, "s")


@pytest.mark.parametrize("knob", [4, 8, None])
def test_a_generated_game_is_never_solved_at_the_start_and_has_what_it_needs(
    knob: int | None,
) -> None:
    tables = load_tables()
    made = 0
    for task_type, number in product(tables.task_types, (1, 12, 205, 330, 410)):
        try:
            spec = generate(task_type, number, "needs", knob)
        except Unsatisfiable:
            continue
        made += 1
        goal = spec.goal
        hosts = [spec.receptacles[where] for kind, where in spec.objects if kind == goal.target]
        assert len(hosts) >= (2 if task_type == "pick_two" else 1)
        assert goal.parent not in hosts
        assert all(tables.fits(goal.target, host) for host in hosts)
        assert not goal.parent or goal.parent in spec.receptacles
        assert not goal.lamp or goal.lamp in {kind for kind, _ in spec.objects}
        if task_type in STATIONS:
            assert STATIONS[task_type][1] in spec.receptacles
        if knob is not None:
            assert len(spec.receptacles) <= knob
    assert made >= 10


def test_all_objects_are_where_the_affordances_allow_them() -> None:
    tables = load_tables()
    for task in HouseholdEnv(8, {"evolve": 60}).tasks("evolve"):
        spec = GameSpec.from_json(task.payload)
        for kind, where in spec.objects:
            host = spec.receptacles[where]
            assert tables.fits(kind, host) or (
                kind in tables.toggleable and host in tables.lamp_hosts
            )


def test_about_fifteen_percent_of_the_pairs_of_each_task_type_are_held_out() -> None:
    tables = load_tables()
    for task_type in tables.task_types:
        pairs = {
            (g.target, g.parent or g.lamp)
            for plan in tables.scenes.values()
            if plan.room in tables.task_types[task_type].rooms
            for g in possible_goals(task_type, plan, "all")
        }
        share = sum(held_out(task_type, *pair) for pair in pairs) / len(pairs)
        assert 0.05 < share < 0.25, (task_type, share)


def test_a_spec_survives_json_and_another_schema_is_refused() -> None:
    spec = generate("pick_clean", 3, "round trip", 4)
    assert GameSpec.from_json(spec.to_json()) == spec
    with pytest.raises(SpecError, match=r"schema 99, expected 1"):
        GameSpec.from_json({**spec.to_json(), "schema": 99})
    broken = spec.to_json()
    del broken["objects"]
    with pytest.raises(SpecError, match="'objects'"):
        GameSpec.from_json(broken)
