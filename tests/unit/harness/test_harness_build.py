"""Building a bundle: own code only where allowed, every conflict at once, one order everywhere."""

import itertools
import random
import sys
import traceback

import pytest

from harness.build import BuildError, build, class_group, load_own, missing_tools
from harness.bundle import Bundle, Component, File

OWN = b"""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field

from harness.processor import Processor


@dataclass
class Helper:
    words: list[str]


class Own(Processor):
    order: ClassVar[int] = 10
    n: int = Field(1, ge=1)
    helper: Helper = Helper(["a"])

    def step_start(self, event, ctx):
        yield event


class Grouped(Own):
    singleton_group: ClassVar[str | None] = "own"
    after: ClassVar[tuple[str, ...]] = ("window",)
    needs: ClassVar[tuple[str, ...]] = ("tool:look",)


class Prompt(Own):
    kind: ClassVar[str] = "prompt"


NOT_A_PROCESSOR = 3
"""
WINDOW = "harness.processors.history_window:HistoryWindow"


def own(id, name="Own", **fields):
    return Component(id, fields.pop("kind", "processor"), f"own.py:{name}", **fields)


def bundle(*components, **files):
    return Bundle(components, {"own.py": File(OWN), **{k: File(v) for k, v in files.items()}})


def order(*components):
    return [item.id for item in build(bundle(*components), allow_own_code=True)]


def problems(made, **options):
    with pytest.raises(BuildError) as caught:
        build(made, **{"allow_own_code": True, **options})
    return caught.value.problems


def test_a_built_in_is_built_with_its_parameters():
    made = Bundle((Component("w", "context_mgmt", WINDOW, params={"turns": 3}),))
    (bound,) = build(made, allow_own_code=False)
    assert (bound.id, bound.processor.turns, bound.group) == ("w", 3, "history_window")


def test_own_code_is_refused_where_it_may_not_run():
    made = bundle(own("x"), **{"evil.py": b"raise SystemExit"})
    assert "does not run in this process" in problems(made, allow_own_code=False)[0]


def test_own_code_runs_from_bytes_under_a_private_name():
    before = list(sys.path)
    (bound,) = build(bundle(own("x", params={"n": 2})), allow_own_code=True)
    assert bound.processor.n == 2
    assert bound.processor.helper.words == ["a"]
    assert type(bound.processor).__module__.startswith("_harness_own.")
    assert sys.path == before
    assert "own" not in sys.modules


def test_the_manifest_overrides_order_and_group_and_adds_to_after_and_needs():
    made = bundle(own("x", "Grouped", order=7, group="g", after=("menu",), needs=("x",)))
    (bound,) = build(made, allow_own_code=True)
    assert (bound.order, bound.group) == (7, "g")
    assert (bound.after, bound.needs) == (("menu", "window"), ("tool:look", "x"))


def test_components_of_pure_data_have_no_processor():
    assert build(bundle(Component("p", "prompt", path="own.py")), allow_own_code=False) == []


def test_execution_order_is_order_then_after_then_id():
    assert order(own("c"), own("b", order=100), own("a", order=100), own("d", order=0)) == [
        "d",
        "c",
        "a",
        "b",
    ]
    late = (own("a", order=100, after=("z",)), own("b", order=0, after=("z",)), own("z"))
    assert order(*late) == ["z", "b", "a"]
    assert order(own("a", after=("b",)), own("b", order=100), own("c")) == ["c", "b", "a"]


def test_after_names_an_id_or_a_group_and_is_soft():
    assert order(own("a", after=("own", "absent")), own("z", "Grouped", group="own")) == ["z", "a"]


def test_the_order_does_not_depend_on_the_list_order():
    parts = [own("a", after=("d",)), own("b", order=0), own("c"), own("d", after=("c",))]
    assert {tuple(order(*p)) for p in itertools.permutations(parts)} == {("b", "c", "d", "a")}


def test_the_order_respects_after_in_random_graphs():
    rng = random.Random(3)
    for _ in range(50):
        ids = [f"p{i}" for i in range(8)]
        parts = [
            own(id, order=rng.choice((0, 50, 100)), after=tuple(rng.sample(ids[:i], min(i, 2))))
            for i, id in enumerate(ids)
        ]
        done: set[str] = set()
        for id in order(*parts):
            assert set(parts[ids.index(id)].after) <= done
            done.add(id)


