"""Variant isolation on a task set built to conflict: one harness stalls, several do not.

Household tasks of three types under a scripted policy (an expert's next command with probability
`SKILL` where it is offered, else any offered one). The catalogue has two edits: one drops the
lamp's verb, which helps to carry things and makes every look_light task impossible; the other drops
`move`, which is the reverse. Both recipes evolve from the same harness on the same tasks and seeds:
`aegis_catalogue` with this catalogue, and the same with the router of `isolation`. Held-out tasks
are routed by their features.

    python benchmarks/isolation.py [--seeds 5] [--rounds 4]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
from collections.abc import Sequence
from pathlib import Path

import yaml

from coevo.evidence import task_key
from coevo.rollouts import Serving
from harness.bundle import Bundle, Component
from harness.evolve.engine import evolve
from harness.evolve.journal import Journal
from harness.evolve.recipe import RECIPES, Parts, Recipe, parse_recipe
from harness.evolve.records import Episode, EvalRequest
from harness.evolve.state import EvolutionState
from harness.evolve.traces import fired, trace_steps
from harness.host import ModelReply, ModelRequest, ToolReply, ToolRequest
from harness.metered import Budgets
from harness.sandbox.inprocess import run_inprocess
from rollout.envs.base import Observation, Session
from rollout.envs.household import HouseholdEnv
from rollout.envs.household.oracle import Explorer
from rollout.episode import reply
from rollout.spec import derive_seed
from rollout.task import Task

HERE = Path(__file__).parent
TYPES = ("look_light", "pick_place", "pick_two")
MAX_STEPS = 30
SKILL = 0.3
PER_ROUND = 30
SAMPLES = 4
HELDOUT = 60
T_95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 8: 2.36, 10: 2.26}
"""Number of seeds -> 97.5 % quantile of Student's t."""

H0 = Bundle(
    (
        Component(
            "history_window",
            "context_mgmt",
            "harness.processors.history_window:HistoryWindow",
            {"turns": 1},
        ),
    )
)


class Chooser:
    """The host of one episode: the scripted policy above, and the environment."""

    def __init__(self, session: Session, first: Observation, instruction: str, seed: int) -> None:
        self.session = session
        self.rng = random.Random(seed)
        self.expert = Explorer(instruction, first.choices)

    async def model(self, request: ModelRequest) -> ModelReply:
        offered = request.messages[-1].choices
        skilled, other = self.rng.random() < SKILL, self.rng.choice(offered)
        command = self.expert.command()
        return ModelReply(command if skilled and command in offered else other)

    async def tool(self, request: ToolRequest) -> ToolReply:
        seen = self.session.step(request.name, request.input)
        self.expert.observe(seen.text, seen.choices)
        return reply(seen)


class World:
    """Rolls out in this process; an episode that was run is not run again."""

    def __init__(self, seed: int) -> None:
        counts = {"evolve": 4 * PER_ROUND, "heldout": HELDOUT}
        self.env = HouseholdEnv(4, counts, max_steps=MAX_STEPS, task_types=TYPES, seed=seed)
        self.seed = seed
        self.tasks = {task_key(task.id): task for task in self.env.tasks("evolve")}
        self.known: dict[tuple[str, str, int], Episode] = {}

    async def run(self, bundle: Bundle, task: Task, seed: int) -> Episode:
        at = (bundle.id, task.id, seed)
        if at not in self.known:
            session = self.env.open(task, seed)
            first = session.reset()
            host = Chooser(session, first, task.view.instruction, seed)
            ran = await run_inprocess(
                bundle, task.view, reply(first), host, seed=seed,
                budgets=Budgets(max_steps=MAX_STEPS), trace_level="full",
            )  # fmt: skip
            score = session.score()
            self.known[at] = Episode(
                task_key(task.id), seed, bundle.id, ran.result.status, score.success, score.reward,
                ran.result.steps, task.view.instruction, dict(task.features),
                trace_steps(ran.trace or {}), fired(ran.trace or {}), ran.result.steps,
            )  # fmt: skip
        return self.known[at]

    async def runs(
        self, bundles: Sequence[Bundle], tasks: Sequence[Task], repeats: int, draw: str
    ) -> list[Episode]:
        return [
            await self.run(bundle, task, derive_seed(self.seed, draw, task.id, repeat))
            for task in tasks
            for repeat in range(repeats)
            for bundle in bundles
        ]


