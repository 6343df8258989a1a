"""The records that evolution reads and writes: frozen, typed, and the same in memory as in JSON.

Source: HarnessX §4 (digest, landscape, manifest), RRSI (history record). Evolution sees a task as
an opaque key and what the harness itself may see of it; ids, answers and verifiers stay outside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from harness.bundle import Bundle
from harness.edit import Edit

SCHEMA = 1
R = TypeVar("R")

INFRA = "infra_error"
"""The outcome that is neither a success nor a failure anywhere."""

Purpose = Literal["select", "confirm", "smoke", "drift"]
Decision = Literal[
    "apply", "fork", "reject", "no_effect", "no_op", "undecided", "deferred", "rolled_back"
]
"""apply: becomes the incumbent. fork: becomes a variant beside it. reject: measured (or screened)
and refused. no_effect: its attribution signature never fired. no_op: there was nothing to judge.
undecided: the gate wants more repeats (never a final decision). deferred: not judged to the end,
because another candidate shipped or the round's confirmations were used up; it may come again.
rolled_back: what was applied since the best harness was given up again by the drift test."""


class RecordError(ValueError):
    """A JSON record that is not what this version writes."""


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One step of an episode, cut to what a digest needs.

    flags: of `harness.evolve.traces.FLAGS`. input_digest: of everything that the model read at
    this step, "" where no trace was kept; equal digests mean equal inputs.
    """

    step: int
    action: str
    observation: str
    flags: tuple[str, ...] = ()
    input_digest: str = ""


@dataclass(frozen=True, slots=True)
class Episode:
    """One scored rollout as evolution sees it.

    task: opaque key, equal for runs of the same task. features: what unseen tasks have too.
    outcome: a rollout outcome kind; `infra_error` is no attempt. fired: component id -> processor
    calls that changed, split or stopped an event, and `tool:NAME` -> calls of that tool.
    ref: where the full trace lies, the root of excerpt anchors. tokens: prompt and sampled.
    """

    task: str
    seed: int
    harness_id: str
    outcome: str
    success: bool
    reward: float
    steps: int
    instruction: str = ""
    features: Mapping[str, str] = field(default_factory=dict)
    trace: tuple[TraceStep, ...] = ()
    fired: Mapping[str, int] = field(default_factory=dict)
    tokens: int = 0
    ref: str = ""

    @property
    def scored(self) -> bool:
        return self.outcome != INFRA


@dataclass(frozen=True, slots=True)
class EvalRequest:
    """Rollouts that evolution asks for.

    Every bundle runs on every task with the same `repeats` seeds, interleaved; `bundles[0]` is the
    incumbent except in a smoke run, and the best harness before in a drift test. Seeds depend on (round, purpose, draw, task, repeat) only:
    another `draw` is independent, the same one is the same.
    """

    bundles: tuple[Bundle, ...]
    purpose: Purpose
    tasks: tuple[str, ...]
    repeats: int
    draw: int

    @property
    def rollouts(self) -> int:
        return len(self.bundles) * len(self.tasks) * self.repeats

    def inputs(self) -> dict[str, Any]:
        """What identifies the request in the journal."""
        return {
            "bundles": [bundle.id for bundle in self.bundles],
            "purpose": self.purpose,
            "tasks": list(self.tasks),
            "repeats": self.repeats,
            "draw": self.draw,
        }


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A piece of a trace; anchor: `REF#step=N`."""

    anchor: str
    text: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the runs of one task say.

    verdict: failed (no run passed), flaky (some did), fragile (all did, with trouble), solid.
    category: the leading failure category, "" for none; categories: all that were seen.
    components: ids of the incumbent's parts that the categories implicate. actionability: 1.0
    failed, 0.8 flaky, 0.3 fragile, 0 solid. history: ids of shipped candidates that changed it.
    finding: the analyst's own words, where it has some.
    """

    task: str
    instruction: str
    runs: int
    passed: int
    verdict: Literal["failed", "flaky", "fragile", "solid"]
    category: str = ""
    categories: tuple[str, ...] = ()
    components: tuple[str, ...] = ()
    excerpts: tuple[Excerpt, ...] = ()
    actionability: float = 0.0
    history: tuple[str, ...] = ()
    finding: str = ""


@dataclass(frozen=True, slots=True)
class Digest:
    """The round's evidence. raw_tokens: of the traces read; digest_tokens: about four characters each."""

    tasks: tuple[Evidence, ...]
    raw_tokens: int = 0
    digest_tokens: int = 0

    @property
    def actionability(self) -> float:
        """The round's: that of its most actionable task."""
        return max((item.actionability for item in self.tasks), default=0.0)

    @property
    def compression(self) -> float:
        return self.raw_tokens / self.digest_tokens if self.digest_tokens else 0.0


@dataclass(frozen=True, slots=True)
class Objective:
    """One failure category worth an edit: its tasks and its weight (summed actionability).
    direction: what to try, in the director's words, where it has some."""

    category: str
    tasks: tuple[str, ...]
    weight: float
    direction: str = ""


@dataclass(frozen=True, slots=True)
class Landscape:
    """What to try next. reputation: kind -> smoothed acceptance rate. held_back: kinds that may
    not ship now. regressed: tasks that the last shipped edit broke."""

    objectives: tuple[Objective, ...] = ()
    untried: tuple[str, ...] = ()
    reputation: Mapping[str, float] = field(default_factory=dict)
    held_back: tuple[str, ...] = ()
    regressed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Claim:
    """One piece of capability evidence. type: instantiates (level 1) | reaches_model (level 2)."""

    type: str
    claim: str
    evidence: str


