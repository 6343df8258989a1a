"""Trace mark (D8): notes in the harness trace where a text of the episode matches a pattern."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import ClassVar

from pydantic import Field, field_validator

from harness.events import ModelResponse, ToolResult
from harness.processor import PRE, Context, Processor


class TraceMark(Processor):
    """marks: label -> regular expression, searched in what the model says and what tools answer.

    Each hit writes `label: the match` to the trace's notes (kept at trace level `full`), where an
    analyst, or a person, finds the place. Changes nothing.
    """

    kind: ClassVar[str] = "output_plumbing"
    order: ClassVar[int] = PRE - 20  # what was really said, before it is shaped
    dimension: ClassVar[str] = "D8"

    marks: Mapping[str, str] = Field(min_length=1)

    @field_validator("marks")
    @classmethod
    def _compile(cls, marks: Mapping[str, str]) -> Mapping[str, str]:
        for label, pattern in marks.items():
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{label}: not a regular expression: {error}") from error
        return marks

    def after_model(self, event: ModelResponse, ctx: Context) -> Iterator[ModelResponse]:
        self.look(event.content, ctx)
        yield event

    def after_tool(self, event: ToolResult, ctx: Context) -> Iterator[ToolResult]:
        self.look(event.content, ctx)
        yield event

    def look(self, text: str, ctx: Context) -> None:
        for label, pattern in self.marks.items():
            found = re.search(pattern, text)
            if found:
                ctx.note(f"{label}: {found[0][:200]}")
