"""The batch selector: the round's own tasks, or a seeded part of them."""

from __future__ import annotations

import random

from pydantic import Field

from harness.evolve.parts import Part, Situation


class Batch(Part):
    """All tasks of the round, sorted; with `max_tasks`, a seeded sample of that size."""

    max_tasks: int | None = Field(None, ge=1)

    def select(self, at: Situation) -> tuple[str, ...]:
        tasks = sorted({episode.task for episode in at.episodes if episode.scored})
        if self.max_tasks is not None and len(tasks) > self.max_tasks:
            tasks = sorted(random.Random(f"{at.seed}:batch").sample(tasks, self.max_tasks))
        return tuple(tasks)
