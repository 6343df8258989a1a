"""Parse repair (D7): tool calls that a model wrote as text, or as broken JSON, become real calls."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

from harness.events import BeforeModel, ModelResponse, ToolCallSpec
from harness.processor import PRE, Context, Processor
from harness.processors.last_user import last_user

_BLOCK = re.compile(
    r"<tool_call>\s*(.*?)\s*(?:</tool_call>|\Z)|```(?:json)?\s*(\{.*?\})\s*```", re.S
)
_FENCE = re.compile(r"\A```\w*\s*(.*?)\s*```\Z", re.S)
_PREFIX = re.compile(r"(?:\A|\n)\s*(?:action|command|act)\s*:\s*(.+)", re.I)
_KEY = re.compile(r"([{,]\s*)([A-Za-z_]\w*)(\s*:)")
_TRAILING = re.compile(r",(\s*[}\]])")
_QUOTES = str.maketrans({"“": '"', "”": '"', "‘": "'", "’": "'"})
_MAX = 20_000


class ParseRepair(Processor):
    """Looks only at responses without a tool call.

    tool_calls: `<tool_call>{…}</tool_call>`, a fenced JSON block, or a response that is one JSON
    object with a tool's `name` and its `arguments` becomes a call; trailing commas, single quotes,
    bare keys, Python literals and missing closing brackets are mended. text_actions: where plain
    text is the action, fences, quotes and an `Action:` prefix are taken off, and an action that
    differs from an admitted one in case or blanks alone becomes that one.
    """

    kind: ClassVar[str] = "output_plumbing"
    singleton_group: ClassVar[str | None] = "parse_repair"
    order: ClassVar[int] = PRE
    dimension: ClassVar[str] = "D7"

    tool_calls: bool = True
    text_actions: bool = True

    def before_model(self, event: BeforeModel, ctx: Context) -> Iterator[BeforeModel]:
        ctx.state["choices"] = last_user(event)[1].choices
        yield event

    def after_model(self, event: ModelResponse, ctx: Context) -> Iterator[ModelResponse]:
        if event.tool_calls:
            yield event
            return
        if self.tool_calls:
            names = {tool.name for tool in ctx.task.tools}
            content, calls = calls_in(event.content, names, f"repair-{event.step}")
            if calls:
                yield replace(event, content=content, tool_calls=calls)
                return
        if self.text_actions and ctx.task.action_tool is not None:
            event = replace(event, content=action_in(event.content, ctx.state.get("choices", ())))
        yield event


def calls_in(text: str, names: set[str], call_id: str) -> tuple[str, tuple[ToolCallSpec, ...]]:
    """The text without its calls, and the calls of tools in `names` that it holds."""
    if len(text) > _MAX:
        return text, ()
    calls: list[ToolCallSpec] = []
    rest = text
    for match in _BLOCK.finditer(text):
        call = _call(match[1] or match[2], names, f"{call_id}-{len(calls)}")
        if call:
            calls.append(call)
            rest = rest.replace(match[0], "", 1)
    if not calls and text.lstrip().startswith("{"):
        call = _call(text.strip(), names, f"{call_id}-0")
        if call:
            return "", (call,)
    return rest.strip() if calls else text, tuple(calls)


def _call(text: str, names: set[str], call_id: str) -> ToolCallSpec | None:
    value = mend(text)
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict):
        return None
    name = value.get("name", value.get("tool"))
    given = value.get("arguments", value.get("parameters", value.get("input", {})))
    if isinstance(given, str):
        given = mend(given)
    # Also a name that no tool has: tool_call_correction or the host answers it. A JSON object
    # without arguments is a call only where the name is known.
    plain = "arguments" in value or "parameters" in value or "input" in value
    if not isinstance(name, str) or not isinstance(given, dict) or not (plain or name in names):
        return None
    return ToolCallSpec(call_id, name, given)


def mend(text: str) -> Any:
    """The JSON value that `text` means; None where it cannot be told."""
    text = text.strip()
    for candidate in _candidates(text):
        try:
            return json.loads(candidate, parse_constant=_refuse)
        except (ValueError, RecursionError):
            pass
        try:
            value = ast.literal_eval(candidate)
            return json.loads(json.dumps(value, allow_nan=False))
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            pass
    return None


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _candidates(text: str) -> Iterator[str]:
    """Ever more daring readings of `text`."""
    yield text
    closed = _closed(text)
    yield closed
    plain = _TRAILING.sub(r"\1", closed.translate(_QUOTES))
    yield plain
    quoted = _KEY.sub(r'\1"\2"\3', plain)
    yield quoted
    words = re.sub(r"\btrue\b", "True", quoted)
    yield re.sub(r"\bnull\b", "None", re.sub(r"\bfalse\b", "False", words))


def _closed(text: str) -> str:
    """`text` with the quote and the brackets closed that it leaves open; cut where it is whole."""
    open_brackets: list[str] = []
    quote = ""
    escaped = False
    for at, char in enumerate(text):
        if quote:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == quote:
                quote = ""
        elif char == '"':
            quote = char
        elif char in "{[":
            open_brackets.append("}" if char == "{" else "]")
        elif char in "}]" and open_brackets:
            open_brackets.pop()
            if not open_brackets:
                return text[: at + 1]
    return text + quote + "".join(reversed(open_brackets))


def action_in(text: str, choices: tuple[str, ...]) -> str:
    """The action that a chatty answer means."""
    if text in choices:
        return text
    plain = text.strip()
    fenced = _FENCE.fullmatch(plain)
    if fenced:
        plain = fenced[1].strip()
    prefixed = _PREFIX.findall(plain)
    if prefixed:
        plain = prefixed[-1].strip()
    for mark in ('"', "'", "`", "**"):
        if len(plain) > 2 * len(mark) and plain.startswith(mark) and plain.endswith(mark):
            plain = plain[len(mark) : -len(mark)].strip()
    wanted = " ".join(plain.rstrip(".").lower().split())
    for choice in choices:
        if " ".join(choice.lower().split()) == wanted:
            return choice
    return plain if prefixed or fenced else text
