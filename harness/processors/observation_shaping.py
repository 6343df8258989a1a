"""Observation shaping (D2): household sentences cut to what the model needs, and a length limit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from harness.events import StepStart, ToolResult
from harness.processor import PRE, Context, Processor
from harness.processors.household_text import facts, task_of


class ObservationShaping(Processor):
    """Rewrites each observation: the opening to `task: …`, a place to `shelf 1: apple 1, cup 2`.

    Anything it does not know is kept, cut at `max_chars` with a mark that says so.
    """

    kind: ClassVar[str] = "output_plumbing"
    singleton_group: ClassVar[str | None] = "observation_shaping"
    order: ClassVar[int] = PRE
    dimension: ClassVar[str] = "D2"

    max_chars: int = Field(400, ge=40)

    def shape(self, text: str) -> str:
        task = task_of(text)
        if task is not None:
            return f"task: {task}"
        found = facts(text)
        if found.place and found.seen is not None:
            return f"{found.place}: {', '.join(found.seen) or 'nothing'}"
        if found.place:
            return f"{found.place}: closed"
        text = re.sub(r"\s+", " ", text).strip()
        if len(text) > self.max_chars:
            text = text[: self.max_chars] + f" … [{len(text) - self.max_chars} characters cut]"
        return text

    def step_start(self, event: StepStart, ctx: Context) -> Iterator[StepStart]:
        """The opening observation is in the history before any tool has answered."""
        if event.step > 0 or not event.history:
            yield event
            return
        first = event.history[0]
        shaped = replace(first, content=self.shape(first.content))
        yield replace(event, history=(shaped, *event.history[1:]))

    def after_tool(self, event: ToolResult, ctx: Context) -> Iterator[ToolResult]:
        yield replace(event, content=self.shape(event.content))
