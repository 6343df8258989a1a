"""Function boundaries of own code: what is recorded, what it costs, and that nothing else changes."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from harness.build import build
from harness.bundle import Bundle
from harness.component import Component, File
from harness.events import TaskView
from harness.functions import DECORATOR, MAX_VALUE, instrument, into, short, traced
from harness.host import ModelReply, ModelRequest, ToolReply, ToolRequest
from harness.metered import Budgets
from harness.pipeline import Pipeline
from harness.runloop import run
from harness.trace import Trace

SOURCE = '''
"""A module."""
from __future__ import annotations
from dataclasses import replace
from harness.processor import Processor
from pydantic import field_validator


def double(x, *, times=2):
    if x < 0:
        raise ValueError("negative")
    return x * times


def count(n):
    yield from range(n)
    return n


async def later(x):
    return x


class Own(Processor):
    words: tuple[str, ...] = ()

    @field_validator("words")
    @classmethod
    def _checked(cls, words):
        return words

    @property
    def first(self):
        return self.words[0]

    def step_start(self, event, ctx):
        double(event.step)
        list(count(2))
        yield event
'''


def load(source: str) -> dict[str, Any]:
    module: dict[str, Any] = {"__name__": "own", DECORATOR: traced}
    exec(instrument(source.encode(), "<bundle x>/own.py"), module)
    return module


def test_calls_are_recorded_with_arguments_and_result() -> None:
    module = load(SOURCE)
    seen: list[Any] = []
    with into(seen.append):
        assert module["double"](4, times=3) == 12
        assert list(module["count"](2)) == [0, 1]
        assert asyncio.run(module["later"]("x")) == "x"
        with pytest.raises(ValueError, match="negative"):
            module["double"](-1)
    assert [record[:3] for record in seen] == [
        ("double", "4, times=3", "12"),
        ("count", "2", "2"),
        ("later", "'x'", "'x'"),
        ("double", "-1", "raised ValueError"),
    ]
    assert all(record[3] >= 0 for record in seen)


def test_outside_of_a_trace_nothing_is_recorded() -> None:
    seen: list[Any] = []
    with into(seen.append), into(None):
        load(SOURCE)["double"](1)
    assert seen == []


def test_wrapped_functions_keep_their_kind_and_classes_their_meaning() -> None:
    module = load(SOURCE)
    assert inspect.isgeneratorfunction(module["count"])
    assert inspect.iscoroutinefunction(module["later"])
    assert str(inspect.signature(module["double"])) == "(x, *, times=2)"
    own = module["Own"](words=("a",))
    assert own.first == "a"
    seen: list[Any] = []
    with into(seen.append):
        module["Own"](words=("b",))
    assert [record[0] for record in seen] == ["Own._checked"]
    assert inspect.isgeneratorfunction(module["Own"].step_start)
    assert not hasattr(module["Own"].step_start, "__wrapped__")


def test_tracebacks_point_into_the_own_file() -> None:
    with pytest.raises(ValueError) as caught:
        load(SOURCE)["double"](-1)
    lines = [entry.lineno + 1 for entry in caught.traceback if str(entry.path).endswith("own.py")]
    assert lines[-1] == SOURCE.split("\n").index('        raise ValueError("negative")') + 1


class Hostile:
    def __repr__(self) -> str:
        raise AssertionError("never run")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Hostile(), "<Hostile>"),
        ([Hostile(), 1], "list(<Hostile>, 1)"),
        ({"a": [1, [2, [3]]]}, "dict('a': list(1, <list of 2>))"),
        (b"123", "<3 bytes>"),
        (10**100, "<int of 333 bits>"),
        (range(3), "<range>"),
        ((1, 2, 3, 4, 5), "tuple(1, 2, 3, 4, … 5 in all)"),
    ],
)
def test_values_are_named_without_running_their_code(value: object, text: str) -> None:
    assert short(value) == text


def test_long_values_are_cut() -> None:
    assert len(short("x" * 10**6)) < MAX_VALUE + 10
    assert len(short(["\0" * 1000] * 1000)) < 4 * MAX_VALUE


class Host:
    async def model(self, request: ModelRequest) -> ModelReply:
        return ModelReply("done")

    async def tool(self, request: ToolRequest) -> ToolReply:
        return ToolReply("fine")


@pytest.mark.parametrize("traced", [True, False])
def test_a_run_with_own_code_has_them_in_its_trace(traced: bool) -> None:
    own = Component("own", "processor", "own.py:Own")
    bundle = Bundle((own,), {"own.py": File(SOURCE.encode())})
    trace = Trace("r", "full")
    pipeline = Pipeline(build(bundle, allow_own_code=True, traced=traced))
    asyncio.run(
        run(
            pipeline,
            TaskView("x", "world"),
            ToolReply("a room"),
            Host(),
            seed=0,
            budgets=Budgets(max_steps=1),
            trace=trace,
        )
    )
    functions = [record[:4] for record in trace.to_json()["functions"]]
    assert functions == ([[0, "double", "0", "0"], [0, "count", "2", "2"]] if traced else [])
