"""JSON lines between the worker and the harness process, checked strictly on both sides.

child → worker: {"type": "ready", …} once confined, {"type": "model" | "tool", "id", "request"}
(see harness.sandbox.prompts for a model's), {"type": "done", "result", "harness"}. worker → child:
the bundle, the start of the episode, then for each request {"id", "reply"} or {"id", "error":
{"kind", "message"}}. A line is at most `MAX_LINE` bytes of UTF-8 JSON with finite numbers; anything
else is a ProtocolError, and never a guess.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from harness.bundle import Bundle, component_from_record
from harness.component import File
from harness.events import Message, TaskView, ToolCallSpec, ToolSpec
from harness.host import ModelReply, ToolReply, ToolRequest
from harness.jsonvalue import FrozenDict, freeze, thaw
from harness.metered import Budgets
from harness.runloop import STATUSES, RunResult
from harness.trace import LEVELS, Level, readable

MAX_LINE = 8 << 20
"""Bytes of one message."""

MAX_TEXT = 1 << 20
"""Characters of one text in a request."""

MAX_REASON = 4000

_SURROGATE = re.compile("[\ud800-\udfff]")


class ProtocolError(ValueError):
    """A line from the other side that is not a message of this protocol."""


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


# Made once: `json.dumps` and `json.loads` with options make one a call.
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def encode(message: Mapping[str, Any], limit: int = MAX_LINE) -> bytes:
    """One line, newline included. Raises ProtocolError where it is not JSON or too long."""
    try:
        line = _ENCODER.encode(message).encode("ascii") + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"message cannot be sent: {error}") from error
    if len(line) > limit:
        raise ProtocolError(f"message has {len(line)} bytes; at most {limit} are sent")
    return line


def decode(line: bytes) -> dict[str, Any]:
    """The JSON object of one line, given without its end. Raises ProtocolError."""
    try:
        value = _DECODER.decode(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"{type(error).__name__}: {error} in {line[:80]!r}") from error
    if type(value) is not dict:
        raise ProtocolError(f"a JSON object is expected, not {type(value).__name__}")
    return value


def get(record: Any, key: str, *kinds: type) -> Any:
    """`record[key]`, of one of `kinds` exactly, text within its limits. Raises ProtocolError."""
    if type(record) is not dict:
        raise ProtocolError(f"a JSON object with {key!r} is expected, not {type(record).__name__}")
    value = record.get(key)
    if type(value) not in kinds:
        raise ProtocolError(
            f"{key!r} is {type(value).__name__} {repr(value)[:60]}; "
            f"{' or '.join(k.__name__ for k in kinds)} is expected"
        )
    if type(value) is str:
        _check_text(key, value)
    return value


def _check_text(key: str, value: str) -> None:
    if len(value) > MAX_TEXT:
        raise ProtocolError(f"{key!r} has {len(value)} characters; at most {MAX_TEXT} are read")
    if not value.isascii() and _SURROGATE.search(value):
        raise ProtocolError(f"{key!r} holds a lone surrogate; valid Unicode text is expected")


def _texts(record: Any, key: str) -> tuple[str, ...]:
    value = get(record, key, list)
    for item in value:
        if type(item) is not str:
            raise ProtocolError(f"{key!r} holds {type(item).__name__}; a list of str is expected")
        _check_text(key, item)
    return tuple(value)


def count(record: Any, key: str) -> int:
    """`record[key]`, a count. Raises ProtocolError."""
    value: int = get(record, key, int)
    if not 0 <= value < 1 << 31:
        raise ProtocolError(f"{key!r} is {value}; a count from 0 to 2^31 is expected")
    return value


def _mapping(record: Any, key: str) -> FrozenDict[str, Any]:
    problems: list[str] = []
    frozen: FrozenDict[str, Any] = freeze(get(record, key, dict), key, problems)
    if problems:
        raise ProtocolError("; ".join(problems)[:500])
    return frozen


# -- messages and calls -------------------------------------------------------------------------


def dump_calls(calls: tuple[ToolCallSpec, ...]) -> list[dict[str, Any]]:
    return [{"call_id": c.call_id, "name": c.name, "input": thaw(c.input)} for c in calls]


def load_calls(record: Any) -> tuple[ToolCallSpec, ...]:
    return tuple(
        ToolCallSpec(get(c, "call_id", str), get(c, "name", str), _mapping(c, "input"))
        for c in get(record, "tool_calls", list)
    )


def dump_message(message: Message) -> dict[str, Any]:
    return {
        "role": message.role,
        "content": message.content,
        "choices": list(message.choices),
        "tool_calls": dump_calls(message.tool_calls),
        "tool_call_id": message.tool_call_id,
    }


def load_message(record: Any) -> Message:
    """Raises ProtocolError, as all `load_` functions do."""
    role = get(record, "role", str)
    if role not in ("system", "user", "assistant", "tool"):
        raise ProtocolError(f"'role' is {role[:60]!r}; system, user, assistant or tool is expected")
    return Message(
        role,
        get(record, "content", str),
        _texts(record, "choices"),
        load_calls(record),
        get(record, "tool_call_id", str, type(None)),
    )


def dump_tools(tools: tuple[ToolSpec, ...]) -> list[dict[str, Any]]:
    return [
        {"name": t.name, "description": t.description, "parameters": thaw(t.parameters)}
        for t in tools
    ]


def load_tools(record: Any) -> tuple[ToolSpec, ...]:
    return tuple(
        ToolSpec(get(t, "name", str), get(t, "description", str), _mapping(t, "parameters"))
        for t in get(record, "tools", list)
    )


def dump_model_reply(reply: ModelReply) -> dict[str, Any]:
    return {
        "content": reply.content,
        "tool_calls": dump_calls(reply.tool_calls),
        "finish_reason": reply.finish_reason,
        "prompt_tokens": reply.prompt_tokens,
        "sampled_tokens": reply.sampled_tokens,
    }


def load_model_reply(record: Any) -> ModelReply:
    return ModelReply(
        get(record, "content", str),
        load_calls(record),
        get(record, "finish_reason", str),
        count(record, "prompt_tokens"),
        count(record, "sampled_tokens"),
    )


def dump_tool_request(request: ToolRequest) -> dict[str, Any]:
    return {
        "step": request.step,
        "call_id": request.call_id,
        "name": request.name,
        "input": thaw(request.input),
    }


def load_tool_request(record: Any) -> ToolRequest:
    return ToolRequest(
        count(record, "step"),
        get(record, "call_id", str),
        get(record, "name", str),
        thaw(_mapping(record, "input")),
    )


def dump_tool_reply(reply: ToolReply) -> dict[str, Any]:
    return {
        "content": reply.content,
        "is_error": reply.is_error,
        "choices": list(reply.choices),
        "done": reply.done,
    }


def load_tool_reply(record: Any) -> ToolReply:
    return ToolReply(
        get(record, "content", str),
        get(record, "is_error", bool),
        _texts(record, "choices"),
        get(record, "done", bool),
    )


# -- start and done -----------------------------------------------------------------------------


def dump_bundle(bundle: Bundle, traced: bool = False) -> dict[str, Any]:
    """The whole bundle as JSON values; files in base64. traced: as `harness.build.build` takes it."""
    return {
        "traced": traced,
        "components": [thaw(c.record()) for c in bundle.components],
        "files": {
            path: [base64.b64encode(file.content).decode("ascii"), file.executable]
            for path, file in bundle.files.items()
        },
    }


def load_bundle(record: Any) -> Bundle:
    """The bundle of `dump_bundle`. Raises BundleError too. Trusted side to untrusted side only."""
    return Bundle(
        tuple(component_from_record(entry) for entry in record["components"]),
        {
            path: File(base64.b64decode(content), executable)
            for path, (content, executable) in record["files"].items()
        },
    )


def dump_start(
    task: TaskView, observation: ToolReply, seed: int, budgets: Budgets, trace_level: Level
) -> dict[str, Any]:
    return {
        "task": {
            "instruction": task.instruction,
            "environment": task.environment,
            "tools": dump_tools(task.tools),
            "action_tool": task.action_tool,
            "max_steps": task.max_steps,
        },
        "observation": dump_tool_reply(observation),
        "seed": seed,
        "budgets": asdict(budgets),
        "trace_level": trace_level,
    }


def load_start(record: Any) -> tuple[TaskView, ToolReply, int, Budgets, Level]:
    task = get(record, "task", dict)
    level = get(record, "trace_level", str)
    if level not in LEVELS:
        raise ProtocolError(f"'trace_level' is {level!r}; one of {', '.join(LEVELS)} is expected")
    view = TaskView(
        get(task, "instruction", str),
        get(task, "environment", str),
        load_tools(task),
        get(task, "action_tool", str, type(None)),
        count(task, "max_steps"),
    )
    return (
        view,
        load_tool_reply(get(record, "observation", dict)),
        get(record, "seed", int),
        Budgets(**get(record, "budgets", dict)),
        level,
    )


def dump_result(result: RunResult) -> dict[str, Any]:
    return {
        "status": result.status,
        "reason": readable(result.reason)[:MAX_REASON],
        "steps": result.steps,
        "output": result.output[:MAX_TEXT],
    }


def load_result(record: Any) -> RunResult:
    status = get(record, "status", str)
    if status not in STATUSES:
        raise ProtocolError(
            f"'status' is {status[:60]!r}; one of {', '.join(STATUSES)} is expected"
        )
    return RunResult(
        status,
        get(record, "reason", str)[:MAX_REASON],
        count(record, "steps"),
        get(record, "output", str),
    )
