"""The parts of an evolution method, one small protocol a decision, and the records between them.

A part is a frozen pydantic model: its fields are its parameters in a recipe, `needs` is what must
be there before anything is spent. Acceptors and routers are pure; whatever may call a model or
roll out is async.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from pydantic import BaseModel, ConfigDict

from harness.bundle import Bundle
from harness.evolve.meta import Memory
from harness.evolve.records import (
    Candidate,
    Digest,
    Episode,
    EvalRequest,
    Landscape,
    PairedResult,
    Verdict,
)

Need = Literal["labels", "repeats", "harness_trace", "sandbox", "llm", "embeddings"]
NEEDS: dict[str, str] = {
    "labels": "a verifier's success on every episode",
    "repeats": "rollouts of the same task under several seeds",
    "harness_trace": "traces of level `full`",
    "sandbox": "a sandbox for code that a model wrote",
    "llm": "a language model endpoint for the evolution roles",
    "embeddings": "an embedding model",
}

Evaluate = Callable[[EvalRequest], Awaitable[Sequence[Episode]]]
"""The evaluator: rolls a request out. Injected by the loop; infrastructure errors come back as
episodes with outcome `infra_error`."""


class Part(BaseModel):
    """Base of every part."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    needs: ClassVar[frozenset[Need]] = frozenset()


@dataclass(frozen=True, slots=True)
class Situation:
    """What every part sees of the round.

    episodes: this round's, of the incumbent. seed: of this round's evolution; parts derive their
    own randomness from it. deny: terms that no edit may contain (never shown to a model).
    room: places left for a fork.
    """

    round: int
    incumbent: Bundle
    episodes: tuple[Episode, ...]
    memory: Memory
    seed: int
    deny: tuple[str, ...] = ()
    room: int = 0


@dataclass(frozen=True, slots=True)
class Variant:
    """One harness that serves tasks."""

    name: str
    bundle: Bundle


@dataclass(frozen=True, slots=True)
class ScreenResult:
    """`note` says why not, or what was left to a later screen."""

    ok: bool
    note: str = ""


@dataclass(frozen=True, slots=True)
class Ask:
    """The acceptor wants `repeats` more paired runs a task in this draw family."""

    purpose: Literal["select", "confirm"]
    repeats: int


@dataclass(frozen=True, slots=True)
class GateEvidence:
    """All that an acceptor may decide on. stable: stable-solved tasks. solved: tasks that the
    incumbent passed at least once in this round. rivals: candidates that were selected among.
    room: places left for a fork."""

    candidate_id: str
    select: PairedResult | None = None
    confirm: PairedResult | None = None
    stable: frozenset[str] = frozenset()
    solved: frozenset[str] = frozenset()
    rivals: int = 1
    room: int = 0


class Selector(Protocol):
    """Chooses the task keys that candidates are judged on."""

    def select(self, at: Situation) -> tuple[str, ...]: ...


class Analyst(Protocol):
    """Episodes to evidence."""

    async def digest(self, at: Situation) -> Digest: ...


class Director(Protocol):
    """Evidence to what is worth trying. No objectives: the round is a no-op."""

    async def plan(self, at: Situation, digest: Digest) -> Landscape: ...


class Proposer(Protocol):
    """A landscape to candidates."""

    async def propose(
        self, at: Situation, digest: Digest, landscape: Landscape
    ) -> tuple[Candidate, ...]: ...


class Screen(Protocol):
    """One check; cheapest first in the recipe. stage `proposal`: before paired rollouts, where
    `evaluate` may run smoke tasks. stage `select`: on the select draw, where `episodes` are its."""

    stage: ClassVar[Literal["proposal", "select"]]

    async def check(
        self,
        candidate: Candidate,
        at: Situation,
        episodes: Sequence[Episode],
        evaluate: Evaluate,
    ) -> ScreenResult: ...


class Acceptor(Protocol):
    """Decides on paired results, purely; asks for more until it can. max_confirm: how many
    candidates of a round may go on to a confirm draw."""

    max_confirm: int

    def step(self, evidence: GateEvidence) -> Ask | Verdict: ...


class Router(Protocol):
    """Which variant serves which task, and what a verdict does to the variants."""

    def room(self, variants: tuple[Variant, ...]) -> int: ...

    def place(
        self, variants: tuple[Variant, ...], candidate: Candidate, verdict: Verdict
    ) -> tuple[Variant, ...]: ...

    def route(self, variants: tuple[Variant, ...], episode_features: dict[str, str]) -> int: ...
