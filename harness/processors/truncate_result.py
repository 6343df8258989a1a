"""Result truncation (D2): long tool results are cut in the middle, at the end or at the start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from harness.events import ToolResult
from harness.processor import POST, Context, Processor
from harness.shorten import head_and_tail

_TAIL = {"head": 0.0, "middle": 0.5, "tail": 1.0}


class TruncateResult(Processor):
    """Cuts a result of more than `max_chars` characters; a mark says how much is missing.

    keep: `head` (the beginning, for documents), `tail` (the end, for logs), `middle` leaves out
    the middle. tools: only results of these tools; empty: of all.
    """

    kind: ClassVar[str] = "output_plumbing"
    singleton_group: ClassVar[str | None] = "truncate_result"
    order: ClassVar[int] = POST
    dimension: ClassVar[str] = "D2"

    max_chars: int = Field(4000, ge=40)
    keep: Literal["head", "middle", "tail"] = "middle"
    tools: tuple[str, ...] = ()

    def after_tool(self, event: ToolResult, ctx: Context) -> Iterator[ToolResult]:
        if self.tools and event.name not in self.tools:
            yield event
            return
        yield replace(event, content=head_and_tail(event.content, self.max_chars, _TAIL[self.keep]))
