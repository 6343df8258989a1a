"""Loop guard (D7): takes an action out of the choices once it was repeated without effect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pydantic import Field

from harness.events import BeforeModel, ToolCall, ToolResult
from harness.processor import Context, Processor
from harness.processors.last_user import last_user, with_last_user


class LoopGuard(Processor):
    """Counts (action, answer) pairs of the last `window` steps; an action that gave the same
    answer `repeats` times is not offered again while it stays in the window."""

    kind: ClassVar[str] = "control_flow"
    singleton_group: ClassVar[str | None] = "loop_guard"
    dimension: ClassVar[str] = "D7"

    repeats: int = Field(2, ge=1)
    window: int = Field(8, ge=2)

    def before_tool(self, event: ToolCall, ctx: Context) -> Iterator[ToolCall]:
        ctx.state["pending"] = str(event.input.get("command", ""))
        yield event

    def after_tool(self, event: ToolResult, ctx: Context) -> Iterator[ToolResult]:
        log: list[tuple[str, str]] = ctx.state.setdefault("log", [])
        log.append((ctx.state.get("pending", ""), event.content))
        del log[: -self.window]
        yield event

    def before_model(self, event: BeforeModel, ctx: Context) -> Iterator[BeforeModel]:
        log: list[tuple[str, str]] = ctx.state.get("log", [])
        stuck = {pair[0] for pair in log if log.count(pair) >= self.repeats}
        left = tuple(c for c in last_user(event)[1].choices if c not in stuck)
        yield with_last_user(event, choices=left) if left else event
