"""From an episode's two traces to the steps and counts that a digest reads: pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from harness.evolve.journal import digest
from harness.evolve.records import TraceStep
from harness.trace import CHANGED

FLAGS = ("invalid", "cut", "no_action")
"""invalid: the environment did not admit the action. cut: the answer ended at its token limit.
no_action: the model answered and nothing was carried out (unparsable, or blocked)."""

MAX_TEXT = 300


def trace_steps(trace: Mapping[str, Any], max_text: int = MAX_TEXT) -> tuple[TraceStep, ...]:
    """The steps of one trace as `harness.trace.Trace.to_json` writes it; texts cut at `max_text`.

    action: the calls carried out, `command` alone where a call has nothing else, else the model's
    text. observation: the results. Calls of other roles than main and calls that a processor made
    at the same step are part of the step's input digest, not of its action.
    """
    by_step: dict[int, list[Mapping[str, Any]]] = {}
    for entry in trace.get("agent", ()):
        by_step.setdefault(entry["step"], []).append(entry)
    return tuple(_step(number, by_step[number], max_text) for number in sorted(by_step))


def fired(trace: Mapping[str, Any]) -> dict[str, int]:
    """component id -> calls that changed an event, and `tool:NAME` -> calls of that tool.

    Component counts need trace level `full`. Those of a harness with own code are its own word:
    judge such a candidate by `model_input`, which the host records.
    """
    counts: Counter[str] = Counter()
    for _, _, component, outcome, *_ in trace.get("harness", ()):
        if outcome in CHANGED:
            counts[component] += 1
    for entry in trace.get("agent", ()):
        if entry["kind"] == "tool":
            counts[f"tool:{entry['name']}"] += 1
    return dict(sorted(counts.items()))


def _step(number: int, entries: Iterable[Mapping[str, Any]], max_text: int) -> TraceStep:
    models = [entry for entry in entries if entry["kind"] == "model"]
    tools = [entry for entry in entries if entry["kind"] == "tool"]
    replies = [entry["reply"] for entry in models if entry["role"] == "main"]
    flags = []
    if any(entry["result"]["is_error"] for entry in tools):
        flags.append("invalid")
    if any(reply["finish_reason"] == "length" for reply in replies):
        flags.append("cut")
    if replies and not tools:
        flags.append("no_action")
    action = "; ".join(_call(entry) for entry in tools) or "; ".join(
        reply["content"] for reply in replies
    )
    # Messages that still stand are the earlier steps' inputs; with their digests equal, the
    # remainder and its place decide.
    inputs = [[entry["role"], entry["kept"], entry["messages"]] for entry in models]
    return TraceStep(
        number,
        action[:max_text],
        "\n".join(entry["result"]["content"] for entry in tools)[:max_text],
        tuple(flags),
        digest(inputs)[:16] if inputs else "",
    )


def _call(entry: Mapping[str, Any]) -> str:
    given = entry["input"]
    if isinstance(given, Mapping) and set(given) == {"command"}:
        return str(given["command"])
    return f"{entry['name']} {given}"
