"""The LLM critic: a model's opinion on each candidate before anything is rolled out.

A kind held back and a broken task that a manifest passes over are counted, not asked. An opinion
that cannot be read refuses every candidate. Source: HarnessX §4 (Critic).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from harness.change import summary
from harness.evolve.critics.rules import unaddressed
from harness.evolve.llm.briefing import (
    Anchors,
    edit_text,
    evidence_text,
    harness_text,
    ledger_text,
    section,
    standing_text,
)
from harness.evolve.llm.errors import MalformedOutput
from harness.evolve.llm.roles import answer, chat_of
from harness.evolve.parts import Need, Part, Situation
from harness.evolve.records import Candidate, Digest, Landscape, Review
from harness.shorten import head_and_tail


class Opinion(BaseModel):
    """On one candidate."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    candidate_id: str
    verdict: Literal["accept", "revise", "reject"]
    reason: str


class Answered(BaseModel):
    """On one task that the last shipped edit broke."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    task: str
    answer: str


class Opinions(BaseModel):
    """The whole review."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    verdicts: tuple[Opinion, ...]
    ranking: tuple[str, ...]
    regressed: tuple[Answered, ...]


class LLMCritic(Part):
    """One question about all candidates that may ship. max_diff: characters of a diff shown."""

    needs: ClassVar[frozenset[Need]] = frozenset({"llm"})

    max_diff: int = Field(12_000, ge=500)
    max_evidence: int = Field(24, ge=1)

    def least_tokens(self) -> int:
        return 2000

    async def review(
        self,
        at: Situation,
        digest: Digest,
        landscape: Landscape,
        candidates: tuple[Candidate, ...],
    ) -> Review:
        rejected: dict[str, str] = {}
        judged: list[Candidate] = []
        for item in candidates:
            kinds = summary(at.incumbent, item.bundle).kinds
            if held := sorted(set(kinds) & set(landscape.held_back)):
                rejected[item.candidate_id] = f"kind {', '.join(held)} is held back"
            else:
                judged.append(item)
        if not judged:
            return Review((), rejected)
        names = {item.candidate_id for item in judged}

        def check(opinions: Opinions) -> list[str]:
            return _problems(opinions, names, set(landscape.regressed))

        text = self._text(at, digest, landscape, judged)
        try:
            said = await answer(chat_of(at), "critic", text, Opinions, check, seed=at.seed)
        except MalformedOutput as error:
            why = f"no opinion, so it does not ship: {error.reason}"
            return Review((), {**rejected, **dict.fromkeys(sorted(names), why)})
        revise: dict[str, str] = {}
        for opinion in said.verdicts:
            if opinion.verdict == "reject":
                rejected[opinion.candidate_id] = opinion.reason
            elif opinion.verdict == "revise":
                revise[opinion.candidate_id] = opinion.reason
        for item in judged:
            left = unaddressed(item, landscape)
            if left and item.candidate_id not in rejected:
                note = f"say in the manifest what becomes of {', '.join(left)}, which broke lately"
                before = revise.get(item.candidate_id)
                revise[item.candidate_id] = f"{before}; also {note}" if before else note
        ranking = tuple(name for name in said.ranking if name not in revise)
        return Review(ranking, rejected, revise)

    def _text(
        self,
        at: Situation,
        digest: Digest,
        landscape: Landscape,
        candidates: Sequence[Candidate],
    ) -> str:
        anchors = Anchors()
        actionable = [item for item in digest.tasks if item.actionability > 0]
        stable = sorted(at.memory.stable(at.incumbent.id))
        parts = [
            section("Evidence", evidence_text(actionable[: self.max_evidence], anchors)),
            section("Tasks that always pass", ", ".join(stable) or "none known"),
            section("Harness", harness_text(at.incumbent)),
            section("Edits judged before", ledger_text(at.memory)),
            section("Kinds of edit", standing_text(landscape)),
        ]
        for item in candidates:
            manifest = item.manifest
            impact = manifest.predicted_impact
            names = [anchors.name(anchor) for anchor in manifest.failure_evidence]
            lines = [
                f"kinds: {', '.join(manifest.kinds)} ({manifest.edits} edits)",
                f"cause: {manifest.root_cause}",
                f"fix: {manifest.fix}",
                f"evidence: {', '.join(names)}",
                f"will unlock: {', '.join(impact.will_unlock) or 'none'}",
                f"will stabilise: {', '.join(impact.will_stabilise) or 'none'}",
                f"at risk: {', '.join(impact.at_risk) or 'none'}",
                f"why they hold: {manifest.why_at_risk_hold}",
                *(f"claim ({x.type}): {x.evidence}" for x in manifest.capability_evidence),
                "diff:",
                head_and_tail(edit_text(at.incumbent, item.bundle), self.max_diff),
            ]
            parts.append(section(f"Candidate {item.candidate_id}", "\n".join(lines)))
        return "\n".join(parts)


def _problems(opinions: Opinions, names: set[str], regressed: set[str]) -> list[str]:
    problems = []
    judged = [item.candidate_id for item in opinions.verdicts]
    if sorted(judged) != sorted(names):
        problems.append(f"verdicts are on {judged}; one on each of {sorted(names)} is expected")
    accepted = {item.candidate_id for item in opinions.verdicts if item.verdict == "accept"}
    if len(set(opinions.ranking)) != len(opinions.ranking) or set(opinions.ranking) != accepted:
        problems.append(
            f"ranking is {list(opinions.ranking)}; the accepted ones, {sorted(accepted)}, are "
            "expected once each"
        )
    for item in opinions.verdicts:
        if not item.reason.strip():
            problems.append(f"{item.candidate_id}: the reason is empty")
    answered = {item.task for item in opinions.regressed if item.answer.strip()}
    if left := sorted(regressed - answered):
        problems.append(f"regressed: nothing is said about {left}")
    return problems
