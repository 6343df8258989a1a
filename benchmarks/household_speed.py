"""Speed of the household world, and its ratio to ALFWorld's own engine where that is installed.

    python benchmarks/household_speed.py [--games 60] [--steps 30]

Plays random admissible commands, the same in both engines; times are CPU seconds of this process.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from rollout.envs.household import HouseholdEnv
from rollout.envs.household.layout import GameSpec
from rollout.envs.household.pddl import write_game
from rollout.task import Task


def clock() -> float:
    return time.process_time()


def ours(env: HouseholdEnv, tasks: list[Task], steps: int) -> dict[str, float]:
    """Milliseconds of a reset (with opening the task) and of a step (with score and choices)."""
    rng = random.Random(0)
    reset_s = step_s = 0.0
    taken = 0
    for task in tasks:
        start = clock()
        session = env.open(task, 0)
        seen = session.reset()
        reset_s += clock() - start
        for _ in range(steps):
            if seen.done:
                break
            command = rng.choice(seen.choices)
            start = clock()
            seen = session.step("act", {"command": command})
            step_s += clock() - start
            taken += 1
    return {"reset_ms": 1e3 * reset_s / len(tasks), "step_ms": 1e3 * step_s / taken}


def theirs(tasks: list[Task], steps: int) -> dict[str, float]:
    """The same play in ALFWorld's engine."""
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
    from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH
    from textworld.envs import PddlEnv

    domain = Path(ALFRED_PDDL_PATH).read_text(encoding="utf-8")
    grammar = Path(ALFRED_TWL2_PATH).read_text(encoding="utf-8")
    engine: Any = AlfredDemangler(
        PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True)), shuffle=False
    )
    rng = random.Random(0)
    reset_s = step_s = 0.0
    taken = 0
    with tempfile.TemporaryDirectory() as root:
        for task in tasks:
            path = write_game(GameSpec.from_json(task.payload), Path(root), domain, grammar)
            start = clock()
            engine.load(str(path))
            state = engine.reset()
            reset_s += clock() - start
            for _ in range(steps):
                command = rng.choice(state.admissible_commands)
                start = clock()
                state, _, done = engine.step(command)
                step_s += clock() - start
                taken += 1
                if done:
                    break
    return {"reset_ms": 1e3 * reset_s / len(tasks), "step_ms": 1e3 * step_s / taken}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--games", type=int, default=60, help="games a knob (default 60)")
    parser.add_argument("--steps", type=int, default=30, help="steps a game (default 30)")
    args = parser.parse_args()
    installed = all(importlib.util.find_spec(name) for name in ("textworld", "alfworld"))
    for knob in (4, 8, None):
        env = HouseholdEnv(knob, {"evolve": args.games}, max_steps=args.steps)
        start = clock()
        tasks = list(env.tasks("evolve"))
        row: dict[str, Any] = {
            "max_receptacles": knob,
            "generate_ms": 1e3 * (clock() - start) / len(tasks),
        }
        row |= ours(env, tasks, args.steps)
        row["steps_per_s"] = 1e3 / row["step_ms"]
        if installed:
            real = theirs(tasks[: max(1, args.games // 10)], args.steps)
            row |= {f"alfworld_{name}": value for name, value in real.items()}
            row["times_faster"] = real["step_ms"] / row["step_ms"]
        print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}))
    if not installed:
        print("ALFWorld's engine is not installed (extra [alfworld]): no ratio")


if __name__ == "__main__":
    main()