def recipes() -> dict[str, tuple[Recipe, Parts]]:
    """Both, with the conflicting catalogue."""
    out = {}
    for name in ("aegis_catalogue", "isolation"):
        data = yaml.safe_load((RECIPES / f"{name}.yaml").read_text())
        data["proposer"] = {"catalogue": {"files": ["isolation_catalogue.yaml"], "k": 2}}
        recipe, parts = parse_recipe(data, HERE, name)
        assert parts is not None
        out[name] = (recipe, parts)
    return out


async def run_recipe(
    world: World, recipe: Recipe, parts: Parts, rounds: int
) -> tuple[EvolutionState, list[str]]:
    """The state after the rounds, and a word a round."""
    state = EvolutionState.start(H0)
    words = []
    every = list(world.tasks.values())
    for number in range(rounds):
        batch = every[number * PER_ROUND % len(every) :][:PER_ROUND]
        serving = Serving(state.variants, state.memory.routing, parts.router)
        episodes = [
            run
            for task in batch
            for run in await world.runs(
                [serving.of(task).bundle], [task], SAMPLES, f"round {number}"
            )
        ]

        async def evaluate(request: EvalRequest, number: int = number) -> list[Episode]:
            tasks = [world.tasks[key] for key in request.tasks]
            draw = f"round {number}/{request.purpose}/{request.draw}"
            return await world.runs(request.bundles, tasks, request.repeats, draw)

        rng = random.Random(f"{world.seed}/evolve/{number}")
        result = await evolve(recipe, parts, state, episodes, evaluate, Journal(), rng)
        state = result.state
        shipped = f" ({result.shipped.source.partition(':')[2]})" if result.shipped else ""
        words.append(result.outcome + shipped)
    return state, words


async def held_out(world: World, parts: Parts, state: EvolutionState) -> float:
    """Success on held-out tasks, each under the variant that its features lead to."""
    serving = Serving(state.variants, state.memory.routing, parts.router)
    runs = [
        run
        for task in world.env.tasks("heldout")
        for run in await world.runs([serving.of(task).bundle], [task], 2, "heldout")
    ]
    return statistics.mean(run.success for run in runs)


def interval(values: Sequence[float]) -> str:
    """Mean over seeds with its 95 % interval (Student's t)."""
    n = len(values)
    mean = statistics.mean(values)
    if n not in T_95:
        return f"{mean:+.3f} (no interval for {n} seeds)"
    half = T_95[n] * statistics.stdev(values) / n**0.5
    return f"{mean:+.3f} [{mean - half:+.3f}, {mean + half:+.3f}]"


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()
    gains: dict[str, list[float]] = {}
    for seed in range(given.seeds):
        world = World(seed)
        _, parts = recipes()["aegis_catalogue"]
        start = await held_out(world, parts, EvolutionState.start(H0))
        print(f"seed {seed}: H0 {start:.3f}")
        for name, (recipe, parts) in recipes().items():
            state, words = await run_recipe(world, recipe, parts, given.rounds)
            success = await held_out(world, parts, state)
            gains.setdefault(name, []).append(success - start)
            print(
                f"  {name:16} {success:.3f}  {len(state.variants)} variants; "
                f"rounds: {', '.join(words)}",
                flush=True,
            )
    print(f"held-out success gained over H0, {given.seeds} seeds, 95 % interval:")
    for name, values in gains.items():
        print(f"  {name:16} {interval(values)}")
    both = zip(gains["isolation"], gains["aegis_catalogue"], strict=True)
    print(f"  difference       {interval([a - b for a, b in both])}")


if __name__ == "__main__":
    asyncio.run(main())
