"""The household world against ALFWorld's own engine: same texts, same commands, same success.

Needs the extra [alfworld] (a GPL planner that is built from source); skipped without it.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from rollout.envs.household import HouseholdEnv
from rollout.envs.household.layout import GameSpec, layout_of
from rollout.envs.household.oracle import oracle_plan
from rollout.envs.household.pddl import write_game
from rollout.envs.household.world import World

pytestmark = [pytest.mark.alfworld, pytest.mark.slow]
textworld = pytest.importorskip("textworld", reason="needs the extra [alfworld]: textworld[pddl]")
alfred_tw_env = pytest.importorskip(
    "alfworld.agents.environment.alfred_tw_env", reason="needs the extra [alfworld]: alfworld"
)

GAMES_PER_KNOB = 6
RANDOM_STEPS = 20


@pytest.fixture(scope="module")
def engine() -> Any:
    from textworld.envs import PddlEnv

    infos = textworld.EnvInfos(won=True, admissible_commands=True)
    return alfred_tw_env.AlfredDemangler(PddlEnv(infos), shuffle=False)


def specs(max_receptacles: int | None) -> list[GameSpec]:
    env = HouseholdEnv(
        max_receptacles, {"heldout": GAMES_PER_KNOB // 2, "ood": GAMES_PER_KNOB // 2}, seed=7
    )
    tasks = [*env.tasks("heldout"), *env.tasks("ood")]
    return [GameSpec.from_json(task.payload) for task in tasks]


def write(spec: GameSpec, root: Path, standpoints: dict[int, int] | None = None) -> Path:
    from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH

    domain = Path(ALFRED_PDDL_PATH).read_text(encoding="utf-8")
    grammar = Path(ALFRED_TWL2_PATH).read_text(encoding="utf-8")
    return write_game(spec, root, domain, grammar, standpoints)


def load(path: Path) -> World:
    return World.from_pddl(json.loads(path.read_text(encoding="utf-8")))


def same_play(engine: Any, path: Path, world: World, seed: int) -> int:
    """Play at random in both, mostly commands that change something; returns the steps taken."""
    rng = random.Random(seed)
    engine.load(str(path))
    state = engine.reset()
    assert world.reset() == state.feedback
    for step in range(RANDOM_STEPS):
        choices = list(state.admissible_commands)
        assert world.admissible == choices
        active = [
            c for c in choices if c.split()[0] not in ("go", "examine", "look", "inventory", "help")
        ]
        command = rng.choice(active if active and rng.random() < 0.6 else choices)
        if rng.random() < 0.05:
            command = "put nonsense on table 9"
        state, _, done = engine.step(command)
        assert (command, world.step(command), world.won) == (command, state.feedback, state.won)
        if done:
            return step + 1
    return RANDOM_STEPS


@pytest.mark.parametrize("max_receptacles", [4, 8, None])
def test_random_play_reads_the_same_in_both_engines(
    engine: Any, tmp_path: Path, max_receptacles: int | None
) -> None:
    steps = 0
    for number, spec in enumerate(specs(max_receptacles)):
        path = write(spec, tmp_path)
        steps += same_play(engine, path, World.from_spec(spec), number)
    assert steps > GAMES_PER_KNOB


def test_receptacles_that_share_a_standpoint_read_the_same_in_both_engines(
    engine: Any, tmp_path: Path
) -> None:
    for number, spec in enumerate(specs(8)):
        rng = random.Random(number)
        standpoints = {r: rng.randint(1, 4) for r in range(len(spec.receptacles))}
        path = write(spec, tmp_path, standpoints)
        same_play(engine, path, load(path), number)


def test_the_oracle_solves_our_games_in_the_real_engine(engine: Any, tmp_path: Path) -> None:
    for spec in specs(4) + specs(None):
        engine.load(str(write(spec, tmp_path)))
        state = engine.reset()
        world = World.from_spec(spec)
        for command in oracle_plan(layout_of(spec)):
            assert not state.won
            state, _, _ = engine.step(command)
            assert world.step(command) == state.feedback
        assert state.won
        assert world.won
