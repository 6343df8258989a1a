"""The LLM leakage screen: a model names unfair help in an edit; what cannot be read is refused.

Source: RRSI (leakage critic, six reasons). It runs after the deny-list screen and sees no deny term.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from harness.bundle import Bundle
from harness.edit import PutFile
from harness.edit import diff as diff_of
from harness.evolve.llm.briefing import edit_text, section
from harness.evolve.llm.errors import MalformedOutput
from harness.evolve.llm.roles import answer, chat_of
from harness.evolve.parts import Evaluate, Need, Part, ScreenResult, Situation
from harness.evolve.records import Candidate, Episode
from harness.shorten import head_and_tail

Reason = Literal[
    "leakage",
    "degenerate",
    "grader_gaming",
    "undeclared_bundling",
    "runtime_memory_leakage",
    "unbounded_work",
]


class LeakageVerdict(BaseModel):
    """The model's answer."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    verdict: Literal["pass", "refuse"]
    reasons: tuple[Reason, ...]
    explanation: str


class LeakageLLM(Part):
    """Asks up to `attempts` times until the answer can be read; then it refuses.

    max_diff: characters of the diff shown; a longer one is refused unseen, since what is cut out
    could hold anything. max_tasks: instructions shown.
    """

    stage: ClassVar[Literal["proposal", "select"]] = "proposal"
    needs: ClassVar[frozenset[Need]] = frozenset({"llm"})

    attempts: int = Field(3, ge=1, le=10)
    max_diff: int = Field(60_000, ge=500)
    max_tasks: int = Field(60, ge=1)

    def least_tokens(self) -> int:
        return 1500

    async def check(
        self, candidate: Candidate, at: Situation, episodes: Sequence[Episode], evaluate: Evaluate
    ) -> ScreenResult:
        diff = edit_text(at.incumbent, candidate.bundle)
        if unread := _not_text(at.incumbent, candidate.bundle):
            return ScreenResult(False, f"leakage: {unread!r} is no text, so it cannot be judged")
        if len(diff) > self.max_diff:
            return ScreenResult(
                False, f"leakage: the diff has {len(diff)} characters; {self.max_diff} are read"
            )
        text = self._text(candidate, at, diff)
        said = ""
        for attempt in range(self.attempts):
            try:
                found = await answer(
                    chat_of(at), "leakage", text, LeakageVerdict, _problems,
                    seed=at.seed, attempt=attempt, repairs=0,
                )  # fmt: skip
            except MalformedOutput as error:
                said = error.reason
                continue
            if found.verdict == "pass":
                return ScreenResult(True, found.explanation)
            return ScreenResult(False, f"{', '.join(found.reasons)}: {found.explanation}")
        return ScreenResult(
            False, f"leakage: unreadable {self.attempts} times, so it is refused; {said}"
        )

    def _text(self, candidate: Candidate, at: Situation, diff: str) -> str:
        instructions = sorted({run.instruction for run in at.episodes if run.instruction})
        shown = [f"- {head_and_tail(text, 500)}" for text in instructions[: self.max_tasks]]
        manifest = candidate.manifest
        declared = [f"- {change.path}: {change.summary}" for change in manifest.file_changes]
        return "\n".join(
            [
                section("Tasks that the author has seen", "\n".join(shown) or "none"),
                section("Summary by the author", f"{manifest.fix}\n" + "\n".join(declared)),
                section("Diff", diff),
            ]
        )


def _not_text(before: Bundle, after: Bundle) -> str | None:
    """A written file that a diff cannot show."""
    for edit in diff_of(before, after):
        if isinstance(edit, PutFile):
            try:
                text = edit.file.content.decode("utf-8")
            except UnicodeDecodeError:
                return edit.path
            if "\0" in text:
                return edit.path
    return None


def _problems(verdict: LeakageVerdict) -> list[str]:
    if bool(verdict.reasons) != (verdict.verdict == "refuse"):
        return ["reasons are given exactly when the verdict is refuse"]
    return []
