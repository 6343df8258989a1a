"""HouseholdEnv: the household world as an Environment with splits, a tool and a verifier."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from harness.events import TaskView, ToolSpec
from rollout.envs.base import EnvError, Observation, Score
from rollout.envs.household.generator import Pairs, Unsatisfiable, generate
from rollout.envs.household.goals import Progress
from rollout.envs.household.layout import GameSpec, SpecError
from rollout.envs.household.tables import load_tables
from rollout.envs.household.world import NOTHING_HAPPENS, World
from rollout.task import SPLITS, Split, Task

NAME = "household"
ACT = ToolSpec(
    name="act",
    description=(
        "Carry out one command in the household, for example 'go to fridge 1', 'open fridge 1', "
        "'take apple 1 from fridge 1' or 'move apple 1 to sinkbasin 1'. 'help' lists the commands."
    ),
    parameters=MappingProxyType(
        {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "The command."}},
            "required": ["command"],
            "additionalProperties": False,
        }
    ),
)

# Floor plans 1-6 of each room are ALFWorld's unseen scenes.
_OFFSETS = {"kitchen": 0, "livingroom": 200, "bedroom": 300, "bathroom": 400}
UNSEEN = frozenset(offset + n for offset in _OFFSETS.values() for n in range(1, 7))
SEEN = frozenset(offset + n for offset in _OFFSETS.values() for n in range(7, 31))

SCENES: Mapping[Split, frozenset[int]] = MappingProxyType(
    {"evolve": SEEN, "valid_seen": SEEN, "heldout": UNSEEN, "ood": SEEN}
)
# 140 and 134 are the sizes of ALFWorld's seen and unseen validation sets.
COUNTS: Mapping[Split, int] = MappingProxyType(
    {"evolve": 480, "valid_seen": 140, "heldout": 134, "ood": 140}
)
_ATTEMPTS = 1000


class HouseholdOptionError(ValueError):
    """An option of HouseholdEnv that makes no sense."""


class HouseholdEnv:
    """ALFWorld-compatible household tasks, generated.

    max_receptacles: 4 (easy), 8, or None for whole floor plans. counts: tasks a split (a split
    that is left out has its default of COUNTS). max_steps: tool calls an episode. seed: of the
    tasks. reward: "subgoals", the share of sub-goals reached, or "success", 0 or 1. step_cost: taken
    from the reward for every tool call, so that of two successes the shorter one is worth more.
    task_types: which of the six to draw, in turn; None: all.
    """

    name = NAME
    thread_safe = True

    def __init__(
        self,
        max_receptacles: int | None = 4,
        counts: Mapping[str, int] | None = None,
        max_steps: int = 30,
        seed: int = 0,
        reward: Literal["success", "subgoals"] = "subgoals",
        step_cost: float = 0.0,
        task_types: Sequence[str] | None = None,
    ) -> None:
        known = list(load_tables().task_types)
        types = known if task_types is None else list(task_types)
        unknown = sorted(set(types) - set(known))
        if unknown or not types:
            raise HouseholdOptionError(
                f"task_types is {types}; expected one or more of {', '.join(known)}"
            )
        if max_receptacles is not None and max_receptacles < 4:
            raise HouseholdOptionError(
                f"max_receptacles is {max_receptacles}; a task needs up to 4 (source, station, "
                "destination, one more): give 4 or more, or None for whole rooms"
            )
        if max_steps < 1:
            raise HouseholdOptionError(f"max_steps is {max_steps}; expected 1 or more")
        if reward not in ("success", "subgoals"):
            raise HouseholdOptionError(f"reward is {reward!r}; expected 'success' or 'subgoals'")
        if not 0 <= step_cost * max_steps < 1:
            raise HouseholdOptionError(
                f"step_cost is {step_cost}; expected 0 or more and below 1 / max_steps = "
                f"{1 / max_steps:g}, so that success is worth more than giving up early"
            )
        for split, count in (counts or {}).items():
            if split not in SPLITS or count < 0:
                raise HouseholdOptionError(
                    f"counts has {split!r}: {count}; expected a count of 0 or more for one of "
                    f"{', '.join(SPLITS)}"
                )
        self.max_receptacles = max_receptacles
        self.counts: dict[Split, int] = {s: (counts or {}).get(s, COUNTS[s]) for s in SPLITS}
        self.max_steps = max_steps
        self.seed = seed
        self.reward: Literal["success", "subgoals"] = reward
        self.step_cost = step_cost
        self.task_types = tuple(types)
        self._tasks: dict[Split, tuple[Task, ...]] = {}
        self._lock = threading.Lock()

    def tasks(self, split: Split) -> Sequence[Task]:
        """The split's tasks, the six task types in turn, each over its rooms in turn.

        The i-th task depends on the environment's seed and max_receptacles only, not on counts."""
        if split not in SPLITS:
            raise HouseholdOptionError(f"split is {split!r}; expected one of {', '.join(SPLITS)}")
        with self._lock:
            if split not in self._tasks:
                self._tasks[split] = tuple(self._task(split, i) for i in range(self.counts[split]))
            return self._tasks[split]

    def open(self, task: Task, seed: int) -> HouseholdSession:
        """A session of the task. The world is deterministic: `seed` changes nothing.

        Raises EnvError for a task of another environment or a payload of another schema."""
        if task.environment != NAME:
            raise EnvError(
                f"task {task.id} is of environment {task.environment!r}, not {NAME!r}; "
                "open it with its own environment"
            )
        try:
            spec = GameSpec.from_json(task.payload)
        except SpecError as error:
            raise EnvError(f"task {task.id}: {error}") from error
        return HouseholdSession(spec, self.max_steps, self.reward, self.step_cost)

    def _task(self, split: Split, index: int) -> Task:
        task_type = self.task_types[index % len(self.task_types)]
        rooms = load_tables().task_types[task_type].rooms
        room = rooms[index // len(self.task_types) % len(rooms)]
        spec = self._draw(split, index, task_type, room)
        return Task(
            id=f"{NAME}/{split}/{index:04d}-{task_type}-{room}",
            environment=NAME,
            split=split,
            view=TaskView(
                instruction=spec.instruction,
                environment=NAME,
                tools=(ACT,),
                action_tool=ACT.name,
                max_steps=self.max_steps,
            ),
            features={"task_type": task_type, "room": room},
            payload=spec.to_json(),
        )

    def _draw(self, split: Split, index: int, task_type: str, room: str) -> GameSpec:
        scenes = sorted(s for s in SCENES[split] if load_tables().scenes[s].room == room)
        rng = random.Random(f"{NAME}/{self.seed}/{split}/{index}")
        pairs: Pairs = "held_out" if split == "ood" else "usual"
        reasons: set[str] = set()
        for attempt in range(_ATTEMPTS):
            seed = f"{self.seed}/{split}/{index}/{attempt}"
            try:
                return generate(task_type, rng.choice(scenes), seed, self.max_receptacles, pairs)
            except Unsatisfiable as error:
                reasons.add(str(error))
        raise EnvError(
            f"no {task_type} task for a {room} of split {split} in {_ATTEMPTS} draws: "
            f"{'; '.join(sorted(reasons)[:3])}"
        )


class HouseholdSession:
    """One episode. It ends when the goal is reached or after `max_steps` tool calls."""

    def __init__(
        self,
        spec: GameSpec,
        max_steps: int,
        reward: Literal["success", "subgoals"],
        step_cost: float,
    ) -> None:
        self.spec = spec
        self.world = World.from_spec(spec)
        self._max_steps = max_steps
        self._reward = reward
        self._step_cost = step_cost
        self.reset()

    def reset(self) -> Observation:
        text = self.world.reset()
        self._progress = Progress(self.spec.goal)
        self._won = False
        self._steps = 0
        return Observation(text, tuple(self.world.admissible))

    def step(self, name: str, input: Mapping[str, Any]) -> Observation:
        """One call of `act`. Every call counts as a step, a bad one as well."""
        if self._done:
            return Observation("The episode is over.", done=True, is_error=True)
        self._steps += 1
        error = _bad_call(name, input)
        if error:
            return self._observe(error, is_error=True)
        text = self.world.step(input["command"])
        if text == NOTHING_HAPPENS:
            return self._observe(text, is_error=True)
        self._won = self.world.won
        self._progress.update(self.world, self._won)
        return self._observe(text)

    def score(self) -> Score:
        """detail: each sub-goal as a bool, and the steps taken."""
        shaped = self._progress.fraction()
        reward = shaped if self._reward == "subgoals" else float(self._won)
        reward -= self._step_cost * self._steps
        return Score(reward, self._won, {**self._progress.reached, "steps": self._steps})

    def close(self) -> None:
        """Nothing to release."""

    @property
    def _done(self) -> bool:
        return self._won or self._steps >= self._max_steps

    def _observe(self, text: str, is_error: bool = False) -> Observation:
        choices = () if self._done else tuple(self.world.admissible)
        return Observation(text, choices, self._done, is_error)


def _bad_call(name: str, input: Mapping[str, Any]) -> str:
    if name != ACT.name:
        return f"There is no tool {name!r}; call {ACT.name!r} with a command."
    if not isinstance(input.get("command"), str):
        return f"{ACT.name} needs a text 'command', for example {{'command': 'look'}}."
    return ""
