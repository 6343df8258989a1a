"""The parts of an evolution method, one small protocol a decision, and the records between them.

A part is a frozen pydantic model: its fields are its parameters in a recipe, `needs` is what must
be there before anything is spent. Acceptors and routers are pure; whatever may call a model or
roll out is async.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict

from harness.bundle import Bundle
from harness.evolve.drift import DriftEvidence
from harness.evolve.meta import Memory
from harness.evolve.records import (
    Candidate,
    Decision,
    Digest,
    Episode,
    EvalRequest,
    Landscape,
    PairedResult,
    Review,
    Verdict,
)
from harness.evolve.routing import Routing

if TYPE_CHECKING:
    from harness.evolve.llm.client import Chat

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


class EvolutionInfraError(RuntimeError):
    """Infrastructure (rollouts, a model endpoint) took away what a verdict needs.

    The round ends `aborted` with this reason: no verdict, the state as before. What was paid for
    stays journaled, so the round goes on from there once the infrastructure is mended.
    """


class PartFailed(RuntimeError):
    """A part could not do its step (say, its model's answers stayed malformed). The round ends as
    a `no_op` with `reason`; what the step cost is charged all the same."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Part(BaseModel):
    """Base of every part."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    needs: ClassVar[frozenset[Need]] = frozenset()


@dataclass(frozen=True, slots=True)
class Situation:
    """What every part sees of the round.

    episodes: this round's, of the incumbent. seed: of this round's evolution; parts derive their
    own randomness from it. deny: terms that no edit may contain (never shown to a model).
    room: places left for a fork. llm: the language model of the evolution roles, where the run has
    one.
    """

    round: int
    incumbent: Bundle
    episodes: tuple[Episode, ...]
    memory: Memory
    seed: int
    deny: tuple[str, ...] = ()
    room: int = 0
    llm: Chat | None = None


@dataclass(frozen=True, slots=True)
class Variant:
    """One harness that serves tasks. best: the best harness in its place before it (None: itself),
    which the drift test holds it against; drift: what those tests have said so far."""

    name: str
    bundle: Bundle
    best: Bundle | None = None
    drift: DriftEvidence = field(default_factory=DriftEvidence)

    def applied(self, bundle: Bundle) -> Variant:
        """With another harness in its place, held against the same best one."""
        return replace(self, bundle=bundle, best=self.best or self.bundle)


@dataclass(frozen=True, slots=True)
class Placement:
    """What a router did with a candidate. refused: why it has no place for it; "" where it has."""

    variants: tuple[Variant, ...]
    routing: Routing
    refused: str = ""


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


@runtime_checkable
class Reviser(Protocol):
    """A proposer that can also revise one of its candidates; the id stays. None: it gives up."""

    async def revise(
        self, at: Situation, digest: Digest, landscape: Landscape, candidate: Candidate, note: str
    ) -> Candidate | None: ...


class Critic(Protocol):
    """Ranks candidates before anything is rolled out; may ask once for a revision."""

    async def review(
        self,
        at: Situation,
        digest: Digest,
        landscape: Landscape,
        candidates: tuple[Candidate, ...],
    ) -> Review: ...


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
    """Which variant serves which task, and what a verdict does to the variants. Pure; variants are
    named by their place in `variants`, the main one first."""

    def room(self, variants: Sequence[Variant]) -> int:
        """Places left for a fork; 0: a candidate that would need one is rejected."""
        ...

    def route(
        self, variants: Sequence[Variant], routing: Routing, features: Mapping[str, str]
    ) -> int:
        """The variant for a task with these features, seen or not."""
        ...

    def serves(self, variants: Sequence[Variant], routing: Routing, task: str) -> int:
        """The variant for a task that ran before, by its key."""
        ...

    def observe(
        self, variants: Sequence[Variant], routing: Routing, episodes: Iterable[Episode]
    ) -> Routing:
        """Learn from the variants' runs."""
        ...

    def place(
        self,
        variants: Sequence[Variant],
        routing: Routing,
        parent: int,
        candidate: Candidate,
        decision: Decision,
        evidence: GateEvidence,
        episodes: Sequence[Episode],
    ) -> Placement:
        """Carry out `apply` or `fork` of a child of variant `parent`; episodes: of all its draws."""
        ...
