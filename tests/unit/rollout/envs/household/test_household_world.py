import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout.envs.household.generator import generate
from rollout.envs.household.goals import Goal, InstructionError, goal_of, satisfied
from rollout.envs.household.layout import GameSpec
from rollout.envs.household.pddl import PddlError, game_json
from rollout.envs.household.tables import load_tables
from rollout.envs.household.world import NOTHING_HAPPENS, World

KITCHEN = GameSpec(
    goal=Goal("pick_heat", "apple", "fridge"),
    scene=1,
    room="kitchen",
    seed="fixture",
    instruction="put a hot apple in fridge.",
    receptacles=("countertop", "countertop", "fridge", "microwave", "sinkbasin"),
    objects=(("apple", 0), ("apple", 1), ("knife", 0), ("mug", 3), ("potato", 0)),
)
SCRIPT = """
> look
You are in the middle of a room. Looking quickly around you, you see nothing.
> inventory
You are not carrying anything.
> go to countertop 2
You arrive at countertop 2. On the countertop 2, you see a apple 2, a knife 1, and a potato 1.
> look
You are facing the countertop 2. Next to it, you see nothing.
> take apple 1 from countertop 1
Nothing happens.
> take knife 1 from countertop 2
You pick up the knife 1 from the countertop 2.
> slice potato 1 with knife 1
You sliced the potato 1 with the knife 1.
> take apple 2 from countertop 2
Nothing happens.
> examine knife 1
There's nothing special about knife 1.
> move knife 1 to countertop 2
You move the knife 1 to the countertop 2.
> take potato 1 from countertop 2
You pick up the potato 1 from the countertop 2.
> go to sinkbasin 1
You arrive at sinkbasin 1. On the sinkbasin 1, you see nothing.
> clean potato 1 with sinkbasin 1
You clean the potato 1 using the sinkbasin 1.
> examine potato 1
This is a clean sliced potato 1.
> go to fridge 1
You arrive at fridge 1. The fridge 1 is closed.
> cool potato 1 with fridge 1
You cool the potato 1 using the fridge 1.
> examine potato 1
This is a cool and clean sliced potato 1.
> open fridge 1
You open the fridge 1. The fridge 1 is open. In it, you see nothing.
> move potato 1 to fridge 1
You move the potato 1 to the fridge 1.
> examine fridge 1
The fridge 1 is open. In it, you see a potato 1.
> go to microwave 1
You arrive at microwave 1. The microwave 1 is closed.
> open microwave 1
You open the microwave 1. The microwave 1 is open. In it, you see a mug 1.
> take mug 1 from microwave 1
You pick up the mug 1 from the microwave 1.
> examine mug 1
This is a normal mug 1. In it, you see nothing.
> inventory
You are carrying: a mug 1.
> close microwave 1
You close the microwave 1.
"""


def test_a_session_reads_as_in_alfworld() -> None:
    world = World.from_spec(KITCHEN)
    assert world.reset() == (
        "-= Welcome to TextWorld, ALFRED! =-\n\n"
        "You are in the middle of a room. Looking quickly around you, you see a countertop 2, "
        "a countertop 1, a fridge 1, a microwave 1, and a sinkbasin 1.\n\n"
        "Your task is to: put a hot apple in fridge."
    )
    for exchange in SCRIPT.strip().removeprefix("> ").split("\n> "):
        command, text = exchange.split("\n")
        assert (command, world.step(command)) == (command, text)
        assert not world.won


def test_the_admissible_commands_are_sorted_and_complete() -> None:
    world = World.from_spec(KITCHEN)
    world.step("go to countertop 1")
    world.step("take apple 1 from countertop 1")
    world.step("go to microwave 1")
    assert world.admissible == [
        "examine apple 1",
        "examine microwave 1",
        "go to countertop 1",
        "go to countertop 2",
        "go to fridge 1",
        "go to sinkbasin 1",
        "heat apple 1 with microwave 1",
        "help",
        "inventory",
        "look",
        "open microwave 1",
    ]


def test_heating_undoes_cooling() -> None:
    world = World.from_spec(KITCHEN)
    for command in (
        "go to countertop 1",
        "take apple 1 from countertop 1",
        "go to fridge 1",
        "cool apple 1 with fridge 1",
        "go to microwave 1",
        "heat apple 1 with microwave 1",
    ):
        assert world.step(command) != NOTHING_HAPPENS
    assert world.step("examine apple 1") == "This is a hot apple 1."


