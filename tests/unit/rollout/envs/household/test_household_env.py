import dataclasses
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from rollout.envs import UnknownEnvironment, make_env
from rollout.envs.base import EnvError
from rollout.envs.household import HouseholdEnv
from rollout.envs.household.env import SCENES, HouseholdOptionError
from rollout.envs.household.generator import held_out
from rollout.envs.household.layout import GameSpec, layout_of
from rollout.envs.household.oracle import oracle_plan
from rollout.task import SPLITS, Task

EACH = dict.fromkeys(SPLITS, 60)


@pytest.fixture(scope="module")
def env() -> HouseholdEnv:
    return HouseholdEnv(4, EACH)


def spec_of(task: Task) -> GameSpec:
    return GameSpec.from_json(task.payload)


def test_the_registry_knows_household_and_names_the_nearest_to_a_typo() -> None:
    assert make_env("household", max_receptacles=8).name == "household"
    with pytest.raises(UnknownEnvironment, match="'houshold' is unknown; did you mean 'household'"):
        make_env("houshold")


def test_the_six_task_types_come_in_turn(env: HouseholdEnv) -> None:
    for split in SPLITS:
        kinds = Counter(task.features["task_type"] for task in env.tasks(split))
        assert set(kinds.values()) == {10}
        assert len(kinds) == 6


def test_ids_are_unique_and_say_what_the_task_is(env: HouseholdEnv) -> None:
    ids = [task.id for split in SPLITS for task in env.tasks(split)]
    assert len(set(ids)) == len(ids)
    assert env.tasks("heldout")[2].id == "household/heldout/0002-pick_clean-bathroom"


def test_a_task_can_be_written_as_json_and_its_view_hides_the_payload(env: HouseholdEnv) -> None:
    task = env.tasks("evolve")[0]
    assert json.loads(json.dumps(task.payload)) == task.payload
    assert task.view.action_tool == "act"
    assert task.view.instruction == task.payload["instruction"]
    assert task.id not in repr(task.view)


def test_more_tasks_do_not_change_the_first_ones(env: HouseholdEnv) -> None:
    fewer = HouseholdEnv(4, {"evolve": 5}).tasks("evolve")
    assert list(fewer) == list(env.tasks("evolve")[:5])


def test_the_splits_share_no_game_and_heldout_no_scene(env: HouseholdEnv) -> None:
    scenes = {split: {spec_of(t).scene for t in env.tasks(split)} for split in SPLITS}
    assert not scenes["heldout"] & (scenes["evolve"] | scenes["valid_seen"] | scenes["ood"])
    assert len(SCENES["evolve"]) == 96
    assert len(SCENES["heldout"]) == 24
    games = [
        json.dumps({k: v for k, v in t.payload.items() if k != "seed"})
        for split in SPLITS
        for t in env.tasks(split)
    ]
    assert len(set(games)) == len(games)


def test_ood_alone_has_the_held_out_pairs(env: HouseholdEnv) -> None:
    for split in SPLITS:
        for task in env.tasks(split):
            goal = spec_of(task).goal
            pair = (goal.task_type, goal.target, goal.parent or goal.lamp)
            assert held_out(*pair) == (split == "ood"), task.id


def test_sub_goals_pay_one_by_one_and_only_success_pays_in_full(env: HouseholdEnv) -> None:
    task = env.tasks("evolve")[5]
    assert task.features["task_type"] == "pick_two"
    session = env.open(task, 0)
    assert session.score().reward == 0.0
    paid = []
    for command in oracle_plan(layout_of(spec_of(task))):
        session.step("act", {"command": command})
        paid.append(session.score().reward)
    assert sorted(set(paid) - {0.0}) == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert paid == sorted(paid)
    assert [r == 1.0 for r in paid] == [False] * (len(paid) - 1) + [True]
    assert dict(session.score().detail) == {
        "found": True,
        "holding": True,
        "placed_first": True,
        "holding_second": True,
        "placed": True,
        "steps": len(paid),
    }


def test_the_success_reward_pays_nothing_before_success(env: HouseholdEnv) -> None:
    task = env.tasks("evolve")[0]
    session = HouseholdEnv(4, EACH, reward="success").open(task, 0)
    plan = oracle_plan(layout_of(spec_of(task)))
    for command in plan[:-1]:
        session.step("act", {"command": command})
    assert session.score().reward == 0.0
    session.step("act", {"command": plan[-1]})
    assert session.score().reward == 1.0


