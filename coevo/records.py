"""The records that a run leaves for its readers: one a round, one a held-out evaluation, a summary.

All are frozen pydantic models that refuse unknown keys and non-finite numbers, so that what is
written can always be read back (JSON has no NaN). `None` means not measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from coevo import stats
from rollout.trajectory import SCORED

SCHEMA = 1


class RecordError(ValueError):
    """A file of a run does not hold the record that it should."""


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class VersionedRecord(Record):
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


class SplitResult(Record):
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


class RepeatResult(Record):
    """Of tasks that ran k times each (those with fewer scored runs are left out): pass@1, pass@k and
    pass^k, unbiased, and the share of tasks that passed some runs and failed others."""

    k: int
    tasks: int
    pass_at_1: float
    pass_at_k: float
    pass_hat_k: float
    flips: float

    @classmethod
    def of(cls, counts: Iterable[tuple[int, int]]) -> RepeatResult | None:
        """counts: (scored runs, successes) a task. None where no task ran twice."""
        found = list(counts)
        k = max((n for n, _ in found), default=0)
        if k < 2:
            return None
        full = [(n, c) for n, c in found if n == k]
        return cls(
            k=k,
            tasks=len(full),
            pass_at_1=stats.mean_pass_at_k(full, 1),
            pass_at_k=stats.mean_pass_at_k(full, k),
            pass_hat_k=stats.mean_pass_hat_k(full, k),
            flips=stats.flip_rate(full),
        )


class EvolveResult(Record):
    """Scored episodes of the round's own tasks. success and reward are means, None when n is 0.
    repeats: over the samples of each task, None with one sample or in records that lack it."""

    n: int
    success: float | None
    reward: float | None
    repeats: RepeatResult | None = None


class RolloutRecord(Record):
    """The round's own rollout phase.

    outcomes: episodes by outcome class; infra_error is neither a success nor a failure.
    length_bias: share of the phase that had finished (as text) → mean sampled tokens of those
    episodes over the mean of all: below 1, short ones came first.
    """

    outcomes: dict[str, int] = {}
    length_bias: dict[str, float] = {}


class Tokens(Record):
    prompt: int = 0
    sampled: int = 0

    @property
    def total(self) -> int:
        return self.prompt + self.sampled


class Staleness(Record):
    """histogram: age in policy versions (as text, for JSON) → trajectories that trained. dropped:
    trajectories of the window that were too old to train."""

    histogram: dict[str, int] = {}
    max: int = 0
    dropped: int = 0


class BufferStats(Record):
    rounds: int = 0
    trajectories: int = 0
    segments: int = 0
    bytes: int = 0


class PairedDraw(Record):
    """One paired draw of the gate: mean of candidate − incumbent over n tasks, lower bound."""

    mean_d: float | None
    n: int
    lo: float | None = None


class CandidateRecord(Record):
    """One candidate harness of a round and what the gate made of it."""

    id: str
    harness_id: str | None = None
    edits: tuple[str, ...] = ()
    kind: str = ""
    verdict: str
    reasons: tuple[str, ...] = ()
    select: PairedDraw | None = None
    confirm: PairedDraw | None = None


class DriftRecord(Record):
    """One drift test: the variant's harness against the best before it on n stable tasks. mean_d:
    of harness − best. e_worse, e_better: e-values over all draws since the best was set."""

    variant: str
    harness_id: str
    best: str
    decision: str
    mean_d: float
    n: int
    e_worse: float
    e_better: float


class LLMRecord(Record):
    """What the language models of the evolution roles took in this round. calls: tries, `failed`
    ones included. money: in the unit of the configured prices."""

    calls: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    money: float = 0.0


class EvolutionRecord(Record):
    """outcome: applied, forked, rejected, rolled_back, no_op, stopped or off. variant: the one that
    was worked on. rollouts: that evolution asked for. llm: None where no role asked a model."""

    outcome: str
    candidates: tuple[CandidateRecord, ...] = ()
    reason: str = ""
    variant: str = "main"
    rollouts: int = 0
    drift: tuple[DriftRecord, ...] = ()
    llm: LLMRecord | None = None


class TrainRecord(Record):
    """Means over the round's optimiser steps. kl_mismatch, entropy: nats; grad_norm before clip.
    mfu: share of the ranks' peak FLOP/s, None where that is not known.

    mismatch_…: |engine − trainer| log-prob of the round's own sampled tokens under the version that
    sampled them, before the first step. probe_max_abs: the same after publication, on a probe.
    """

    steps: int
    loss: float | None = None
    grad_norm: float | None = None
    kl_mismatch: float | None = None
    abs_dlogp: float | None = None
    clip_fraction: float | None = None
    kept_fraction: float | None = None
    entropy: float | None = None
    tokens_per_s: float | None = None
    mfu: float | None = None
    probe_max_abs: float | None = None
    mismatch_mean: float | None = None
    mismatch_p99: float | None = None
    mismatch_max: float | None = None


class Wall(Record):
    """Seconds a phase. Phases may overlap, so that their sum can exceed `total`."""

    rollout: float = 0.0
    evolve: float = 0.0
    train: float = 0.0
    publish: float = 0.0
    heldout: float = 0.0
    total: float = 0.0


class VariantRecord(Record):
    """One of several harnesses that served side by side. tasks: how many went to it."""

    harness_id: str
    tasks: int


class RoundRecord(VersionedRecord):
    """One committed round: a line of metrics.jsonl. harness_id, policy_version: what was measured, and
    what evolution and training began with; under schedule pipelined the round's own episodes (`evolve`,
    `rollout`, `variants`) are of the pair of the round before. measured_tokens: those of `tokens` that
    its held-out measurement took; None in records that lack it."""

    kind: ClassVar[str] = "round record"
    round: int
    mode: str
    harness_id: str
    policy_version: int
    evolve: EvolveResult
    rollout: RolloutRecord = RolloutRecord()
    heldout: SplitResult | None = None
    valid_seen: SplitResult | None = None
    ood: SplitResult | None = None
    tokens: Tokens = Tokens()
    measured_tokens: Tokens | None = None
    staleness: Staleness = Staleness()
    harness_mix: dict[str, int] = {}
    variants: dict[str, VariantRecord] = {}
    buffer: BufferStats = BufferStats()
    evolution: EvolutionRecord = EvolutionRecord(outcome="off")
    train: TrainRecord | None = None
    wall: Wall = Wall()


class EpisodeResult(Record):
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


def attempts(episodes: Iterable[EpisodeResult]) -> dict[str, tuple[int, int]]:
    """task id -> (scored runs, successes)."""
    counts: dict[str, tuple[int, int]] = {}
    for e in episodes:
        n, c = counts.get(e.task_id, (0, 0))
        counts[e.task_id] = (n + e.scored, c + (e.scored and e.success))
    return counts


class ServedTasks(Record):
    """The tasks of an evaluation that one of several variants served."""

    harness_id: str
    task_ids: tuple[str, ...]


class Evaluation(VersionedRecord):
    """Every episode of one evaluation: a file heldout/0003.json. variants: by name, where more than
    one harness served; `harness_id` is then the main one's."""

    kind: ClassVar[str] = "evaluation"
    round: int
    harness_id: str
    policy_version: int
    episodes: tuple[EpisodeResult, ...]
    variants: dict[str, ServedTasks] = {}

    @property
    def result(self) -> SplitResult:
        scored = [e for e in self.episodes if e.scored]
        return SplitResult.of(sum(e.success for e in scored), len(scored))

    def harnesses(self) -> tuple[str, ...]:
        """Harness id of each episode."""
        served = {
            task_id: item.harness_id for item in self.variants.values() for task_id in item.task_ids
        }
        return tuple(served.get(e.task_id, self.harness_id) for e in self.episodes)


