"""The hook table as code: which fields of an event a processor may change, checked after every call.

Source: HarnessX §3 (hook table). The check is by identity first, so that an unchanged event costs
next to nothing, then by value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from harness.events import EVENT_OF_HOOK, HOOKS, BeforeModel, Message, ToolCallSpec
from harness.jsonvalue import FrozenDict, freeze

ALLOWED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "task_start": ("system_prompt",),
        "step_start": ("history",),
        "before_model": ("messages",),
        "after_model": ("content", "tool_calls"),
        "before_tool": ("input", "approved"),
        "after_tool": ("content", "is_error", "choices"),
        "step_end": (),
        "task_end": (),
    }
)
"""Hook -> fields that a processor may change."""

READ_ONLY: frozenset[str] = frozenset(hook for hook in HOOKS if not ALLOWED[hook])
"""Hooks that must yield exactly the event they were given, once."""


class Breach(Exception):
    """What `check` found: the field and what is wrong with it. The pipeline adds who and where."""

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(f"{field}: {detail}")
        self.field = field
        self.detail = detail


Snapshot = tuple[Any, ...]


def _names(cls: type) -> tuple[str, ...]:
    return tuple(f.name for f in fields(cls))


_FIELDS: dict[str, tuple[str, ...]] = {hook: _names(cls) for hook, cls in EVENT_OF_HOOK.items()}
SNAPSHOT: Mapping[str, Callable[[Any], Snapshot]] = MappingProxyType(
    {hook: attrgetter(*names) for hook, names in _FIELDS.items()}
)
"""Hook -> the event's field values as a tuple: taken before a call, compared after it."""


def check(hook: str, before: Snapshot, event: object) -> tuple[Any, bool]:
    """The event that a processor yielded at `hook`, normalised, and whether it changed anything.

    `before` is the snapshot of the event that it was given. Raises Breach.
    """
    expected = EVENT_OF_HOOK[hook]
    if type(event) is not expected:
        raise Breach(
            "event",
            f"yielded {type(event).__name__}; {hook} yields {expected.__name__} events",
        )
    after = SNAPSHOT[hook](event)
    changed: list[str] = []
    for name, old, new in zip(_FIELDS[hook], before, after, strict=True):
        if new is old:
            continue
        if type(new) is type(old) and new == old:
            continue
        if name not in ALLOWED[hook]:
            raise Breach(
                name,
                f"changed from {_short(old)} to {_short(new)}; {hook} may change "
                f"{', '.join(ALLOWED[hook]) or 'nothing'}",
            )
        changed.append(name)
    if not changed:
        return event, False
    event = _CHANGED[hook](event, dict(zip(_FIELDS[hook], before, strict=True)), changed)
    return event, True


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _expect(field: str, value: object, kind: type) -> None:
    if type(value) is not kind:
        raise Breach(field, f"is {type(value).__name__}; {kind.__name__} is expected")


def _text(field: str, value: object) -> None:
    _expect(field, value, str)
    if not value.isascii():  # type: ignore[attr-defined]
        try:
            value.encode("utf-8")  # type: ignore[attr-defined]
        except UnicodeEncodeError as error:
            raise Breach(field, f"is no valid text: {error}; no lone surrogates") from error


def _strings(field: str, value: object) -> None:
    if type(value) is not tuple or not all(type(item) is str for item in value):
        raise Breach(field, f"is {_short(value)}; a tuple of str is expected")
    for i, item in enumerate(value):
        _text(f"{field}[{i}]", item)


def frozen_calls(field: str, value: object) -> tuple[ToolCallSpec, ...]:
    """The same calls with deeply frozen inputs. Raises Breach."""
    if type(value) is not tuple:
        raise Breach(field, f"is {type(value).__name__}; a tuple of ToolCallSpec is expected")
    out = []
    for i, call in enumerate(value):
        where = f"{field}[{i}]"
        _expect(where, call, ToolCallSpec)
        _text(f"{where}.call_id", call.call_id)
        _text(f"{where}.name", call.name)
        if type(call.input) is not FrozenDict:
            call = replace(call, input=frozen_mapping(f"{where}.input", call.input))
        out.append(call)
    return tuple(out)


