"""The state of evolution between rounds and the result of one, with their JSON forms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from harness.bundle import Bundle
from harness.change import describe
from harness.edit import EditError, apply
from harness.edit_json import from_json, to_json
from harness.evolve.drift import DriftEvidence, DriftReport
from harness.evolve.meta import Memory
from harness.evolve.parts import ScreenResult, Variant
from harness.evolve.records import (
    SCHEMA,
    Candidate,
    Digest,
    Episode,
    Landscape,
    Manifest,
    PairedResult,
    RecordError,
    Verdict,
    decode,
    encode,
)

Outcome = Literal[
    "applied", "forked", "rolled_back", "rejected", "no_op", "stopped", "off", "aborted"
]
"""rolled_back: the drift test put the best harness back, nothing else was tried. stopped: patience
is used up, nothing was tried. aborted: infrastructure failed, no verdict, the state is as before;
run the round again."""

STATE_SCHEMA = 2
"""2: variants carry their best harness and drift evidence; memory knows routing and tries."""


@dataclass(frozen=True, slots=True)
class EvolutionState:
    """What one round hands to the next. variants[0] is the incumbent."""

    round: int
    variants: tuple[Variant, ...]
    memory: Memory = field(default_factory=Memory)

    @classmethod
    def start(cls, incumbent: Bundle, round: int = 0) -> EvolutionState:
        """The state before the first round."""
        return cls(round, (Variant("main", incumbent),))

    @property
    def incumbent(self) -> Bundle:
        return self.variants[0].bundle

    def at(self, round: int) -> EvolutionState:
        """The same state in another round (rounds without evolution pass)."""
        return replace(self, round=round)

    def next(self, memory: Memory | None = None) -> EvolutionState:
        """The same variants in the next round."""
        return replace(self, round=self.round + 1, memory=memory or self.memory)

    def to_json(self) -> dict[str, Any]:
        """JSON values; bundles by id, kept in the harness store."""
        return {
            "schema": STATE_SCHEMA,
            "round": self.round,
            "variants": [
                {
                    "name": v.name,
                    "harness_id": v.bundle.id,
                    "best": v.best.id if v.best else None,
                    "drift": encode(v.drift),
                }
                for v in self.variants
            ],
            "memory": encode(self.memory),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], load: Callable[[str], Bundle]) -> EvolutionState:
        """`load`: harness id -> bundle (the store's get). Raises RecordError for another shape."""
        if data.get("schema") != STATE_SCHEMA:
            raise RecordError(
                f"evolution state: schema {data.get('schema')!r}; this version reads schema "
                f"{STATE_SCHEMA}. Resume the run with the version that wrote it, or start a new one"
            )
        if set(data) != {"schema", "round", "variants", "memory"}:
            raise RecordError(
                f"evolution state: keys {sorted(data)}; expected schema, round, variants and memory"
            )
        variants = tuple(
            Variant(
                v["name"],
                load(v["harness_id"]),
                load(v["best"]) if v["best"] else None,
                decode(DriftEvidence, v["drift"]),
            )
            for v in data["variants"]
        )
        return cls(data["round"], variants, decode(Memory, data["memory"]))


@dataclass(frozen=True, slots=True)
class CandidateReport:
    """All that happened to one candidate. screens: name of the screen -> its result.
    critic_refused: an opinion, so the same edit may come again."""

    candidate: Candidate
    verdict: Verdict
    screens: Mapping[str, ScreenResult] = field(default_factory=dict)
    select: PairedResult | None = None
    confirm: PairedResult | None = None
    critic_refused: bool = False


@dataclass(frozen=True, slots=True)
class EvolutionResult:
    """One round of evolution. state: for the next round. episodes: every rollout that it asked
    for, the incumbent's included. variant: the one that was worked on. drift: its drift tests."""

    outcome: Outcome
    reason: str
    state: EvolutionState
    candidates: tuple[CandidateReport, ...] = ()
    digest: Digest | None = None
    landscape: Landscape | None = None
    episodes: tuple[Episode, ...] = ()
    variant: str = "main"
    drift: tuple[DriftReport, ...] = ()

    @property
    def incumbent(self) -> Bundle:
        return self.state.incumbent

    @property
    def shipped(self) -> Candidate | None:
        for report in self.candidates:
            if report.verdict.decision in ("apply", "fork"):
                return report.candidate
        return None

    def summary(self) -> dict[str, Any]:
        """The round's line in the metrics: outcome, reason, one short record a candidate."""
        return {
            "outcome": self.outcome,
            "reason": self.reason,
            "candidates": [_line(report) for report in self.candidates],
            "variant": self.variant,
            "rollouts": len(self.episodes),
            "drift": [_drift_line(report) for report in self.drift],
        }

    def to_json(self) -> dict[str, Any]:
        """Everything but the episodes, for the round's `evolve/` directory and `verdicts.json`."""
        return {
            "schema": SCHEMA,
            "outcome": self.outcome,
            "reason": self.reason,
            "harness_id": self.incumbent.id,
            "rollouts": len(self.episodes),
            "variant": self.variant,
            "drift": [encode(report) for report in self.drift],
            "digest": encode(self.digest) if self.digest else None,
            "landscape": encode(self.landscape) if self.landscape else None,
            "candidates": [
                {
                    "candidate": candidate_to_json(report.candidate),
                    "verdict": encode(report.verdict),
                    "screens": {
                        name: {"ok": result.ok, "note": result.note}
                        for name, result in report.screens.items()
                    },
                    "select": encode(report.select) if report.select else None,
                    "confirm": encode(report.confirm) if report.confirm else None,
                }
                for report in self.candidates
            ],
        }


def candidate_to_json(candidate: Candidate) -> dict[str, Any]:
    """The candidate without its bundle, which its edits and parent give back."""
    return {
        "schema": SCHEMA,
        "candidate_id": candidate.candidate_id,
        "parent": candidate.parent,
        "harness_id": candidate.harness_id,
        "edits": to_json(candidate.edits),
        "manifest": encode(candidate.manifest),
        "source": candidate.source,
    }


def candidate_from_json(data: Mapping[str, Any], parent: Bundle) -> Candidate:
    """The candidate of `candidate_to_json`, its edits applied to `parent`.

    Raises RecordError where the parent or the resulting id is another."""
    edits = from_json(data["edits"])
    if data["parent"] != parent.id:
        raise RecordError(
            f"candidate {data['candidate_id']}: its parent is {data['parent'][:12]}, "
            f"not {parent.id[:12]}"
        )
    try:
        bundle = apply(parent, edits)
    except EditError as error:
        raise RecordError(f"candidate {data['candidate_id']}: {error}") from error
    if bundle.id != data["harness_id"]:
        raise RecordError(
            f"candidate {data['candidate_id']}: its edits give {bundle.id[:12]}, "
            f"recorded is {data['harness_id'][:12]}"
        )
    return Candidate(
        data["candidate_id"],
        parent.id,
        bundle,
        edits,
        decode(Manifest, data["manifest"]),
        data["source"],
    )


def _line(report: CandidateReport) -> dict[str, Any]:
    numbers = report.verdict.numbers
    select, confirm = report.select, report.confirm
    return {
        "id": report.candidate.candidate_id,
        "harness_id": report.candidate.harness_id,
        "edits": [describe(edit) for edit in report.candidate.edits],
        "kind": report.candidate.manifest.bucket,
        "verdict": report.verdict.decision,
        "reasons": list(report.verdict.reasons),
        "select": {"mean_d": select.mean_d, "n": len(select.tasks)} if select else None,
        "confirm": (
            {"mean_d": confirm.mean_d, "lo": numbers.get("lower"), "n": len(confirm.tasks)}
            if confirm
            else None
        ),
    }


def _drift_line(report: DriftReport) -> dict[str, Any]:
    return {
        "variant": report.variant,
        "harness_id": report.harness_id,
        "best": report.best,
        "decision": report.decision,
        "mean_d": report.result.mean_d,
        "n": len(report.result.tasks),
        "e_worse": report.evidence.e_worse,
        "e_better": report.evidence.e_better,
    }
