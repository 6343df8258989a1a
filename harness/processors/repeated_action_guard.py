"""Repeated-action guard (D7): a call that keeps giving the same result is not carried out again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from harness.events import BeforeModel, ToolCall, ToolResult
from harness.jsonvalue import thaw
from harness.processor import Context, Interrupt, Processor
from harness.processors.told import tell, with_told


class RepeatedActionGuard(Processor):
    """Blocks a call (same tool, same input) whose last `repeats` results in a row were all alike.

    The count starts again where any call gave something new in between. stop_after: blocked calls
    after which the run ends as truncated; None: never.
    """

    kind: ClassVar[str] = "control_flow"
    singleton_group: ClassVar[str | None] = "repeated_action_guard"
    dimension: ClassVar[str] = "D7"

    repeats: int = Field(2, ge=1)
    stop_after: int | None = Field(None, ge=1)

    def before_tool(self, event: ToolCall, ctx: Context) -> Iterator[ToolCall]:
        key = f"{event.name} {json.dumps(thaw(event.input), sort_keys=True)}"
        seen: dict[str, tuple[str, int]] = ctx.state.setdefault("seen", {})
        _, count = seen.get(key, ("", 0))
        if count < self.repeats:
            ctx.state.setdefault("pending", {})[event.call_id] = key
            yield event
            return
        blocked = ctx.state["blocked"] = ctx.state.get("blocked", 0) + 1
        if self.stop_after is not None and blocked >= self.stop_after:
            raise Interrupt(f"repeated_action_guard: {blocked} repeated calls", "truncated")
        tell(ctx, f"{event.name} gave the same result {count} times; try something else")
        yield replace(event, approved=False)

    def after_tool(self, event: ToolResult, ctx: Context) -> Iterator[ToolResult]:
        key = ctx.state.get("pending", {}).pop(event.call_id, None)
        if key is not None:
            seen: dict[str, tuple[str, int]] = ctx.state["seen"]
            last, count = seen.get(key, ("", 0))
            if count and last == event.content:
                seen[key] = (last, count + 1)
            else:
                seen.clear()  # something new: what was tried before may now do something else
                seen[key] = (event.content, 1)
        yield event

    def before_model(self, event: BeforeModel, ctx: Context) -> Iterator[BeforeModel]:
        yield with_told(event, ctx)
