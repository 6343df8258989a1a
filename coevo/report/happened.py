"""What happened to a run, for the page: its attempts and events, and its matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coevo.events import FAULTS, Attempt, Event, attempts, events, summary
from coevo.runs import Run

MAX_EVENTS = 300
"""Events in the page, the newest."""

_SHOWN_ELSEWHERE = frozenset({"last_life"})


def happened(run: Run) -> dict[str, Any] | None:
    """Attempts and events of a run; None where it recorded none."""
    found = events(run.path)
    if not found:
        return None
    told = [event for event in found if event.kind != "phase"]
    return {
        "summary": summary(found),
        "attempts": [_attempt(one, found, run.finished) for one in attempts(found)],
        "events": [
            {
                "time": event.time,
                "kind": event.kind,
                "attempt": event.attempt,
                "fault": event.kind in FAULTS,
                "text": _text(event.fields),
            }
            for event in told[-MAX_EVENTS:]
        ],
        "left_out": max(0, len(told) - MAX_EVENTS),
    }


def _attempt(one: Attempt, found: Sequence[Event], finished: bool) -> dict[str, Any]:
    """`until`: its end; of one that goes on, or whose end nobody saw, its last event."""
    after = next((e for e in found if e.kind == "resumed" and e.attempt == one.number + 1), None)
    down = after.fields.get("down_s") if after else None
    until = one.ended
    if until is None and after is not None and down is not None:
        until = after.time - down
    if until is None:
        until = max(e.time for e in found if e.attempt == one.number)
    return {
        "number": one.number,
        "started": one.started,
        "until": max(until, one.started),
        "going": not one.reason and not finished,
        "code": one.code,
        "reason": one.reason,
        "phases": one.phases,
        "lost_s": one.lost_s,
        "down_s": down,
    }


def _text(fields: Mapping[str, Any]) -> str:
    return "; ".join(
        f"{name.replace('_', ' ')}: {_plain(value)}"
        for name, value in fields.items()
        if name not in _SHOWN_ELSEWHERE and value not in (None, "", [], {})
    )


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {item}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value)
