"""The harness trace: every processor call, the calls of a bundle's own functions, and its notes.

While a run lasts, a processor that passes its event costs one number in a list; all else is worked
out at the end. The list of one run holds, in order: `(step,)` where a step begins; `(hook, ids)`
then an int (the clock, nanoseconds) where an event enters a chain of processors; then for each
processor an int (it passed the one event, and was done at that time), or the tuple
`(component, outcome, exception, clock)` for everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from harness.events import HOOKS
from harness.functions import FunctionRecord
from harness.shorten import middle_out

TOOL = "tool"
"""In the place of a hook: a tool of the bundle's own was called."""

PLACES = frozenset({*HOOKS, TOOL})
OUTCOMES = ("pass", "transform", "split", "intercept", "interrupt", "violation", "error")
CHANGED = frozenset({"transform", "split", "intercept"})

MAX_FUNCTIONS = 20_000
MAX_NOTES = 1_000

FIELDS = ("step", "hook", "component", "outcome", "us", "exception")
FUNCTION_FIELDS = ("step", "function", "arguments", "result", "us")
NOTE_FIELDS = ("step", "component", "text")

CallRecord = tuple[int, str, str, str, str, int]
"""(step, hook, component, outcome, exception or "", nanoseconds) of one processor call."""


class TraceError(ValueError):
    """Harness records from a child that are not what `HarnessTrace.to_json` writes."""


def expand(items: Iterable[Any]) -> Iterator[CallRecord]:
    """The processor calls in a list of the form that this module's docstring says."""
    step, hook, mark, at = 0, "", 0, 0
    ids: tuple[str, ...] = ()
    entered = False
    for item in items:
        if type(item) is int:
            if entered:
                entered = False
            else:
                yield step, hook, ids[at], "pass", "", item - mark
                at += 1
            mark = item
        elif len(item) == 4:
            component, outcome, raised, clock = item
            yield step, hook, component, outcome, raised, clock - mark
            mark, at = clock, ids.index(component) + 1
        elif len(item) == 2:
            hook, ids = item
            at, entered = 0, True
        else:
            (step,) = item


class HarnessTrace:
    """Collects one run. cut: shortens a text; max_calls: items after which recording stops."""

    def __init__(self, cut: Callable[[str], str], max_field: int, max_calls: int) -> None:
        self._cut = cut
        self.max_field = max_field
        self.max_calls = max_calls
        self._step = 0
        self._calls: list[Any] = []
        self._functions: list[tuple[int, FunctionRecord]] = []
        self._notes: list[tuple[int, str, str]] = []
        self._left_out = 0
        self.stopped = False
        self.record: Callable[[Any], None] | None = self._calls.append

    def begin(self, step: int) -> None:
        """Step `step` begins: what follows belongs to it."""
        self._step = step
        if self.record:
            self.record((step,))
            if len(self._calls) > self.max_calls:
                self.record = None
                self.stopped = True

    def function(self, record: FunctionRecord) -> None:
        """A function of the bundle's own code has returned."""
        if len(self._functions) < MAX_FUNCTIONS:
            self._functions.append((self._step, record))
        else:
            self._left_out += 1

    def note(self, component: str, text: str) -> None:
        """A processor wrote a note (`ctx.note`)."""
        if len(self._notes) < MAX_NOTES:
            self._notes.append((self._step, component, self._cut(str(text))))
        else:
            self._left_out += 1

    def records(self) -> list[list[Any]]:
        """Every processor call as FIELDS, times in microseconds."""
        return [
            [step, hook, component, outcome, round(ns / 1000, 1), self._cut(raised)]
            for step, hook, component, outcome, raised, ns in expand(self._calls)
        ]

    def to_json(self, limit: int) -> dict[str, Any]:
        """{records, functions, notes, dropped, stopped}, each list within `limit` characters."""
        calls, dropped = middle_out(self.records(), limit)
        functions, more = middle_out(
            [
                [step, self._cut(name), self._cut(args), self._cut(result), round(ns / 1000, 1)]
                for step, (name, args, result, ns) in self._functions
            ],
            limit,
        )
        notes, most = middle_out([list(note) for note in self._notes], limit)
        return {
            "records": calls,
            "functions": functions,
            "notes": notes,
            "dropped": dropped + more + most + self._left_out,
            "stopped": self.stopped,
        }


def checked(harness: object, max_field: int, max_calls: int) -> dict[str, Any]:
    """The harness trace that a sandboxed child sent. Raises TraceError: it runs evolved code."""
    if not (
        isinstance(harness, dict)
        and all(
            isinstance(harness.get(name), list) and len(harness[name]) <= 2 * most
            for name, most in (
                ("records", max_calls),
                ("functions", MAX_FUNCTIONS),
                ("notes", MAX_NOTES),
            )
        )
        and type(harness.get("dropped")) is int
        and type(harness.get("stopped")) is bool
        and set(harness) == {"records", "functions", "notes", "dropped", "stopped"}
    ):
        raise TraceError("harness trace: records within the size limit are expected")
    longest = max_field + 64
    for record in harness["records"]:
        if not (
            _is(record, (int, str, str, str, float, str), longest)
            and record[1] in PLACES
            and record[3] in OUTCOMES
        ):
            raise TraceError(f"harness trace: malformed record {repr(record)[:200]}")
    for record in harness["functions"]:
        if not _is(record, (int, str, str, str, float), longest):
            raise TraceError(f"harness trace: malformed function record {repr(record)[:200]}")
    for record in harness["notes"]:
        if not _is(record, (int, str, str), longest):
            raise TraceError(f"harness trace: malformed note {repr(record)[:200]}")
    return harness


def _is(record: object, kinds: tuple[type, ...], longest: int) -> bool:
    return (
        isinstance(record, list)
        and tuple(type(value) for value in record) == kinds
        and all(len(value) <= longest for value in record if type(value) is str)
    )
