import random

import pytest

from rollout.envs.household import HouseholdEnv
from rollout.envs.household.layout import GameSpec, layout_of
from rollout.envs.household.oracle import Explorer, NoPlan, oracle_plan
from rollout.task import SPLITS

EACH = dict.fromkeys(SPLITS, 60)


@pytest.mark.parametrize("knob", [4, 8, None])
def test_the_oracle_solves_every_task_of_every_split(knob: int | None) -> None:
    env = HouseholdEnv(knob, EACH)
    for split in SPLITS:
        for task in env.tasks(split):
            session = env.open(task, 0)
            plan = oracle_plan(layout_of(GameSpec.from_json(task.payload)))
            assert 3 <= len(plan) <= 11
            for command in plan:
                seen = session.step("act", {"command": command})
                assert not seen.is_error
            assert seen.done
            assert session.score().success
            assert session.score().reward == 1.0


def test_the_oracle_names_what_is_missing() -> None:
    task = HouseholdEnv(4, {"evolve": 1}).tasks("evolve")[0]
    spec = GameSpec.from_json(task.payload)
    layout = layout_of(
        GameSpec(
            spec.goal, spec.scene, spec.room, spec.seed, spec.instruction, spec.receptacles, ()
        )
    )
    with pytest.raises(NoPlan, match=f"no {spec.goal.target} outside"):
        oracle_plan(layout)


@pytest.mark.parametrize(("knob", "at_least"), [(4, 1.0), (8, 0.98), (None, 0.85)])
def test_the_explorer_solves_nearly_all_from_what_it_reads(
    knob: int | None, at_least: float
) -> None:
    env = HouseholdEnv(knob, EACH)
    wins = total = 0
    for split in SPLITS:
        for task in env.tasks(split):
            session = env.open(task, 0)
            seen = session.reset()
            expert = Explorer(task.view.instruction, seen.choices)
            while not seen.done:
                command = expert.command()
                assert command in seen.choices
                seen = session.step("act", {"command": command})
                expert.observe(seen.text, seen.choices)
            wins += session.score().success
            total += 1
    assert wins >= at_least * total


def test_the_explorer_takes_over_from_a_random_policy() -> None:
    env = HouseholdEnv(4, {"evolve": 60}, max_steps=60)
    wins = 0
    for number, task in enumerate(env.tasks("evolve")):
        session = env.open(task, 0)
        seen = session.reset()
        rng = random.Random(number)
        expert = Explorer(task.view.instruction, seen.choices, rng)
        steps = 0
        while not seen.done:
            command = rng.choice(seen.choices) if steps < 15 else expert.command()
            seen = session.step("act", {"command": command})
            assert not seen.is_error
            expert.observe(seen.text, seen.choices)
            steps += 1
        wins += session.score().success
    assert wins >= 57