@dataclass(frozen=True, slots=True)
class FileChange:
    path: str
    action: str  # add | change | remove
    summary: str


@dataclass(frozen=True, slots=True)
class PredictedImpact:
    """Task keys: that would begin to pass, pass more often, and might break."""

    will_unlock: tuple[str, ...] = ()
    will_stabilise: tuple[str, ...] = ()
    at_risk: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Signature:
    """How to tell that the edit is at work, counted over the candidate's select runs.

    type component: `name` changed an event; tool: tool `name` was called; model_input: the model
    read something else than under the incumbent after the same actions (name is free).
    """

    type: Literal["component", "tool", "model_input"]
    name: str
    expected_min_calls: int = 1


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a candidate claims. bucket: its leading kind. kinds and edits: counted from the diff."""

    candidate_id: str
    bucket: str
    kinds: tuple[str, ...]
    edits: int
    capability_evidence: tuple[Claim, ...]
    file_changes: tuple[FileChange, ...]
    predicted_impact: PredictedImpact
    attribution_signature: Signature
    failure_evidence: tuple[str, ...]
    root_cause: str
    fix: str
    why_at_risk_hold: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A changed harness. candidate_id: `C-R{round}-{NN}`. source: who proposed it, and from what."""

    candidate_id: str
    parent: str
    bundle: Bundle
    edits: tuple[Edit, ...]
    manifest: Manifest
    source: str = ""

    @property
    def harness_id(self) -> str:
        return self.bundle.id


@dataclass(frozen=True, slots=True)
class Review:
    """A critic's opinion. ranking: ids of the candidates that go on, best first; empty: a no-op.
    rejected: id -> reason. revise: id -> what to change; asked at most once a round."""

    ranking: tuple[str, ...] = ()
    rejected: Mapping[str, str] = field(default_factory=dict)
    revise: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PairedTask:
    """One task's paired runs. d = candidate − incumbent pass rate over `repeats` pairs, in [−1, 1]."""

    task: str
    candidate: float
    incumbent: float
    repeats: int

    @property
    def d(self) -> float:
        return self.candidate - self.incumbent


@dataclass(frozen=True, slots=True)
class PairedResult:
    """Candidate against incumbent on the same tasks and seeds, tasks sorted by key.

    candidate_tokens, incumbent_tokens: mean an episode. lost: pairs that an infrastructure error
    took away. asked: pairs that were asked for.
    """

    purpose: Purpose
    tasks: tuple[PairedTask, ...]
    candidate_tokens: float = 0.0
    incumbent_tokens: float = 0.0
    lost: int = 0
    asked: int = 0

    @property
    def pairs(self) -> int:
        return sum(item.repeats for item in self.tasks)

    @property
    def mean_d(self) -> float:
        """Mean over tasks of d; 0 for no task."""
        return sum(item.d for item in self.tasks) / len(self.tasks) if self.tasks else 0.0

    def d_of(self) -> dict[str, float]:
        return {item.task: item.d for item in self.tasks}


@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision with its reasons and numbers. improved: I, regressed: R (task keys)."""

    candidate_id: str
    decision: Decision
    reasons: tuple[str, ...]
    numbers: Mapping[str, float] = field(default_factory=dict)
    improved: tuple[str, ...] = ()
    regressed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HistoryRecord:
    """One judged candidate. kinds: from the diff. delta_score, delta_cost: ΔS (mean d) and ΔC
    (relative tokens). predicted, hits: tasks that the manifest said would improve, and those that
    did. edit_key: equal for equal edits. variant: whose child it is."""

    round: int
    candidate_id: str
    harness_id: str
    parent: str
    kinds: tuple[str, ...]
    hypothesis: str
    edit_key: str
    decision: Decision
    delta_score: float | None = None
    delta_cost: float | None = None
    predicted: int = 0
    hits: int = 0
    improved: tuple[str, ...] = ()
    regressed: tuple[str, ...] = ()
    variant: str = "main"

    @property
    def accepted(self) -> bool:
        return self.decision in ("apply", "fork")


_ADAPTERS: dict[type, TypeAdapter[Any]] = {}


def _adapter(cls: type) -> TypeAdapter[Any]:
    if cls not in _ADAPTERS:
        _ADAPTERS[cls] = TypeAdapter(cls)
    return _ADAPTERS[cls]


def encode(record: Any) -> dict[str, Any]:
    """The record as JSON values, with its `schema` number. Records that hold a bundle have no
    such form; see `engine.candidate_to_json`."""
    return {"schema": SCHEMA, **_adapter(type(record)).dump_python(record, mode="json")}


def decode(cls: type[R], data: Mapping[str, Any]) -> R:
    """The record that `encode` wrote. Raises RecordError for another schema or shape."""
    if data.get("schema") != SCHEMA:
        raise RecordError(
            f"{cls.__name__}: schema {data.get('schema')!r}; this version reads {SCHEMA}"
        )
    fields = {key: value for key, value in data.items() if key != "schema"}
    known = set(getattr(cls, "__dataclass_fields__", {}))
    if unknown := sorted(set(fields) - known):
        raise RecordError(f"{cls.__name__}: unknown fields {unknown}; known: {sorted(known)}")
    try:
        return _adapter(cls).validate_python(fields)
    except ValidationError as error:
        raise RecordError(f"{cls.__name__}: {error}") from error
