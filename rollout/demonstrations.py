"""Demonstrations: an expert that reads what the agent may read, seen through varied harnesses.

The expert chooses the command, the harness renders the prompt: so one world gives demonstrations
in as many renderings as there are harnesses, and a model taught on them can read more than one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from harness.bundle import Bundle
from harness.edit import Edit, EditError, apply
from harness.events import Message
from harness.host import ModelReply, ModelRequest, ToolReply, ToolRequest
from harness.metered import Budgets
from harness.sandbox.inprocess import run_inprocess
from rollout.envs.base import Session
from rollout.episode import reply
from rollout.task import Task


class Expert(Protocol):
    """Told what happened; says what to do next."""

    def observe(self, text: str, choices: Sequence[str]) -> None: ...

    def command(self) -> str: ...


class Answer(Protocol):
    """How a command is said in a prompt: None where the harness does not offer it."""

    def __call__(self, command: str, prompt: Sequence[Message]) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One turn: what the model reads, what it should say."""

    messages: tuple[Message, ...]
    answer: str


@dataclass(frozen=True, slots=True)
class Variation:
    """Edits that are made to a rendering harness with `probability`, in turn."""

    probability: float
    edits: tuple[Edit, ...]


def vary(bundle: Bundle, variations: Sequence[Variation], rng: random.Random) -> Bundle:
    """A harness with each variation made or not; one that no longer fits raises EditError."""
    for variation in variations:
        if rng.random() < variation.probability:
            try:
                bundle = apply(bundle, variation.edits)
            except EditError as error:
                raise EditError(
                    f"a variation of the demonstrations does not fit: {error}"
                ) from error
    return bundle


class _Demonstrator:
    """The host of a run in which the expert answers for the model."""

    def __init__(
        self,
        session: Session,
        expert: Expert,
        answer: Answer,
        rng: random.Random,
    ) -> None:
        self._session = session
        self._expert = expert
        self._answer = answer
        self._rng = rng
        self._choices: tuple[str, ...] = ()
        self.turns: list[Demonstration] = []

    def see(self, text: str, choices: Sequence[str]) -> None:
        self._choices = tuple(choices)
        self._expert.observe(text, choices)

    async def model(self, request: ModelRequest) -> ModelReply:
        said = self._answer(self._expert.command(), request.messages)
        if said is not None:
            self.turns.append(Demonstration(request.messages, said))
            return ModelReply(said)
        # The harness does not offer the expert's way: go on by another, which is not shown.
        offered = [self._answer(c, request.messages) for c in self._choices]
        others = [o for o in offered if o is not None]
        return ModelReply(self._rng.choice(others or list(self._choices)))

    async def tool(self, request: ToolRequest) -> ToolReply:
        observation = self._session.step(request.name, request.input)
        self.see(observation.text, observation.choices)
        return reply(observation)


async def demonstrate(
    session: Session,
    task: Task,
    bundle: Bundle,
    expert: Expert,
    answer: Answer,
    seed: int,
) -> list[Demonstration]:
    """The turns of one episode that the expert solves; [] where it does not, or the harness failed."""
    rng = random.Random(seed)
    first = session.reset()
    host = _Demonstrator(session, expert, answer, rng)
    host.see(first.text, first.choices)
    ran = await run_inprocess(
        bundle,
        task.view,
        reply(first),
        host,
        seed=seed,
        budgets=Budgets(max_steps=task.view.max_steps),
        trace_level="off",
    )
    solved = ran.result.status == "completed" and session.score().success
    return host.turns if solved else []
