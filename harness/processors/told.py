"""What the harness tells the model on its next turn: lines below the last user or tool message.

A hook that blocks or rejects something cannot speak to the model itself; it leaves a line here, and
its before_model hook writes them out.
"""

from __future__ import annotations

from harness.events import BeforeModel
from harness.processor import Context
from harness.processors.last_user import append_to_last_user

_KEY = "told"


def tell(ctx: Context, text: str) -> None:
    """Tell the model `text` on its next turn."""
    ctx.state.setdefault(_KEY, []).append(text)


def with_told(event: BeforeModel, ctx: Context) -> BeforeModel:
    """The event with all that is to be told, each a line in brackets; told once."""
    for text in ctx.state.pop(_KEY, []):
        event = append_to_last_user(event, f"[{text}]")
    return event
