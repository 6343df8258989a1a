"""The one edit that before_model allows, in one place: change the last user (or tool) message."""

from __future__ import annotations

from dataclasses import replace

from harness.events import BeforeModel, Message


def last_user(event: BeforeModel) -> tuple[int, Message]:
    """Index and message of the last user or tool message.

    Raises ValueError where the event carries none."""
    for i in range(len(event.messages) - 1, -1, -1):
        if event.messages[i].role in ("user", "tool"):
            return i, event.messages[i]
    raise ValueError(f"before_model at step {event.step} carries no user message to change")


def with_last_user(event: BeforeModel, **changes: object) -> BeforeModel:
    """The event with `changes` made to its last user message."""
    i, message = last_user(event)
    changed = replace(message, **changes)  # type: ignore[arg-type]
    return replace(event, messages=(*event.messages[:i], changed, *event.messages[i + 1 :]))


def append_to_last_user(event: BeforeModel, line: str) -> BeforeModel:
    """The event with one line added below its last user message."""
    return with_last_user(event, content=f"{last_user(event)[1].content}\n{line}")
