"""The catalogue director: which failures are worth an edit, and which kinds stand how.

Source: HarnessX §4 (Planner; the critic's portfolio rule).
"""

from __future__ import annotations

from pydantic import Field

from harness.evolve.parts import Part, Situation
from harness.evolve.records import Digest, Landscape, Objective


class CatalogueDirector(Part):
    """One objective a failure category, heaviest first.

    A task weighs its actionability, `regressed_weight` times that when the last shipped edit broke
    it, shared among its categories so that a task with many does not count many times. Categories
    below `min_weight` are left out.
    """

    regressed_weight: float = Field(2.0, ge=1)
    min_weight: float = Field(0.3, ge=0)

    async def plan(self, at: Situation, digest: Digest) -> Landscape:
        regressed = at.memory.last_regressions()
        tasks: dict[str, list[str]] = {}
        weights: dict[str, float] = {}
        for item in digest.tasks:
            if item.actionability <= 0 or not item.categories:
                continue
            weight = item.actionability * (self.regressed_weight if item.task in regressed else 1)
            for name in item.categories:
                tasks.setdefault(name, []).append(item.task)
                weights[name] = weights.get(name, 0.0) + weight / len(item.categories)
        objectives = [
            Objective(name, tuple(sorted(tasks[name])), round(weights[name], 6))
            for name in sorted(weights, key=lambda name: (-weights[name], name))
            if weights[name] >= self.min_weight
        ]
        return Landscape(
            tuple(objectives),
            at.memory.untried(),
            at.memory.reputation(),
            tuple(at.memory.held_back()),
            regressed,
        )