@pytest.mark.parametrize(
    ("name", "input", "text"),
    [
        ("act", {"command": "dance"}, "Nothing happens."),
        ("act", {}, "act needs a text 'command'"),
        ("act", {"command": 3}, "act needs a text 'command'"),
        ("fly", {"command": "look"}, "There is no tool 'fly'"),
    ],
)
def test_a_bad_call_is_an_error_observation_that_costs_a_step(
    env: HouseholdEnv, name: str, input: dict[str, object], text: str
) -> None:
    session = env.open(env.tasks("evolve")[0], 0)
    start = session.reset()
    seen = session.step(name, input)
    assert seen.text.startswith(text)
    assert seen.is_error
    assert seen.choices == start.choices
    assert session.score().detail["steps"] == 1


def test_an_episode_ends_after_max_steps_and_stays_ended() -> None:
    env = HouseholdEnv(4, {"evolve": 1}, max_steps=3)
    session = env.open(env.tasks("evolve")[0], 0)
    assert [session.step("act", {"command": "look"}).done for _ in range(3)] == [False, False, True]
    late = session.step("act", {"command": "look"})
    assert (late.done, late.is_error, late.choices) == (True, True, ())
    assert session.score().detail["steps"] == 3
    assert not session.reset().done


def test_wrong_options_and_tasks_are_refused_with_the_reason(env: HouseholdEnv) -> None:
    with pytest.raises(HouseholdOptionError, match="max_receptacles is 3"):
        HouseholdEnv(3)
    with pytest.raises(HouseholdOptionError, match="'train': 5"):
        HouseholdEnv(4, {"train": 5})
    with pytest.raises(HouseholdOptionError, match="max_steps is 0"):
        HouseholdEnv(4, max_steps=0)
    with pytest.raises(HouseholdOptionError, match="reward is 'dense'"):
        HouseholdEnv(4, reward="dense")  # type: ignore[arg-type]
    task = env.tasks("evolve")[0]
    with pytest.raises(EnvError, match="of environment 'shop'"):
        env.open(dataclasses.replace(task, environment="shop"), 0)
    with pytest.raises(EnvError, match="schema None"):
        env.open(dataclasses.replace(task, payload={}), 0)


def test_sessions_run_in_many_threads_as_they_run_alone() -> None:
    fresh = HouseholdEnv(4, EACH)

    def play(number: int) -> list[str]:
        task = fresh.tasks("evolve")[number % 60]
        session = fresh.open(task, 0)
        texts = [session.reset().text]
        for step in range(30):
            if session.score().success:
                break
            choices = session.world.admissible
            texts.append(
                session.step("act", {"command": choices[(step * 7 + 3) % len(choices)]}).text
            )
        return texts

    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(play, range(120)))
    assert together == [play(number) for number in range(120)]


def test_a_step_cost_makes_the_shorter_of_two_ways_worth_more() -> None:
    env = HouseholdEnv(counts={"evolve": 1}, max_steps=10, step_cost=0.02)
    (task,) = env.tasks("evolve")
    short, long = env.open(task, 0), env.open(task, 0)
    for session, steps in ((short, 1), (long, 4)):
        for _ in range(steps):
            session.step("act", {"command": "look"})
    assert short.score().reward - long.score().reward == pytest.approx(0.06)


def test_a_step_cost_that_outweighs_success_is_refused() -> None:
    with pytest.raises(HouseholdOptionError, match=r"step_cost is 0\.2"):
        HouseholdEnv(max_steps=10, step_cost=0.2)


def test_task_types_are_drawn_in_turn_and_unknown_ones_refused() -> None:
    env = HouseholdEnv(counts={"evolve": 4}, task_types=["look_light", "pick_heat"])
    assert [t.features["task_type"] for t in env.tasks("evolve")] == [
        "look_light",
        "pick_heat",
        "look_light",
        "pick_heat",
    ]
    with pytest.raises(HouseholdOptionError, match="pick_freeze"):
        HouseholdEnv(task_types=["pick_freeze"])