def frozen_mapping(field: str, value: object) -> FrozenDict[str, Any]:
    """A JSON object, deeply frozen. Raises Breach."""
    if not isinstance(value, Mapping):
        raise Breach(field, f"is {type(value).__name__}; a mapping is expected")
    problems: list[str] = []
    frozen: FrozenDict[str, Any] = freeze(value, field, problems)
    if problems:
        raise Breach(field, "; ".join(problems))
    return frozen


def _message(field: str, message: object) -> Message:
    if type(message) is not Message:
        raise Breach(field, f"is {type(message).__name__}; Message is expected")
    _text(f"{field}.content", message.content)
    _strings(f"{field}.choices", message.choices)
    if message.tool_call_id is not None:
        _text(f"{field}.tool_call_id", message.tool_call_id)
    if message.role not in ("user", "assistant", "tool"):
        raise Breach(
            f"{field}.role", f"is {message.role!r}; user, assistant or tool is expected here"
        )
    calls = frozen_calls(f"{field}.tool_calls", message.tool_calls)
    return message if calls == message.tool_calls else replace(message, tool_calls=calls)


def _task_start(event: Any, old: dict[str, Any], changed: list[str]) -> Any:
    _text("system_prompt", event.system_prompt)
    return event


def _step_start(event: Any, old: dict[str, Any], changed: list[str]) -> Any:
    if type(event.history) is not tuple:
        raise Breach(
            "history", f"is {type(event.history).__name__}; a tuple of Message is expected"
        )
    known = {id(message) for message in old["history"]}
    history = tuple(
        m if id(m) in known else _message(f"history[{i}]", m) for i, m in enumerate(event.history)
    )
    # Chat templates refuse a conversation without a user turn: the engine would fail, not the edit.
    if not any(message.role == "user" for message in history):
        raise Breach("history", "has no user message left; keep at least one")
    return replace(event, history=history)


def _before_model(event: BeforeModel, old: dict[str, Any], changed: list[str]) -> Any:
    was, now = old["messages"], event.messages
    if type(now) is not tuple:
        raise Breach("messages", f"is {type(now).__name__}; a tuple of Message is expected")
    if len(now) not in (len(was), len(was) + 1):
        raise Breach(
            "messages",
            f"has {len(now)} messages for {len(was)}; before_model keeps all and may append one",
        )
    last = next((i for i in range(len(was) - 1, -1, -1) if was[i].role in ("user", "tool")), -1)
    out = list(now)
    for i, message in enumerate(was):
        if now[i] is message:
            continue
        if i != last:
            if now[i] != message:
                raise Breach(
                    f"messages[{i}]",
                    f"changed; before_model may change the last user message (messages[{last}])",
                )
            continue
        out[i] = _message(f"messages[{i}]", now[i])
        if replace(out[i], content=message.content, choices=message.choices) != message:
            raise Breach(f"messages[{i}]", "changed beside content and choices")
    if len(now) > len(was):
        out[-1] = _message(f"messages[{len(was)}]", now[-1])
        if out[-1].role != "user" or out[-1].tool_calls or out[-1].tool_call_id is not None:
            raise Breach(
                f"messages[{len(was)}]",
                f"appends a {out[-1].role} message; before_model may append one user message",
            )
    return replace(event, messages=tuple(out))


def _after_model(event: Any, old: dict[str, Any], changed: list[str]) -> Any:
    _text("content", event.content)
    if "tool_calls" in changed:
        event = replace(event, tool_calls=frozen_calls("tool_calls", event.tool_calls))
    return event


def _before_tool(event: Any, old: dict[str, Any], changed: list[str]) -> Any:
    _expect("approved", event.approved, bool)
    if "input" in changed:
        event = replace(event, input=frozen_mapping("input", event.input))
    return event


def _after_tool(event: Any, old: dict[str, Any], changed: list[str]) -> Any:
    _text("content", event.content)
    _expect("is_error", event.is_error, bool)
    _strings("choices", event.choices)
    return event


_CHANGED: dict[str, Callable[[Any, dict[str, Any], list[str]], Any]] = {
    "task_start": _task_start,
    "step_start": _step_start,
    "before_model": _before_model,
    "after_model": _after_model,
    "before_tool": _before_tool,
    "after_tool": _after_tool,
}
