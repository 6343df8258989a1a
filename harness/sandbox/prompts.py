"""Model requests on the wire: of each prompt only what is new since the last one of its role.

A history grows by a turn a step; sent whole, an episode would cost the square of its length. Both
ends keep the last request of each role. The socket keeps the order, so they always agree on it.
"""

from __future__ import annotations

from typing import Any

from harness.events import Message, ToolSpec
from harness.host import ModelRequest
from harness.jsonvalue import canonical
from harness.sandbox import protocol
from harness.sandbox.protocol import ProtocolError, count, get
from harness.trace import common_prefix

MAX_PROMPT = protocol.MAX_LINE
"""Characters of one prompt, however few of them are new."""

MAX_ROLES = 32
"""Roles whose last request is kept; those of further ones are sent whole."""


class PromptWriter:
    """The harness process's side: `dump` what is to be sent, and tell `sent` once it was."""

    def __init__(self) -> None:
        self._last: dict[str, ModelRequest] = {}

    def dump(self, request: ModelRequest) -> dict[str, Any]:
        """JSON values of the request: `kept` messages of the role's last one stand, `messages` follow;
        `tools` is null where they are the same."""
        last = self._last.get(request.role, _NONE)
        kept = common_prefix(last.messages, request.messages)
        same = request.tools is last.tools or request.tools == last.tools
        return {
            "step": request.step,
            "kept": kept,
            "messages": [protocol.dump_message(m) for m in request.messages[kept:]],
            "tools": None if same else protocol.dump_tools(request.tools),
            "role": request.role,
            "max_tokens": request.max_tokens,
        }

    def sent(self, request: ModelRequest) -> None:
        """The reader gets this request next."""
        if request.role in self._last or len(self._last) < MAX_ROLES:
            self._last[request.role] = request


class PromptReader:
    """The worker's side; trusts nothing."""

    def __init__(self) -> None:
        # role -> its last messages, the characters up to each of them, its last tools
        self._last: dict[str, tuple[tuple[Message, ...], list[int], tuple[ToolSpec, ...]]] = {}

    def load(self, record: Any) -> ModelRequest:
        """The request that `dump` was given. Raises ProtocolError."""
        limit = get(record, "max_tokens", int, type(None))
        if limit is not None and not 0 < limit < 1 << 31:
            raise ProtocolError(f"'max_tokens' is {limit}; a positive count or null is expected")
        role = get(record, "role", str)
        before, sizes, tools = self._last.get(role, ((), [], ()))
        kept = count(record, "kept")
        if kept > len(before):
            raise ProtocolError(
                f"'kept' is {kept}; the last request of role {role[:60]!r} had {len(before)} messages"
            )
        new = tuple(protocol.load_message(m) for m in get(record, "messages", list))
        messages, sizes = before[:kept] + new, sizes[:kept]
        for message in new:
            sizes.append(_characters(message) + (sizes[-1] if sizes else 0))
        if sizes and sizes[-1] > MAX_PROMPT:
            raise ProtocolError(
                f"a prompt of {sizes[-1]} characters; at most {MAX_PROMPT} are accepted"
            )
        if get(record, "tools", list, type(None)) is not None:
            tools = protocol.load_tools(record)
        if role in self._last or len(self._last) < MAX_ROLES:
            self._last[role] = messages, sizes, tools
        return ModelRequest(count(record, "step"), messages, tools, role, limit)


_NONE = ModelRequest(0, ())


def _characters(message: Message) -> int:
    """About what the message would take on the wire."""
    calls = sum(len(c.call_id) + len(c.name) + len(canonical(c.input)) for c in message.tool_calls)
    return 100 + len(message.content) + sum(4 + len(c) for c in message.choices) + calls
