"""The LLM analyst (Digester): a model names each failing task's cause; rules keep the facts.

Runs, passes, verdict and actionability are counted, never asked for. An excerpt is quoted from the
trace by the anchor that the model chose, and an anchor that does not exist is refused.
Source: HarnessX §4 (Digester).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from harness.evolve.analysts.rules import CATEGORIES, Rules
from harness.evolve.analysts.size import MAX_DIGEST_TOKENS, tokens, within
from harness.evolve.llm.briefing import harness_text, ledger_text, section
from harness.evolve.llm.roles import answer, chat_of, together
from harness.evolve.parts import Need, Part, Situation
from harness.evolve.records import Digest, Episode, Evidence, Excerpt, TraceStep

_CATEGORY = re.compile(r"[a-z][a-z_]{2,39}")
MAX_FINDING = 400
MAX_EXCERPT = 160


class Finding(BaseModel):
    """The model's answer on one task."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    task: str
    category: str
    components: tuple[str, ...]
    anchors: tuple[str, ...]
    finding: str


class Findings(BaseModel):
    """The model's answer on one batch."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    tasks: tuple[Finding, ...]


class LLMAnalyst(Part):
    """Digests the actionable tasks, `batch` of them a question; all batches at once.

    rules: of the facts, and of what is handed on as a first guess. runs: of a task that are shown,
    a failed one first, then one that passed. steps: of a run, half from each end. max_excerpts: of a
    task. max_asked: tasks that the model is asked about; the rest keep what the rules say of them.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"labels", "llm"})

    rules: Rules = Rules()
    batch: int = Field(6, ge=1)
    runs: int = Field(2, ge=1)
    steps: int = Field(24, ge=2)
    max_excerpts: int = Field(3, ge=1)
    max_asked: int = Field(48, ge=1)
    max_digest_tokens: int = Field(MAX_DIGEST_TOKENS, ge=100)

    def least_tokens(self) -> int:
        return 1500

    async def digest(self, at: Situation) -> Digest:
        facts = await self.rules.digest(at)
        asked = [item for item in facts.tasks if item.actionability > 0][: self.max_asked]
        batches = [asked[n : n + self.batch] for n in range(0, len(asked), self.batch)]
        answers = await together([self._found(batch, at) for batch in batches])
        found = {item.task: item for answer in answers for item in answer}
        items = [found.get(item.task, item) for item in facts.tasks]
        kept = within(items, self.max_digest_tokens)
        return Digest(kept, facts.raw_tokens, tokens(kept))

    async def _found(self, batch: Sequence[Evidence], at: Situation) -> list[Evidence]:
        """The batch's evidence with the model's findings in it."""
        excerpts: dict[str, dict[str, Excerpt]] = {item.task: {} for item in batch}
        text = self._text(batch, at, excerpts)
        components = {item.id for item in at.incumbent.components}

        def check(answer: Findings) -> list[str]:
            return self._problems(answer, excerpts, components)

        found = await answer(chat_of(at), "digester", text, Findings, check, seed=at.seed)
        said = {item.task: item for item in found.tasks}
        return [self._joined(item, said[item.task], excerpts[item.task]) for item in batch]

    def _text(
        self, batch: Sequence[Evidence], at: Situation, excerpts: dict[str, dict[str, Excerpt]]
    ) -> str:
        parts = [
            section("Harness", harness_text(at.incumbent)),
            section("Known categories", ", ".join(CATEGORIES)),
            section("Edits judged before", ledger_text(at.memory)),
        ]
        for item in batch:
            lines = [
                f"instruction: {item.instruction}",
                f"{item.passed} of {item.runs} runs passed; rules suspect: "
                f"{', '.join(item.categories) or 'nothing'}",
            ]
            for number, run in enumerate(self._shown(item.task, at.episodes), 1):
                how = "passed" if run.success else "failed"
                lines.append(f"run {number}: {how}, {run.outcome}, {run.steps} steps")
                for step in _ends(run.trace, self.steps):
                    name = f"{number}.{step.step}"
                    flags = f" [{', '.join(step.flags)}]" if step.flags else ""
                    said = f"{step.action} -> {step.observation}{flags}"
                    anchor = f"{run.ref or run.task}#step={step.step}"
                    excerpts[item.task][name] = Excerpt(anchor, said[:MAX_EXCERPT])
                    lines.append(f"  [{name}] {said}")
            parts.append(section(f"Task {item.task}", "\n".join(lines)))
        return "\n".join(parts)

    def _shown(self, task: str, episodes: Sequence[Episode]) -> list[Episode]:
        own = [run for run in episodes if run.task == task and run.scored]
        failed = [run for run in own if not run.success]
        passed = [run for run in own if run.success]
        return [*failed[:1], *passed[:1], *failed[1:], *passed[1:]][: self.runs]

    def _problems(
        self,
        answer: Findings,
        excerpts: Mapping[str, Mapping[str, Excerpt]],
        components: set[str],
    ) -> list[str]:
        problems = []
        names = [item.task for item in answer.tasks]
        if sorted(names) != sorted(excerpts):
            problems.append(
                f"tasks are {names}; exactly one entry for each of {list(excerpts)} is expected"
            )
        for item in answer.tasks:
            where = f"task {item.task}"
            if not _CATEGORY.fullmatch(item.category):
                problems.append(f"{where}: category {item.category!r:.60} is no name_like_this")
            if unknown := sorted(set(item.components) - components):
                problems.append(f"{where}: the harness has no components {unknown}")
            if unknown := sorted(set(item.anchors) - set(excerpts.get(item.task, {}))):
                problems.append(f"{where}: there are no anchors {unknown}; copy them from its runs")
            if len(item.anchors) > self.max_excerpts:
                problems.append(f"{where}: more than {self.max_excerpts} anchors")
            if not 0 < len(item.finding.strip()) <= MAX_FINDING:
                problems.append(f"{where}: finding must have 1 to {MAX_FINDING} characters")
        return problems

    def _joined(self, item: Evidence, said: Finding, excerpts: Mapping[str, Excerpt]) -> Evidence:
        rest = (name for name in item.categories if name != said.category)
        return replace(
            item,
            category=said.category,
            categories=(said.category, *rest),
            components=tuple(dict.fromkeys(said.components)),
            excerpts=tuple(excerpts[name] for name in dict.fromkeys(said.anchors)),
            finding=" ".join(said.finding.split()),
        )


def _ends(trace: Sequence[TraceStep], most: int) -> Sequence[TraceStep]:
    """At most `most` steps, half of them from each end."""
    if len(trace) <= most:
        return trace
    head = most - most // 2
    return (*trace[:head], *trace[len(trace) - most // 2 :])
