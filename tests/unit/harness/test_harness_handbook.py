"""The handbook: behaviours bound to functions, refused before publication where they do not fit."""

from __future__ import annotations

import pytest
import yaml

from harness.bundle import Bundle
from harness.component import Component, File
from harness.handbook import HandbookError, Position, check, read

SOURCE = b"""raise SystemExit("never run")


class Hint:
    def before_model(self, event, ctx):
        yield event

    def line(self):
        def inner():
            pass
"""
GOOD = {
    "name": "hint",
    "duty": "tells what to look at",
    "trigger": "before_model of step 0",
    "functions": ["own.py:Hint.before_model", "own.py:Hint.line.inner"],
    "exit": "none",
}
BOOK = Component("book", "handbook", path="handbook.yaml")
OWN = Component("own", "processor", "own.py:Hint")


def bundle(*behaviours: object, parts: tuple[Component, ...] = (BOOK, OWN)) -> Bundle:
    text = yaml.safe_dump({"schema": 1, "behaviours": list(behaviours)}).encode()
    return Bundle(parts, {"handbook.yaml": File(text), "own.py": File(SOURCE)})


def test_a_behaviour_leads_to_the_lines_that_carry_it_out() -> None:
    assert check(bundle(GOOD)) == {"hint": (Position("own.py", 5, 6), Position("own.py", 9, 10))}
    assert read(bundle(GOOD))[0].duty == "tells what to look at"


def test_a_built_in_function_is_found_in_its_module() -> None:
    guard = "harness.processors.budget_guard:BudgetGuard.before_model"
    (position,) = check(bundle({**GOOD, "functions": [guard]}, parts=(BOOK,)))["hint"]
    assert position.path == "harness.processors.budget_guard"
    assert position.last > position.first > 1


def test_a_bundle_without_a_handbook_has_nothing_to_check() -> None:
    assert check(Bundle((OWN,), {"own.py": File(SOURCE)})) == {}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"functions": ["own.py:Hint.lime"]},
            "own.py has no 'Hint.lime'; did you mean 'Hint.line'",
        ),
        ({"functions": ["owm.py:Hint"]}, "'owm.py' is not in the bundle; did you mean 'own.py'"),
        (
            {"functions": ["harness.processors.none:X"]},
            "no built-in module 'harness.processors.none'",
        ),
        ({"functions": ["os.path:join"]}, "no built-in module 'os.path'"),
        ({"functions": ["line"]}, "write file.py:Qualified.name"),
        ({"functions": []}, "behaviours.0.functions"),
        ({"duty": ""}, "behaviours.0.duty"),
        ({"owner": "me"}, "behaviours.0.owner"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, object], reason: str) -> None:
    with pytest.raises(HandbookError) as caught:
        check(bundle({**GOOD, **change}))
    assert reason in str(caught.value)


def test_every_problem_is_told_at_once() -> None:
    other = {**GOOD, "functions": ["harness.processors.skills:Skills", "own.py:None"]}
    with pytest.raises(HandbookError) as caught:
        check(bundle(other, other))
    assert len(caught.value.problems) == 3
    assert "no behaviour mentions its code (own.py:Hint)" in str(caught.value)
    assert "is there twice" in str(caught.value)


def test_a_handbook_is_one_yaml_file() -> None:
    second = Component("book2", "handbook", path="handbook.yaml")
    with pytest.raises(HandbookError, match="are all handbooks; keep one"):
        check(bundle(GOOD, parts=(BOOK, second, OWN)))
    with pytest.raises(HandbookError, match="must name the handbook's file"):
        check(bundle(parts=(Component("book", "handbook"),)))


@pytest.mark.parametrize("text", [b"a: [", b"\xff", b"day: 2024-13-45", b"[" * 1000])
def test_a_handbook_that_is_no_yaml_is_refused(text: bytes) -> None:
    with pytest.raises(HandbookError, match="not YAML"):
        check(Bundle((BOOK,), {"handbook.yaml": File(text)}))


def test_code_that_nests_deeply_is_read_all_the_same() -> None:
    source = b"x = " + b"+".join([b"1"] * 1500) + b"\n\ndef line(): ...\n"
    book = yaml.safe_dump({"schema": 1, "behaviours": [{**GOOD, "functions": ["own.py:line"]}]})
    files = {"handbook.yaml": File(book.encode()), "own.py": File(source)}
    assert check(Bundle((BOOK,), files)) == {"hint": (Position("own.py", 3, 3),)}
