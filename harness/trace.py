"""The two traces of an episode: what the agent saw and did, and every processor call, aligned by step.

Source: RiseHarness (dual traces). While a run lasts only references and tuples are kept; JSON is
built at the end, so that recording costs next to nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from harness.events import Message
from harness.functions import FunctionRecord
from harness.harness_trace import (
    CHANGED,
    FIELDS,
    FUNCTION_FIELDS,
    NOTE_FIELDS,
    OUTCOMES,
    HarnessTrace,
    TraceError,
    checked,
)
from harness.host import ModelReply, ModelRequest, ToolReply, ToolRequest
from harness.jsonvalue import thaw
from harness.shorten import middle_out, readable

Level = Literal["off", "agent", "full"]
LEVELS: tuple[Level, ...] = ("off", "agent", "full")

__all__ = ["CHANGED", "LEVELS", "OUTCOMES", "Level", "Trace", "TraceError", "readable"]

MAX_FIELD = 4_000
MAX_TOTAL = 1_000_000
MAX_CALLS = 50_000


class Trace:
    """Collects one run. level: off (nothing), agent (no processor calls), full.

    max_field: characters kept of one text. max_total: characters of JSON kept of each of the two
    traces; where more were made, the middle is left out and counted in `dropped`.
    """

    def __init__(
        self,
        run_id: str,
        level: Level = "agent",
        *,
        max_field: int = MAX_FIELD,
        max_total: int = MAX_TOTAL,
        max_calls: int = MAX_CALLS,
    ) -> None:
        if level not in LEVELS:
            raise ValueError(f"trace level {level!r}; one of {', '.join(LEVELS)} is expected")
        self.run_id = run_id
        self.level = level
        self.max_field = max_field
        self.max_total = max_total
        self.max_calls = max_calls
        self._agent: list[Any] = []  # request, reply, request, reply, …
        self._harness = HarnessTrace(self._cut, max_field, max_calls) if level == "full" else None
        # Where the pipeline puts what it did (see harness_trace); None: nowhere.
        self.record = self._harness.record if self._harness else None
        self._adopted: dict[str, Any] | None = None
        self._end: dict[str, Any] = {}

    @property
    def function(self) -> Callable[[FunctionRecord], None] | None:
        """Where calls of the bundle's own functions go; None: nowhere."""
        return self._harness.function if self._harness else None

    def note(self, component: str, text: str) -> None:
        """A processor wrote a note; kept at level full."""
        if self._harness:
            self._harness.note(component, text)

    def begin(self, step: int) -> None:
        """Step `step` begins: what follows belongs to it."""
        if self._harness:
            self._harness.begin(step)
            self.record = self._harness.record

    def model(self, request: ModelRequest, reply: ModelReply) -> None:
        """A model call was answered."""
        if self.level != "off":
            self._agent.append(request)
            self._agent.append(reply)

    def tool(self, request: ToolRequest, reply: ToolReply) -> None:
        """A tool call was answered."""
        if self.level != "off":
            self._agent.append(request)
            self._agent.append(reply)

    def end(self, status: str, reason: str, steps: int) -> None:
        """The run ended as `RunResult` says."""
        self._end = {"status": status, "reason": self._cut(reason), "steps": steps}

    def harness_json(self) -> dict[str, Any]:
        """The harness trace within the size limit, as JSON values; what `adopt` takes."""
        if self._harness is None:
            return {"records": [], "functions": [], "notes": [], "dropped": 0, "stopped": False}
        return self._harness.to_json(self.max_total)

    def adopt(self, harness: object) -> None:
        """Take over the harness trace of a sandboxed child, the JSON of its `harness_json`.

        Raises TraceError where it is malformed: the child runs evolved code.
        """
        self._adopted = checked(harness, self.max_field, self.max_calls)

    def to_json(self) -> dict[str, Any]:
        """The whole as JSON values: {schema, run_id, level, status, …, agent, harness, functions, …}."""
        agent, agent_dropped = middle_out(self._agent_entries(), self.max_total)
        harness = self._adopted or self.harness_json()
        out: dict[str, Any] = {"schema": 1, "run_id": self.run_id, "level": self.level, **self._end}
        if self.level != "off":
            out["agent"] = agent
        if self.level == "full":
            out["harness_fields"] = list(FIELDS)
            out["harness"] = harness["records"]
            out["function_fields"] = list(FUNCTION_FIELDS)
            out["functions"] = harness["functions"]
            out["note_fields"] = list(NOTE_FIELDS)
            out["notes"] = harness["notes"]
        out["dropped"] = {
            "agent": agent_dropped,
            "harness": harness["dropped"],
            "harness_stopped": harness["stopped"],
        }
        return out

    def _agent_entries(self) -> Iterable[dict[str, Any]]:
        previous: dict[str, tuple[Message, ...]] = {}
        for request, reply in zip(self._agent[::2], self._agent[1::2], strict=True):
            if isinstance(request, ModelRequest):
                before = previous.get(request.role, ())
                kept = common_prefix(before, request.messages)
                previous[request.role] = request.messages
                yield {
                    "step": request.step,
                    "kind": "model",
                    "role": request.role,
                    "kept": kept,  # messages of the previous call of this role that still stand
                    "messages": [self._message(m) for m in request.messages[kept:]],
                    "reply": {
                        "content": self._cut(reply.content),
                        "tool_calls": self._calls_of(reply.tool_calls),
                        "finish_reason": reply.finish_reason,
                        "prompt_tokens": reply.prompt_tokens,
                        "sampled_tokens": reply.sampled_tokens,
                    },
                }
            else:
                yield {
                    "step": request.step,
                    "kind": "tool",
                    "call_id": request.call_id,
                    "name": request.name,
                    "input": self._value(request.input),
                    "result": {
                        "content": self._cut(reply.content),
                        "is_error": reply.is_error,
                        "done": reply.done,
                        "choices": [self._cut(c) for c in reply.choices],
                    },
                }

    def _message(self, message: Message) -> dict[str, Any]:
        out: dict[str, Any] = {"role": message.role, "content": self._cut(message.content)}
        if message.choices:
            out["choices"] = [self._cut(choice) for choice in message.choices]
        if message.tool_calls:
            out["tool_calls"] = self._calls_of(message.tool_calls)
        if message.tool_call_id is not None:
            out["tool_call_id"] = message.tool_call_id
        return out

    def _calls_of(self, calls: Sequence[Any]) -> list[dict[str, Any]]:
        return [
            {"call_id": c.call_id, "name": c.name, "input": self._value(c.input)} for c in calls
        ]

    def _value(self, value: Any) -> Any:
        plain = thaw(value)
        text = json.dumps(plain)
        return plain if len(text) <= self.max_field else self._cut(text)

    def _cut(self, text: str) -> str:
        text = readable(text)
        if len(text) <= self.max_field:
            return text
        return text[: self.max_field] + f" … [{len(text) - self.max_field} characters cut]"


def common_prefix(a: Sequence[Message], b: Sequence[Message]) -> int:
    """How many messages both begin with."""
    shorter = min(len(a), len(b))
    # Nearly always: it was appended to, or its last message was written anew.
    for n in (shorter, shorter - 1):
        if n >= 0 and a[:n] == b[:n]:
            return n
    n = 0
    while a[n] == b[n]:
        n += 1
    return n
