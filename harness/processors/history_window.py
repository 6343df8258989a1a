"""History window (D2): the opening message and the last few exchanges, nothing between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from harness.events import StepStart
from harness.processor import Context, Processor


class HistoryWindow(Processor):
    """Keeps the opening user message and the last `turns` assistant turns with their answers.

    A cut falls only before an assistant message, so no tool answer loses its call.
    """

    kind: ClassVar[str] = "context_mgmt"
    singleton_group: ClassVar[str | None] = "history_window"
    dimension: ClassVar[str] = "D2"

    turns: int = Field(4, ge=0)

    def step_start(self, event: StepStart, ctx: Context) -> Iterator[StepStart]:
        starts = [i for i, m in enumerate(event.history) if m.role == "assistant"]
        if len(starts) <= self.turns:
            yield event
            return
        cut = starts[-self.turns] if self.turns else len(event.history) - 1
        yield replace(event, history=(event.history[0], *event.history[max(cut, 1) :]))
