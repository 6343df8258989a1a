"""The two traces of an episode: what the agent saw and did, and every processor call, aligned by step.

Source: RiseHarness (dual traces). While a run lasts only references and tuples are kept; JSON is
built at the end, so that recording costs next to nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from harness.events import HOOKS, Message
from harness.host import ModelReply, ModelRequest, ToolReply, ToolRequest
from harness.jsonvalue import thaw

Level = Literal["off", "agent", "full"]
LEVELS: tuple[Level, ...] = ("off", "agent", "full")
OUTCOMES = ("pass", "transform", "split", "intercept", "interrupt", "violation", "error")
CHANGED = frozenset({"transform", "split", "intercept"})

MAX_FIELD = 4_000
MAX_TOTAL = 1_000_000
MAX_CALLS = 50_000


class TraceError(ValueError):
    """Harness records from a child that are not what `Trace.harness_records` writes."""


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
        self._step = 0
        self._agent: list[tuple[Any, Any]] = []
        # Tuples (hook, component, outcome, exception, nanoseconds); an int marks a step's begin.
        self._calls: list[Any] = []
        self._adopted: dict[str, Any] | None = None
        self._stopped = False
        self.record: Callable[[Any], None] | None = self._calls.append if level == "full" else None
        self._end: dict[str, Any] = {}

    def begin(self, step: int) -> None:
        """Step `step` begins: what follows belongs to it."""
        self._step = step
        if self.record:
            self._calls.append(step)
            if len(self._calls) > self.max_calls:
                self.record = None
                self._stopped = True

    def model(self, request: ModelRequest, reply: ModelReply) -> None:
        """A model call was answered."""
        if self.level != "off":
            self._agent.append((request, reply))

    def tool(self, request: ToolRequest, reply: ToolReply) -> None:
        """A tool call was answered."""
        if self.level != "off":
            self._agent.append((request, reply))

    def end(self, status: str, reason: str, steps: int) -> None:
        """The run ended as `RunResult` says."""
        self._end = {"status": status, "reason": self._cut(reason), "steps": steps}

    def harness_records(self) -> list[list[Any]]:
        """Every processor call as [step, hook, component, outcome, microseconds, exception]."""
        out: list[list[Any]] = []
        step = 0
        for item in self._calls:
            if type(item) is int:
                step = item
                continue
            hook, component, outcome, raised, ns = item
            out.append([step, hook, component, outcome, round(ns / 1000, 1), self._cut(raised)])
        return out

    def harness_json(self) -> dict[str, Any]:
        """The harness trace within the size limit, as JSON values; what `adopt` takes."""
        records, dropped = _middle_out(self.harness_records(), self.max_total)
        return {"records": records, "dropped": dropped, "stopped": self._stopped}

    def adopt(self, harness: object) -> None:
        """Take over the harness trace of a sandboxed child, the JSON of its `harness_json`.

        Raises TraceError where it is malformed: the child runs evolved code.
        """
        if not (
            isinstance(harness, dict)
            and isinstance(harness.get("records"), list)
            and len(harness["records"]) <= 2 * self.max_calls
            and type(harness.get("dropped")) is int
            and type(harness.get("stopped")) is bool
        ):
            raise TraceError("harness trace: records within the size limit are expected")
        for record in harness["records"]:
            if not (
                isinstance(record, list)
                and [type(v) for v in record] == [int, str, str, str, float, str]
                and record[1] in HOOKS
                and record[3] in OUTCOMES
                and all(len(text) <= self.max_field + 64 for text in (record[2], record[5]))
            ):
                raise TraceError(f"harness trace: malformed record {repr(record)[:200]}")
        self._adopted = harness

    def to_json(self) -> dict[str, Any]:
        """The whole as JSON values: {schema, run_id, level, status, …, agent, harness, dropped}."""
        agent, agent_dropped = _middle_out(self._agent_entries(), self.max_total)
        harness = self._adopted or self.harness_json()
        out: dict[str, Any] = {"schema": 1, "run_id": self.run_id, "level": self.level, **self._end}
        if self.level != "off":
            out["agent"] = agent
        if self.level == "full":
            out["harness_fields"] = ["step", "hook", "component", "outcome", "us", "exception"]
            out["harness"] = harness["records"]
        out["dropped"] = {
            "agent": agent_dropped,
            "harness": harness["dropped"],
            "harness_stopped": harness["stopped"],
        }
        return out

    def _agent_entries(self) -> Iterable[dict[str, Any]]:
        previous: dict[str, tuple[Message, ...]] = {}
        for request, reply in self._agent:
            if isinstance(request, ModelRequest):
                before = previous.get(request.role, ())
                kept = _common(before, request.messages)
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


def readable(text: str) -> str:
    """The same text; lone surrogates, which UTF-8 cannot hold, become `?`."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _common(a: Sequence[Message], b: Sequence[Message]) -> int:
    n = 0
    for x, y in zip(a, b, strict=False):
        if x is not y and x != y:
            break
        n += 1
    return n


def _middle_out(entries: Iterable[Any], limit: int) -> tuple[list[Any], int]:
    """Entries within `limit` characters of JSON, the middle left out, and how many were."""
    listed = list(entries)
    sizes = [len(json.dumps(entry)) for entry in listed]
    if sum(sizes) <= limit:
        return listed, 0
    head, used = 0, 0
    while used + sizes[head] <= limit // 2:
        used += sizes[head]
        head += 1
    tail = len(listed)
    while tail > head and used + sizes[tail - 1] <= limit:
        tail -= 1
        used += sizes[tail]
    return listed[:head] + listed[tail:], tail - head
