"""The state of evolution between rounds and the result of one, with their JSON forms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from harness.bundle import Bundle
from harness.change import describe
from harness.edit import EditError, apply
from harness.edit_json import from_json, to_json
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

Outcome = Literal["applied", "forked", "rejected", "no_op", "stopped", "off", "aborted"]
"""stopped: patience is used up, nothing was tried. aborted: infrastructure failed, no verdict, the
state is as before; run the round again."""


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

    def to_json(self) -> dict[str, Any]:
        """JSON values; bundles by id, kept in the harness store."""
        return {
            "schema": SCHEMA,
            "round": self.round,
            "variants": [{"name": v.name, "harness_id": v.bundle.id} for v in self.variants],
            "memory": encode(self.memory),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], load: Callable[[str], Bundle]) -> EvolutionState:
        """`load`: harness id -> bundle (the store's get). Raises RecordError for another shape."""
        if data.get("schema") != SCHEMA or set(data) != {"schema", "round", "variants", "memory"}:
            raise RecordError(
                f"evolution state: schema {data.get('schema')!r} with keys {sorted(data)}; this "
                f"version reads schema {SCHEMA} with round, variants and memory"
            )
        variants = tuple(Variant(v["name"], load(v["harness_id"])) for v in data["variants"])
        return cls(data["round"], variants, decode(Memory, data["memory"]))


@dataclass(frozen=True, slots=True)
class CandidateReport:
    """All that happened to one candidate. screens: name of the screen -> its result."""

    candidate: Candidate
    verdict: Verdict
    screens: Mapping[str, ScreenResult] = field(default_factory=dict)
    select: PairedResult | None = None
    confirm: PairedResult | None = None


@dataclass(frozen=True, slots=True)
class EvolutionResult:
    """One round of evolution. state: for the next round. episodes: every rollout that it asked
    for, the incumbent's included."""

    outcome: Outcome
    reason: str
    state: EvolutionState
    candidates: tuple[CandidateReport, ...] = ()
    digest: Digest | None = None
    landscape: Landscape | None = None
    episodes: tuple[Episode, ...] = ()

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
        }

    def to_json(self) -> dict[str, Any]:
        """Everything but the episodes, for the round's `evolve/` directory and `verdicts.json`."""
        return {
            "schema": SCHEMA,
            "outcome": self.outcome,
            "reason": self.reason,
            "harness_id": self.incumbent.id,
            "rollouts": len(self.episodes),
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
