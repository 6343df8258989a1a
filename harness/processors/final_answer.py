"""What a final answer is: a response without a tool call, where plain text is no action."""

from __future__ import annotations

from harness.events import ModelResponse
from harness.processor import Context


def is_final(event: ModelResponse, ctx: Context) -> bool:
    """Whether the run would end with this response."""
    return not event.tool_calls and ctx.task.action_tool is None
