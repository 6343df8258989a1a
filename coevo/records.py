"""The records that a run leaves for its readers: one a round, one a held-out evaluation, a summary.

All are frozen pydantic models that refuse unknown keys and non-finite numbers, so that what is
written can always be read back (JSON has no NaN). `None` means not measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from coevo import stats
from rollout.trajectory import SCORED

SCHEMA = 1


class RecordError(ValueError):
    """A file of a run does not hold the record that it should."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class _Versioned(_Record):
    """A record that stands alone in a file: carries the schema number under the key `schema`."""

    kind: ClassVar[str] = "record"
    model_config = ConfigDict(populate_by_name=True)
    schema_version: int = Field(SCHEMA, alias="schema")

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)

    @classmethod
    def from_json(cls, data: Any, where: str) -> Self:
        """`data` as this record. Raises RecordError naming `where` and what is wrong."""
        if not isinstance(data, Mapping):
            raise RecordError(f"{where}: found {type(data).__name__}; expected a {cls.kind} object")
        found = data.get("schema", SCHEMA)
        if found != SCHEMA:
            raise RecordError(
                f"{where}: {cls.kind} has schema {found!r}; this version of coevo reads schema "
                f"{SCHEMA}. Read the run with the version that wrote it (see its lock.json)"
            )
        try:
            return cls.model_validate(data)
        except ValueError as error:  # pydantic's ValidationError is one
            raise RecordError(f"{where}: not a {cls.kind}: {error}") from error


class SplitResult(_Record):
    """Successes of one split. success, lo, hi: share and 95% Wilson limits over its episodes."""

    n: int
    successes: int
    success: float | None
    lo: float
    hi: float

    @classmethod
    def of(cls, successes: int, n: int) -> SplitResult:
        interval = stats.wilson(successes, n)
        return cls(
            n=n, successes=successes, success=interval.estimate, lo=interval.lo, hi=interval.hi
        )


class EvolveResult(_Record):
    """Scored episodes of the round's own tasks. success and reward are means, None when n is 0."""

    n: int
    success: float | None
    reward: float | None


class Tokens(_Record):
    prompt: int = 0
    sampled: int = 0

    @property
    def total(self) -> int:
        return self.prompt + self.sampled


class Staleness(_Record):
    """histogram: age in policy versions (as text, for JSON) → trajectories that trained."""

    histogram: dict[str, int] = {}
    max: int = 0


class BufferStats(_Record):
    rounds: int = 0
    trajectories: int = 0
    segments: int = 0
    bytes: int = 0


class PairedDraw(_Record):
    """One paired draw of the gate: mean of candidate − incumbent over n tasks, lower bound."""

    mean_d: float | None
    n: int
    lo: float | None = None


class CandidateRecord(_Record):
    """One candidate harness of a round and what the gate made of it."""

    id: str
    harness_id: str | None = None
    edits: tuple[str, ...] = ()
    kind: str = ""
    verdict: str
    reasons: tuple[str, ...] = ()
    select: PairedDraw | None = None
    confirm: PairedDraw | None = None


class EvolutionRecord(_Record):
    """outcome: applied, rejected, no_op, off, or another word of the recipe's acceptor."""

    outcome: str
    candidates: tuple[CandidateRecord, ...] = ()
    reason: str = ""


class TrainRecord(_Record):
    """Means over the round's optimiser steps. kl_mismatch, entropy: nats; grad_norm before clip."""

    steps: int
    loss: float | None = None
    grad_norm: float | None = None
    kl_mismatch: float | None = None
    abs_dlogp: float | None = None
    clip_fraction: float | None = None
    kept_fraction: float | None = None
    entropy: float | None = None
    tokens_per_s: float | None = None
    probe_max_abs: float | None = None


class Wall(_Record):
    """Seconds a phase. Phases may overlap, so that their sum can exceed `total`."""

    rollout: float = 0.0
    evolve: float = 0.0
    train: float = 0.0
    publish: float = 0.0
    heldout: float = 0.0
    total: float = 0.0


class RoundRecord(_Versioned):
    """One committed round: a line of metrics.jsonl."""

    kind: ClassVar[str] = "round record"
    round: int
    mode: str
    harness_id: str
    policy_version: int
    evolve: EvolveResult
    heldout: SplitResult | None = None
    valid_seen: SplitResult | None = None
    ood: SplitResult | None = None
    tokens: Tokens = Tokens()
    staleness: Staleness = Staleness()
    harness_mix: dict[str, int] = {}
    buffer: BufferStats = BufferStats()
    evolution: EvolutionRecord = EvolutionRecord(outcome="off")
    train: TrainRecord | None = None
    wall: Wall = Wall()


class EpisodeResult(_Record):
    """One episode of an evaluation; `outcome` as in rollout.trajectory.OutcomeKind."""

    task_id: str
    seed: int
    success: bool
    reward: float
    steps: int
    outcome: str
    features: dict[str, Any] = {}

    @property
    def scored(self) -> bool:
        """False for an infrastructure error, which is neither a success nor a failure."""
        return self.outcome in SCORED


class Evaluation(_Versioned):
    """Every episode of one evaluation: a file heldout/0003.json."""

    kind: ClassVar[str] = "evaluation"
    round: int
    harness_id: str
    policy_version: int
    episodes: tuple[EpisodeResult, ...]

    @property
    def result(self) -> SplitResult:
        scored = [e for e in self.episodes if e.scored]
        return SplitResult.of(sum(e.success for e in scored), len(scored))


class Measured(_Record):
    """What one end of a run measured, by split."""

    heldout: SplitResult | None = None
    valid_seen: SplitResult | None = None
    ood: SplitResult | None = None


class Summary(_Versioned):
    """A finished run in one file: summary.json."""

    kind: ClassVar[str] = "run summary"
    name: str
    arm: str
    mode: str
    seed: int
    rounds: int
    final: Measured
    initial: Measured
    wall_s: float
    tokens: Tokens


Split = Literal["heldout", "valid_seen", "ood"]
SPLITS: tuple[Split, ...] = ("heldout", "valid_seen", "ood")
