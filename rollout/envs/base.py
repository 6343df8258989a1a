"""The environment protocol: text in, text out, scored by a verifier that never leaves the worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rollout.task import Split, Task


class EnvError(RuntimeError):
    """The environment itself failed (not the agent's action): an infrastructure error."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What the agent sees next. `choices`: the actions admitted now (empty: free text)."""

    text: str
    choices: tuple[str, ...] = ()
    done: bool = False
    is_error: bool = False  # the action was not understood or not admitted


@dataclass(frozen=True, slots=True)
class Score:
    """The verifier's result. `success` alone is reported; `reward` may be shaped (dense sub-goals)."""

    reward: float
    success: bool
    detail: Mapping[str, Any] = field(default_factory=dict)


class Session(Protocol):
    """One episode of one task; not shared between threads unless the environment says so."""

    def reset(self) -> Observation: ...

    def step(self, name: str, input: Mapping[str, Any]) -> Observation:
        """Carry out one tool call. A bad call is an Observation with is_error, never an exception.

        Raises EnvError where the environment itself broke."""
        ...

    def score(self) -> Score: ...

    def close(self) -> None: ...


class Environment(Protocol):
    """A family of tasks. `thread_safe`: sessions may run in one process at once."""

    name: str
    thread_safe: bool

    def tasks(self, split: Split) -> Sequence[Task]:
        """The split's tasks, in a fixed order, the same on every machine."""
        ...

    def open(self, task: Task, seed: int) -> Session: ...