def test_a_circle_of_after_is_shown():
    made = bundle(own("a", after=("b",)), own("b", after=("c",)), own("c", after=("a",)), own("d"))
    assert problems(made) == (
        "`after` runs in a circle: 'a' after 'b' after 'c' after 'a'; break it",
    )


def test_two_of_a_singleton_group_conflict():
    assert problems(bundle(own("a", group="g"), own("b", group="g"), own("c", "Grouped"))) == (
        "components 'a', 'b' are all of the singleton group 'g'; keep one",
    )


def test_needs_are_a_component_a_group_or_a_tool():
    build(bundle(own("a", needs=("b", "g")), own("b", group="g")), allow_own_code=True)
    assert "lacks" in problems(bundle(own("a", needs=("b",))))[0]
    made = bundle(own("a", "Grouped"))
    bound = build(made, allow_own_code=True)
    assert missing_tools(bound, ["look"]) == []
    assert "'look'" in missing_tools(bound, ["lok"])[0]
    assert problems(made, tools=["lok"]) == tuple(missing_tools(bound, ["lok"]))


def test_the_kind_may_not_contradict_the_class():
    assert problems(bundle(own("a", "Prompt", kind="skill"))) == (
        "component 'a': kind is 'skill', but Prompt is a 'prompt'; write kind: prompt",
    )


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (b"x = (", "line 1 cannot be loaded: SyntaxError"),
        (b"import os\n1/0\n", "line 2 cannot be loaded: ZeroDivisionError"),
        (b"import nowhere_to_be_found\n", "ModuleNotFoundError"),
        (b"raise SystemExit(3)", "SystemExit"),
        (b"\0", "ValueError|SyntaxError"),
        (b"x = 1", "there is no Processor class"),
        (b"Bad = 3", "'Bad' is a int, not a Processor class"),
        (b"from harness.processor import Processor as Bad", "not a Processor class"),
    ],
)
def test_own_code_that_does_not_load_is_a_problem_of_the_component(source, reason):
    made = bundle(Component("x", "processor", "bad.py:Bad"), **{"bad.py": source})
    with pytest.raises(BuildError, match=f"component 'x'.*({reason})"):
        build(made, allow_own_code=True)


def test_all_conflicts_are_reported_at_once():
    made = bundle(
        own("a", params={"n": 0}),
        own("b", params={"m": 1}),
        own("c", "Onw"),
        Component("d", "processor", "harness.nowhere:X"),
        Component("e", "processor", "harness.processor:Interrupt"),
        Component("f", "processor"),
        own("g", group="same", needs=("nothing",)),
        own("h", group="same", after=("i",)),
        own("i", after=("h",)),
    )
    found = problems(made)
    assert len(found) == 9
    for word in ("params.n = 0", "'m'|params.m", "did you mean 'Own'", "no built-in module"):
        assert any(part in text for text in found for part in word.split("|"))


def test_an_own_module_runs_once_a_bundle():
    made = bundle(own("a"))
    assert load_own(made, "own.py") is load_own(made, "own.py")


def test_a_traceback_shows_the_line_of_own_code():
    module = load_own(bundle(**{"t.py": b"def fail():\n    return 1 / 0  # here\n"}), "t.py")
    try:
        module.fail()
    except ZeroDivisionError:
        shown = traceback.format_exc()
    assert '/t.py", line 2, in fail' in shown
    assert "return 1 / 0  # here" in shown


def test_the_singleton_group_is_found_without_running_own_code():
    source = b"raise SystemExit\nclass X:\n    singleton_group: str = 'mine'\nclass Y: pass\n"
    files = {"x.py": File(source), "bad.py": File(b"(")}
    assert class_group(Component("a", "processor", "x.py:X"), files) == "mine"
    assert class_group(Component("a", "processor", "x.py:Y"), files) is None
    assert class_group(Component("a", "processor", "bad.py:Y"), files) is None
    assert class_group(Component("a", "processor", "x.py:X", group="g"), files) == "g"
    assert class_group(Component("a", "context_mgmt", WINDOW), files) == "history_window"