class BestOfN(VersionedRecord):
    """Every run of the held-out tasks under one harness and policy: best_of_n.json.

    round: where its result stands beside other runs' last evaluation. n: runs a task. matched,
    budget: the run whose tokens were matched, and these; "" and None where n was given. tokens: of
    the repeats, the first run of each task left out. episodes: first runs first.
    """

    kind: ClassVar[str] = "best-of-n record"
    round: int
    n: int
    harness_id: str
    matched: str = ""
    budget: int | None = None
    tokens: Tokens
    episodes: tuple[EpisodeResult, ...]

    def attempts(self) -> dict[str, tuple[int, int]]:
        """task id -> (scored runs, successes)."""
        return attempts(self.episodes)

    def single(self) -> SplitResult:
        """All runs alike: what one run gives on average."""
        scored = [e for e in self.episodes if e.scored]
        return SplitResult.of(sum(e.success for e in scored), len(scored))

    def pass_at(self, k: int) -> float | None:
        """pass@k over the tasks with at least k scored runs; None for none."""
        counts = [count for count in self.attempts().values() if count[0] >= k]
        return stats.mean_pass_at_k(counts, k) if counts else None

    def best(self) -> Evaluation:
        """One episode a task, under the seed of its first run: a success if any run was one."""
        runs: dict[str, list[EpisodeResult]] = {}
        for e in self.episodes:
            runs.setdefault(e.task_id, []).append(e)
        chosen = [
            max(own, key=lambda e: (e.scored and e.success, e.scored)).model_copy(
                update={"seed": own[0].seed}
            )
            for own in runs.values()
        ]
        return Evaluation(
            round=self.round,
            harness_id=self.harness_id,
            policy_version=0,
            episodes=tuple(chosen),
        )


class Measured(Record):
    """What one end of a run measured, by split."""

    heldout: SplitResult | None = None
    valid_seen: SplitResult | None = None
    ood: SplitResult | None = None


class Summary(VersionedRecord):
    """A finished run in one file: summary.json. measured_tokens: as in RoundRecord."""

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
    measured_tokens: Tokens | None = None


Split = Literal["heldout", "valid_seen", "ood"]
SPLITS: tuple[Split, ...] = ("heldout", "valid_seen", "ood")
