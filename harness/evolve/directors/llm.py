"""The LLM director (Planner): which failures are worth an edit now, and in what direction.

The model groups, orders and explains; weights, reputations, untried kinds and regressions are
counted. Source: HarnessX §4 (Planner).
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from harness.evolve.llm.briefing import (
    Anchors,
    evidence_text,
    harness_text,
    ledger_text,
    section,
    standing_text,
)
from harness.evolve.llm.roles import answer, chat_of
from harness.evolve.parts import Need, Part, Situation
from harness.evolve.records import Digest, Landscape, Objective

MAX_DIRECTION = 600


class Aim(BaseModel):
    """One objective as the model puts it."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    category: str
    tasks: tuple[str, ...]
    direction: str


class Plan(BaseModel):
    """Objectives, best first; none: nothing is worth an edit now."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    objectives: tuple[Aim, ...]


class LLMDirector(Part):
    """At most `max_objectives`, in the model's order.

    A task weighs its actionability, `regressed_weight` times that when the last shipped edit broke
    it, shared among the objectives that name it. Every broken task that still fails must be named.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"llm"})

    max_objectives: int = Field(6, ge=1)
    regressed_weight: float = Field(2.0, ge=1)

    def least_tokens(self) -> int:
        return 1500

    async def plan(self, at: Situation, digest: Digest) -> Landscape:
        standing = Landscape(
            (),
            at.memory.untried(),
            at.memory.reputation(),
            tuple(at.memory.held_back()),
            at.memory.last_regressions(),
        )
        open_tasks = {item.task: item for item in digest.tasks if item.actionability > 0}
        text = "\n".join(
            [
                section("Broken by the last shipped edit", ", ".join(standing.regressed) or "none"),
                section("Evidence", evidence_text(open_tasks.values(), Anchors())),
                section("Harness", harness_text(at.incumbent)),
                section("Edits judged before", ledger_text(at.memory)),
                section("Kinds of edit", standing_text(standing)),
                f"Name at most {self.max_objectives} objectives.",
            ]
        )
        must = set(standing.regressed) & set(open_tasks)

        def check(plan: Plan) -> list[str]:
            return self._problems(plan, set(open_tasks), must)

        plan = await answer(chat_of(at), "planner", text, Plan, check, seed=at.seed)
        named = [task for aim in plan.objectives for task in set(aim.tasks)]
        objectives = []
        for aim in plan.objectives:
            tasks = tuple(sorted(set(aim.tasks)))
            weight = sum(
                open_tasks[task].actionability
                * (self.regressed_weight if task in standing.regressed else 1)
                / named.count(task)
                for task in tasks
            )
            direction = " ".join(aim.direction.split())
            objectives.append(Objective(aim.category, tasks, round(weight, 6), direction))
        return Landscape(
            tuple(objectives),
            standing.untried,
            standing.reputation,
            standing.held_back,
            standing.regressed,
        )

    def _problems(self, plan: Plan, tasks: set[str], must: set[str]) -> list[str]:
        problems = []
        if len(plan.objectives) > self.max_objectives:
            problems.append(f"{len(plan.objectives)} objectives; at most {self.max_objectives}")
        names = [aim.category for aim in plan.objectives]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            problems.append(f"categories {twice} are named twice; join them")
        for aim in plan.objectives:
            where = f"objective {aim.category!r:.60}"
            if not aim.tasks:
                problems.append(f"{where}: names no task")
            if unknown := sorted(set(aim.tasks) - tasks):
                problems.append(f"{where}: the evidence has no tasks {unknown[:5]}")
            if not 0 < len(aim.direction.strip()) <= MAX_DIRECTION:
                problems.append(f"{where}: direction must have 1 to {MAX_DIRECTION} characters")
        left = must - {task for aim in plan.objectives for task in aim.tasks}
        if left:
            problems.append(f"broken tasks {sorted(left)} are in no objective; name them first")
        return problems