def test_the_goal_holds_once_the_hot_apple_is_in_the_fridge() -> None:
    world = World.from_spec(KITCHEN)
    for command in (
        "go to countertop 1",
        "take apple 1 from countertop 1",
        "go to microwave 1",
        "heat apple 1 with microwave 1",
        "go to fridge 1",
        "open fridge 1",
    ):
        world.step(command)
        assert not world.won
    world.step("move apple 1 to fridge 1")
    assert world.won
    assert not satisfied(Goal("pick_cool", "apple", "fridge"), world)
    assert not satisfied(Goal("pick_two", "apple", "fridge"), world)
    assert satisfied(Goal("pick_place", "apple", "fridge"), world)


def test_every_template_reads_back_as_its_goal() -> None:
    for name, task_type in load_tables().task_types.items():
        for template in task_type.templates:
            sentence = template.format(obj="mug", recep="desk", toggle="desklamp")
            look = name == "look_light"
            expected = Goal(name, "mug", "" if look else "desk", "desklamp" if look else "")
            assert goal_of(f"{sentence}.") == expected


def test_a_sentence_that_is_no_task_is_refused_with_an_example() -> None:
    with pytest.raises(InstructionError, match=r"'dance'.*put a clean apple in fridge"):
        goal_of("dance")


SCENES = st.sampled_from(sorted(load_tables().scenes))
KNOBS = st.sampled_from([4, 8, None])


@settings(max_examples=40, deadline=None)
@given(scene=SCENES, knob=KNOBS, seed=st.integers(0, 10**6))
def test_random_play_keeps_the_laws_of_the_world(scene: int, knob: int | None, seed: int) -> None:
    world = World.from_spec(generate("pick_place", scene, str(seed), knob, "all"))
    rng = random.Random(seed)
    everything = Counter(range(len(world.items)))
    for _ in range(40):
        assert world.admissible == sorted(set(world.admissible))
        command = rng.choice(world.admissible)
        assert world.step(command) != NOTHING_HAPPENS
        places = Counter(i for inside in world.contents for i in inside)
        if world.held is not None:
            places[world.held] += 1
        assert places == everything
        before = list(world.admissible)
        assert world.step(f"please {command}") == NOTHING_HAPPENS
        assert world.admissible == before


@settings(max_examples=20, deadline=None)
@given(scene=SCENES, knob=KNOBS, seed=st.integers(0, 10**6))
def test_a_game_read_back_from_pddl_plays_the_same(scene: int, knob: int | None, seed: int) -> None:
    spec = generate("pick_two", scene, str(seed), knob, "all")
    game = game_json(spec, "", 'x "Your task is to: UNKNOWN GOAL."')
    ours, theirs = World.from_spec(spec), World.from_pddl(game)
    assert theirs.layout.goal == spec.goal
    assert ours.reset() == theirs.reset()
    rng = random.Random(seed)
    for _ in range(30):
        assert ours.admissible == theirs.admissible
        command = rng.choice(ours.admissible)
        assert ours.step(command) == theirs.step(command)
        assert ours.won == theirs.won


@pytest.mark.parametrize(
    "task_type", ["pick_place", "look_light", "pick_clean", "pick_heat", "pick_cool", "pick_two"]
)
def test_each_goal_survives_pddl(task_type: str) -> None:
    scene = 301 if task_type == "look_light" else 5
    spec = generate(task_type, scene, "pddl", None, "all")
    layout = World.from_pddl(game_json(spec, "", '"Your task is to: UNKNOWN GOAL."')).layout
    assert (layout.goal, layout.instruction) == (spec.goal, spec.instruction)


def test_a_broken_or_foreign_game_file_is_refused_by_name() -> None:
    game = game_json(KITCHEN, "", "")
    with pytest.raises(PddlError, match="lacks 'grammar'"):
        World.from_pddl({"pddl_problem": game["pddl_problem"]})
    with pytest.raises(PddlError, match="balanced"):
        World.from_pddl({**game, "pddl_problem": "(define (problem"})
    with pytest.raises(PddlError, match=r"no \(:init"):
        World.from_pddl({**game, "pddl_problem": "(define (:goal (and)))"})
    sliced = game["pddl_problem"].replace("(isHot ?o)", "(isHot ?o) (isSliced ?o)")
    with pytest.raises(PddlError, match="issliced"):
        World.from_pddl({**game, "pddl_problem": sliced})
