"""Environments over plain text: a small protocol for one's own, and what makes an Environment of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, Protocol, get_args

from harness.events import TaskView, ToolSpec
from rollout.envs.base import EnvError, Observation, Score, Session
from rollout.task import SPLITS, Split, Task

Sessions = Literal["thread_safe", "process"]
SESSIONS: tuple[Sessions, ...] = get_args(Sessions)

ACT = ToolSpec(
    name="act",
    description="Carry out one action in the environment.",
    parameters=MappingProxyType(
        {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "The action."}},
            "required": ["command"],
            "additionalProperties": False,
        }
    ),
)


class EnvironmentSpecError(ValueError):
    """An environment of the user's that cannot be used: the message says what it lacks."""


@dataclass(frozen=True, slots=True)
class TextTask:
    """One task. id: unique over all splits. instruction: what the agent is told first. data: JSON
    values of the environment's own, never shown to an agent. features: properties that unseen tasks
    have too; evolution may group by them."""

    id: str
    instruction: str
    data: Mapping[str, Any] = field(default_factory=dict)
    features: Mapping[str, str] = field(default_factory=dict)


class TextSession(Protocol):
    """One episode. A bad action is an Observation with is_error. EnvError says that the environment
    itself broke; any other exception is a bug of it and ends the run with its message."""

    def reset(self) -> Observation: ...

    def step(self, action: str) -> Observation: ...

    def score(self) -> Score: ...


class TextEnvironment(Protocol):
    """A family of tasks over text.

    sessions: `thread_safe` where many sessions may live in one process, their steps taken in turn;
    `process` where each needs a process of its own. max_steps: actions an episode. A session may
    have `close()`; an environment may have `step_timeout_s`, the longest a call of a session in a
    process of its own may take (default 60).
    """

    name: str
    sessions: Sessions
    max_steps: int

    def tasks(self, split: Split) -> Sequence[TextTask]:
        """The split's tasks in a fixed order, the same on every machine; () for a split without.

        Splits: `evolve` is learned from; `heldout`, `valid_seen` and `ood` are only measured."""
        ...

    def open(self, task: TextTask, seed: int) -> TextSession: ...


Open = Callable[[TextTask, int], TextSession]


class TextEnv:
    """A TextEnvironment as an Environment: one tool, `act`, and at most max_steps of it.

    open_session: opens a session otherwise than by `inner.open`. Raises EnvironmentSpecError naming
    what `inner` lacks, a task id that stands in two splits, and data that is not JSON.
    """

    thread_safe = True

    def __init__(self, inner: TextEnvironment, spec: str, open_session: Open | None = None) -> None:
        check(inner, spec)
        self.name = inner.name
        self.max_steps = inner.max_steps
        self._open = open_session or inner.open
        self._spec = spec
        self._own: dict[str, TextTask] = {}
        self._tasks = {split: self._split(inner, split) for split in SPLITS}
        if not self._tasks["evolve"]:
            raise EnvironmentSpecError(
                f"environment {spec}: tasks('evolve') is empty; expected at least one task to learn "
                "from"
            )

    def tasks(self, split: Split) -> Sequence[Task]:
        if split not in SPLITS:
            raise EnvironmentSpecError(f"split is {split!r}; expected one of {', '.join(SPLITS)}")
        return self._tasks[split]

    def open(self, task: Task, seed: int) -> Session:
        """Raises EnvError for another environment's task."""
        if task.environment != self.name:
            raise EnvError(
                f"task {task.id} is of environment {task.environment!r}, not {self.name!r}; open it "
                "with its own environment"
            )
        known = TextTask(
            task.payload["id"], task.view.instruction, task.payload["data"], task.features
        )
        return _Bounded(self._open(known, seed), known.instruction, self.max_steps)

    def _split(self, inner: TextEnvironment, split: Split) -> tuple[Task, ...]:
        made = []
        for item in inner.tasks(split):
            if not isinstance(item, TextTask):
                raise EnvironmentSpecError(
                    f"environment {self._spec}: tasks({split!r}) has a {type(item).__name__}; "
                    "expected rollout.envs.text.TextTask"
                )
            if item.id in self._own:
                raise EnvironmentSpecError(
                    f"environment {self._spec}: task id {item.id!r} stands there twice; expected "
                    "unique ids over all splits, so that no measured task is learned from"
                )
            self._own[item.id] = item
            made.append(self._task(item, split))
        return tuple(made)

    def _task(self, item: TextTask, split: Split) -> Task:
        try:
            data = json.loads(json.dumps(dict(item.data), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise EnvironmentSpecError(
                f"environment {self._spec}: data of task {item.id!r} is not JSON: {error}"
            ) from error
        return Task(
            id=f"{self.name}/{split}/{item.id}",
            environment=self.name,
            split=split,
            view=TaskView(
                item.instruction, self.name, (ACT,), action_tool=ACT.name, max_steps=self.max_steps
            ),
            features=dict(item.features),
            payload={"id": item.id, "data": data},
        )


def check(inner: Any, spec: str) -> None:
    """Raises EnvironmentSpecError for what is no TextEnvironment."""
    problems = [
        f"it has no {name}"
        for name in ("name", "sessions", "max_steps", "tasks", "open")
        if not hasattr(inner, name)
    ]
    if not problems:
        if inner.sessions not in SESSIONS:
            problems.append(f"sessions is {inner.sessions!r}; expected {' or '.join(SESSIONS)}")
        if not isinstance(inner.max_steps, int) or inner.max_steps < 1:
            problems.append(f"max_steps is {inner.max_steps!r}; expected 1 or more")
        if not isinstance(inner.name, str) or not inner.name:
            problems.append(f"name is {inner.name!r}; expected a text")
    if problems:
        raise EnvironmentSpecError(
            f"environment {spec} is no TextEnvironment (rollout.envs.text): {'; '.join(problems)}"
        )


class _Bounded:
    """A Session over a TextSession: text actions only, the instruction first, max_steps at most."""

    def __init__(self, inner: TextSession, instruction: str, max_steps: int) -> None:
        self._inner, self._instruction, self._max_steps = inner, instruction, max_steps
        self._steps, self._done = 0, False

    def reset(self) -> Observation:
        self._steps, self._done = 0, False
        seen = self._inner.reset()
        parts = [self._instruction, seen.text]
        text = seen.text if self._instruction in seen.text else "\n".join(p for p in parts if p)
        return Observation(text, seen.choices, seen.done, seen.is_error)

    def step(self, name: str, input: Mapping[str, Any]) -> Observation:
        if self._done:
            return Observation("The episode is over.", done=True, is_error=True)
        self._steps += 1
        last = self._steps >= self._max_steps
        command = input.get("command")
        if name != ACT.name or not isinstance(command, str):
            self._done = last
            return Observation(
                f"Call {ACT.name!r} with a text 'command'.", done=last, is_error=True
            )
        seen = self._inner.step(command)
        self._done = seen.done or last
        choices = () if self._done else seen.choices
        return Observation(seen.text, choices, self._done, seen.is_error)

    def score(self) -> Score:
        return self._inner.score()

    def close(self) -> None:
        close = getattr(self._inner, "close", None)
        if close is not None:
            close()
