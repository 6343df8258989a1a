"""Messages and tools in the form of function-calling APIs, which chat templates take as well."""

from __future__ import annotations

import json
from typing import Any

from harness.events import Message, ToolSpec
from harness.jsonvalue import thaw


def for_template(message: Message) -> dict[str, Any]:
    """A message for a chat template: a call's arguments are an object."""
    out: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        out["tool_calls"] = [
            {
                "type": "function",
                "id": call.call_id,
                "function": {"name": call.name, "arguments": thaw(call.input)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        out["tool_call_id"] = message.tool_call_id
    return out


def as_message(message: Message) -> dict[str, Any]:
    """A message for an API: a call's arguments are JSON text."""
    out = for_template(message)
    for call in out.get("tool_calls", ()):
        call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    return out


def as_function(tool: ToolSpec) -> dict[str, Any]:
    """A tool with its JSON schema."""
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": thaw(tool.parameters) or {"type": "object", "properties": {}},
        },
    }
