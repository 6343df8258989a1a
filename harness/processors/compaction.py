"""Compaction (D2): where the history grows too long, its middle becomes a summary."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from harness.events import Message, StepStart
from harness.host import ModelRequest
from harness.processor import Context, Processor
from harness.shorten import head_and_tail

INSTRUCTION = (
    "Summarise what was done and learned in these steps of a task: facts, what worked, what "
    "failed, what is left to do. Be short and keep names and numbers exactly."
)
TITLE = "Summary of earlier steps:"


class Compaction(Processor):
    """Summarises all but the opening message and the last `keep_turns` assistant turns.

    Done where the history has more than `max_chars` characters. The summary is put below the
    opening message, and the next one replaces it. mode `model`: the model writes it (one call,
    role `summariser`, at most `summary_tokens`; instruction `prompt`); mode `extract`: the first
    `line_chars` characters of every message, a line each, the newest kept within `max_chars` / 4.
    Answers of a tool are never parted from their call.
    """

    kind: ClassVar[str] = "context_mgmt"
    singleton_group: ClassVar[str | None] = "compaction"
    dimension: ClassVar[str] = "D2"

    max_chars: int = Field(12_000, ge=200)
    keep_turns: int = Field(3, ge=1)
    mode: Literal["model", "extract"] = "model"
    prompt: str = INSTRUCTION
    summary_tokens: int = Field(400, ge=16)
    line_chars: int = Field(120, ge=20)

    async def step_start(self, event: StepStart, ctx: Context) -> AsyncIterator[StepStart]:
        history = event.history
        starts = [i for i, message in enumerate(history) if message.role == "assistant"]
        long = sum(len(message.content) for message in history) > self.max_chars
        cut = starts[-self.keep_turns] if len(starts) > self.keep_turns else 0
        if not long or cut <= 1:
            yield event
            return
        opening: str = ctx.state.setdefault("opening", history[0].content)
        before: str = ctx.state.get("summary", "")
        if self.mode == "model":
            summary = await self.summarise(event.step, before, history[1:cut], ctx)
        else:
            summary = self.extract(before, history[1:cut])
        ctx.state["summary"] = summary
        first = replace(history[0], content=f"{opening}\n\n{TITLE}\n{summary}")
        yield replace(event, history=(first, *history[cut:]))

    async def summarise(
        self, step: int, before: str, middle: tuple[Message, ...], ctx: Context
    ) -> str:
        parts = [before, *(f"{m.role}: {text_of(m)}" for m in middle)]
        text = head_and_tail("\n".join(part for part in parts if part), 4 * self.max_chars)
        request = ModelRequest(
            step,
            (Message("system", self.prompt), Message("user", text)),
            role="summariser",
            max_tokens=self.summary_tokens,
        )
        return (await ctx.host.model(request)).content.strip()

    def extract(self, before: str, middle: tuple[Message, ...]) -> str:
        lines = before.split("\n") if before else []
        for message in middle:
            text = " ".join(text_of(message).split())
            mark = "…" if len(text) > self.line_chars else ""
            lines.append(f"- {message.role}: {text[: self.line_chars]}{mark}")
        while len(lines) > 1 and sum(len(line) + 1 for line in lines) > self.max_chars // 4:
            del lines[0]
        return "\n".join(lines)


def text_of(message: Message) -> str:
    """The message's words and the calls in it."""
    calls = ", ".join(f"{call.name}({dict(call.input)})" for call in message.tool_calls)
    return " ".join(part for part in (message.content, calls) if part)
