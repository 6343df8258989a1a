"""Screens that read only the candidate: manifest, canonical form, edit budget, build, handbook."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from harness import handbook
from harness.build import build
from harness.bundle import Bundle, BundleError
from harness.change import summary
from harness.edit import EditError, apply, diff
from harness.evolve.budget import edit_budget
from harness.evolve.parts import Evaluate, Part, ScreenResult, Situation
from harness.evolve.records import Candidate, Episode

OK = ScreenResult(True)
_ID = re.compile(r"C-R(\d+)-\d{2}")


class ManifestComplete(Part):
    """Every field of the manifest is filled, and what it counts agrees with the diff."""

    stage: ClassVar[Literal["proposal", "select"]] = "proposal"

    async def check(
        self, candidate: Candidate, at: Situation, episodes: Sequence[Episode], evaluate: Evaluate
    ) -> ScreenResult:
        manifest = candidate.manifest
        problems = [
            f"{name} is empty"
            for name in ("root_cause", "fix", "why_at_risk_hold")
            if not getattr(manifest, name).strip()
        ]
        for name in ("capability_evidence", "file_changes", "failure_evidence"):
            if not getattr(manifest, name):
                problems.append(f"{name} is empty")
        found = _ID.fullmatch(candidate.candidate_id)
        if (
            not found
            or int(found[1]) != at.round
            or manifest.candidate_id != candidate.candidate_id
        ):
            problems.append(
                f"candidate_id {manifest.candidate_id!r} must be {candidate.candidate_id!r}, of the "
                f"form C-R{at.round}-NN"
            )
        impact = manifest.predicted_impact
        if not impact.will_unlock and not impact.will_stabilise:
            problems.append("predicted_impact names no task that would improve")
        if manifest.attribution_signature.expected_min_calls < 1:
            problems.append("attribution_signature.expected_min_calls must be at least 1")
        change = summary(at.incumbent, candidate.bundle)
        if (manifest.edits, tuple(sorted(manifest.kinds))) != (change.count, change.kinds):
            problems.append(
                f"it declares {manifest.edits} edits of kinds {sorted(manifest.kinds)}; the diff "
                f"has {change.count} of {list(change.kinds)}"
            )
        return ScreenResult(not problems, "; ".join(problems))


class CanonicalForm(Part):
    """The id changed, the bundle rebuilds from its parts, and the declared edits lead to it."""

    stage: ClassVar[Literal["proposal", "select"]] = "proposal"

    async def check(
        self, candidate: Candidate, at: Situation, episodes: Sequence[Episode], evaluate: Evaluate
    ) -> ScreenResult:
        if candidate.harness_id == at.incumbent.id:
            return ScreenResult(False, "the edits change nothing: its id is the incumbent's")
        if candidate.parent != at.incumbent.id:
            return ScreenResult(False, f"its parent {candidate.parent[:12]} is not the incumbent")
        try:
            bundle = candidate.bundle
            rebuilt = Bundle(bundle.components, bundle.files)
            replayed = apply(at.incumbent, diff(at.incumbent, bundle))
            declared = apply(at.incumbent, candidate.edits)
        except (BundleError, EditError) as error:
            return ScreenResult(False, str(error))
        if not rebuilt.id == replayed.id == declared.id == bundle.id:
            return ScreenResult(False, "its declared edits do not lead to its bundle")
        return OK


class EditBudget(Part):
    """At most b_t changes in round t, counted from the diff (RRSI's cosine schedule)."""

    stage: ClassVar[Literal["proposal", "select"]] = "proposal"

    b_min: int = Field(1, ge=1)
    b_max: int = Field(4, ge=1)
    horizon: int = Field(15, ge=1)

    @model_validator(mode="after")
    def _ordered(self) -> EditBudget:
        if self.b_max < self.b_min:
            raise ValueError(f"b_max {self.b_max} is below b_min {self.b_min}")
        return self

    async def check(
        self, candidate: Candidate, at: Situation, episodes: Sequence[Episode], evaluate: Evaluate
    ) -> ScreenResult:
        most = edit_budget(at.round, self.horizon, self.b_min, self.b_max)
        count = summary(at.incumbent, candidate.bundle).count
        if count > most:
            return ScreenResult(False, f"{count} changes; round {at.round} allows {most}")
        return OK


class Build(Part):
    """The bundle builds. Code of its own is never run here: the smoke run builds it, contained."""

    stage: ClassVar[Literal["proposal", "select"]] = "proposal"

    async def check(
        self, candidate: Candidate, at: Situation, episodes: Sequence[Episode], evaluate: Evaluate
    ) -> ScreenResult:
        if candidate.bundle.has_own_code:
            return ScreenResult(True, "own code: left to the smoke run")
        try:
            build(candidate.bundle, allow_own_code=False)
        except BundleError as error:
            return ScreenResult(False, "; ".join(error.problems))
        return OK


class Handbook(Part):
    """The handbook still fits the harness: every function is there, own code is all described.

    Files are parsed, never run; a harness without a handbook passes.
    """

    stage: ClassVar[Literal["proposal", "select"]] = "proposal"

    async def check(
        self, candidate: Candidate, at: Situation, episodes: Sequence[Episode], evaluate: Evaluate
    ) -> ScreenResult:
        try:
            handbook.check(candidate.bundle)
        except handbook.HandbookError as error:
            return ScreenResult(False, "; ".join(error.problems))
        return OK
