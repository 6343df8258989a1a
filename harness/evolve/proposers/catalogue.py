"""The catalogue proposer: candidates from a list of known edits, no language model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, PrivateAttr

from harness.change import describe, summary
from harness.edit import Edit, EditError, apply
from harness.evolve.catalogue import CatalogueError, Entry, concrete, load_catalogue
from harness.evolve.meta import edit_key
from harness.evolve.parts import Part, Situation
from harness.evolve.records import (
    Candidate,
    Claim,
    Digest,
    Evidence,
    FileChange,
    Landscape,
    Manifest,
    PredictedImpact,
    Signature,
)

_ACTIONS = {"add": "add", "remove": "remove"}


class CatalogueProposer(Part):
    """At most `k` candidates a round, at most one an entry, best entry first.

    An entry's worth: the summed weight of the objectives that it answers × the reputation of its
    kind (½ before any try) × `novelty` for a kind never tried. Kinds held back are left out, and so
    is any edit that was refused before (for ever, or for `retry_after` rounds: with weights that
    change, what failed once may help later).
    """

    files: tuple[str, ...] = Field(min_length=1)
    k: int = Field(4, ge=1, le=99)
    novelty: float = Field(1.5, ge=1)
    retry_after: int | None = Field(None, ge=1)

    _entries: tuple[Entry, ...] = PrivateAttr(())

    def model_post_init(self, context: Any) -> None:
        base = context["base"] if context else Path()
        entries = tuple(entry for file in self.files for entry in load_catalogue(base / file))
        names = [entry.name for entry in entries]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise CatalogueError(f"catalogue entries {twice} occur in more than one file")
        self._entries = entries

    async def propose(
        self, at: Situation, digest: Digest, landscape: Landscape
    ) -> tuple[Candidate, ...]:
        ranked = sorted(
            ((self._worth(entry, landscape), -n, entry) for n, entry in enumerate(self._entries)),
            key=lambda item: item[:2],
            reverse=True,
        )
        out: list[Candidate] = []
        for worth, _, entry in ranked:
            if worth <= 0 or len(out) == self.k:
                break
            for label, edits in concrete(entry, at.incumbent):
                if at.memory.spent(edit_key(edits), at.round, self.retry_after):
                    continue
                candidate_id = f"C-R{at.round}-{len(out) + 1:02d}"
                out.append(make_candidate(candidate_id, entry, label, edits, at, digest))
                break
        return tuple(out)

    def _worth(self, entry: Entry, landscape: Landscape) -> float:
        if entry.kind in landscape.held_back:
            return 0.0
        weight = sum(item.weight for item in landscape.objectives if item.category in entry.when)
        novelty = self.novelty if entry.kind in landscape.untried else 1.0
        return weight * landscape.reputation.get(entry.kind, 0.5) * novelty


def make_candidate(
    candidate_id: str,
    entry: Entry,
    label: str,
    edits: Sequence[Edit],
    at: Situation,
    digest: Digest,
) -> Candidate:
    """A candidate with its manifest filled from the evidence and from the diff.

    Raises CatalogueError where the entry's edits do not fit the incumbent."""
    try:
        bundle = apply(at.incumbent, edits)
    except EditError as error:
        raise CatalogueError(f"catalogue entry {label}: {error}") from error
    touched = [item for item in digest.tasks if set(item.categories) & set(entry.when)]
    change = summary(at.incumbent, bundle)
    manifest = Manifest(
        candidate_id=candidate_id,
        bucket=entry.kind,
        kinds=change.kinds,
        edits=change.count,
        capability_evidence=(Claim("reaches_model", entry.claim, f"catalogue entry {label}"),),
        file_changes=tuple(
            FileChange("harness.yaml", _ACTIONS.get(part.action, "change"), text)
            for part, text in zip(change.changes, _texts(edits, change.count), strict=True)
        ),
        predicted_impact=PredictedImpact(
            will_unlock=tuple(sorted(x.task for x in touched if x.verdict == "failed")),
            will_stabilise=tuple(
                sorted(x.task for x in touched if x.verdict in ("flaky", "fragile"))
            ),
            at_risk=tuple(
                sorted({*at.memory.stable(at.incumbent.id), *at.memory.last_regressions()})
            ),
        ),
        attribution_signature=Signature(**entry.signature.model_dump()),
        failure_evidence=_anchors(touched),
        root_cause=entry.root_cause,
        fix=entry.fix,
        why_at_risk_hold=entry.holds,
    )
    return Candidate(
        candidate_id, at.incumbent.id, bundle, tuple(edits), manifest, f"catalogue:{label}"
    )


def _texts(edits: Sequence[Edit], count: int) -> list[str]:
    """One summary a change; where edits and changes differ in number, all edits in each."""
    lines = [describe(edit) for edit in edits]
    return lines if len(lines) == count else ["; ".join(lines)] * count


def _anchors(touched: Sequence[Evidence], most: int = 5) -> tuple[str, ...]:
    anchors = [excerpt.anchor for item in touched for excerpt in item.excerpts]
    counts = [f"{item.task}: {item.passed} of {item.runs} runs passed" for item in touched]
    return tuple((anchors or counts)[:most])
