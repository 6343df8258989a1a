"""Completion check (D7): a final answer that is not finished is handed back with the reason."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar

from pydantic import Field, field_validator

from harness.events import BeforeModel, ModelResponse, ToolResult
from harness.processor import Context, Processor
from harness.processors.final_answer import is_final
from harness.processors.told import tell, with_told


class CompletionCheck(Processor):
    """A final answer must have `min_chars` characters, hold `pattern` (a regular expression) and
    come after a successful call of each of `needs_tools`; one cut off at the token limit is not
    finished either. Rejected `max_rejections` times at most, then taken as it is.

    hint: told together with the reason, to say what an answer looks like.
    """

    kind: ClassVar[str] = "control_flow"
    singleton_group: ClassVar[str | None] = "completion_check"
    dimension: ClassVar[str] = "D7"

    pattern: str | None = None
    min_chars: int = Field(1, ge=0)
    needs_tools: tuple[str, ...] = ()
    hint: str = ""
    max_rejections: int = Field(2, ge=1)

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"not a regular expression: {error}") from error
        return pattern

    def after_tool(self, event: ToolResult, ctx: Context) -> Iterator[ToolResult]:
        if not event.is_error:
            ctx.state.setdefault("called", set()).add(event.name)
        yield event

    def after_model(self, event: ModelResponse, ctx: Context) -> Iterator[ModelResponse]:
        rejected = ctx.state.get("rejected", 0)
        reason = self.missing(event, ctx) if is_final(event, ctx) else ""
        if not reason or rejected >= self.max_rejections:
            yield event
            return
        ctx.state["rejected"] = rejected + 1
        tell(ctx, " ".join(part for part in (f"Not finished: {reason}.", self.hint) if part))

    def before_model(self, event: BeforeModel, ctx: Context) -> Iterator[BeforeModel]:
        yield with_told(event, ctx)

    def missing(self, event: ModelResponse, ctx: Context) -> str:
        """Why the answer is not finished; empty where it is."""
        text = event.content.strip()
        absent = [t for t in self.needs_tools if t not in ctx.state.get("called", ())]
        if event.finish_reason == "length":
            return "the answer was cut off at the token limit"
        if absent:
            return f"{', '.join(absent)} was not called successfully"
        if len(text) < self.min_chars:
            return f"the answer has {len(text)} characters, at least {self.min_chars} are expected"
        if self.pattern is not None and not re.search(self.pattern, text):
            return f"the answer does not match {self.pattern}"
        return ""
