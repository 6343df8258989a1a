"""`coevo harness`: every command, and errors that say what to do with exit code 2."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from coevo.cli import main
from harness.bundle import load
from harness.edit import diff
from harness.store import Store

ROOT = Path(__file__).parents[3]
HOUSEHOLD = str(ROOT / "configs/harness/household")
OWN = """
from harness.processor import Processor
class Own(Processor):
    def {hook}(self, event, ctx):
        {body}
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


@pytest.fixture
def coevo(capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    def run(*arguments: str, code: int = 0) -> str:
        ended = main(["harness", *arguments])
        out, err = capsys.readouterr()
        assert ended == code, err
        return out if code == 0 else err

    return run


def test_a_new_bundle_is_empty_or_a_copy(coevo) -> None:  # type: ignore[no-untyped-def]
    assert coevo("new", "a") == "a: bundle e918a5283e4c\n"
    assert "no components" in coevo("show", "a")
    coevo("new", "b", "--from", HOUSEHOLD)
    assert load("b") == load(HOUSEHOLD)
    assert "exists and is not an empty directory" in coevo("new", "b", code=2)


def test_show_lists_components_in_running_order(coevo) -> None:  # type: ignore[no-untyped-def]
    shown = coevo("show", HOUSEHOLD)
    assert shown.startswith(f"bundle {load(HOUSEHOLD).id}")
    places = [shown.index(name) for name in ("holding_state", "history_window", "numbered_menu")]
    assert places == sorted(places)
    assert json.loads(coevo("show", HOUSEHOLD, "--json"))["id"] == load(HOUSEHOLD).id


def test_edits_are_applied_in_order_and_diffed(coevo, here: Path) -> None:  # type: ignore[no-untyped-def]
    (here / "own.py").write_text(OWN.format(hook="step_end", body="yield event"))
    coevo(
        "edit", HOUSEHOLD, "-o", "b",
        "--put", "processors/own.py=own.py",
        "--add", '{id: own, kind: processor, entrypoint: "processors/own.py:Own"}',
        "--set", "numbered_menu.max_items=4",
        "--set", "numbered_menu.max_items=6",
        "--unset", "numbered_menu.labels",
        "--remove", "holding_state",
    )  # fmt: skip
    edited = load("b")
    assert dict(edited.component("numbered_menu").params) == {"max_items": 6}
    said = coevo("diff", HOUSEHOLD, "b")
    assert "remove holding_state\n" in said
    assert "set numbered_menu.max_items = 6 (was 12)\n" in said
    assert said.endswith("3 changes: memory, output_plumbing, processor\n")
    (here / "edits.json").write_text(coevo("diff", HOUSEHOLD, "b", "--json"))
    coevo("edit", HOUSEHOLD, "-o", "c", "--edits", "edits.json")
    assert load("c").id == edited.id
    coevo("edit", "c", "--delete", "processors/own.py", "--remove", "own")
    assert not load("c").has_own_code
    assert sorted(path.name for path in here.iterdir()) == ["b", "c", "edits.json", "own.py"]
    assert "no difference" in coevo("diff", "c", "c")


def test_a_replacement_takes_the_place_of_its_group(coevo) -> None:  # type: ignore[no-untyped-def]
    new = (
        "{id: menu2, kind: output_plumbing, "
        'entrypoint: "harness.processors.numbered_menu:NumberedMenu"}'
    )
    coevo("edit", HOUSEHOLD, "-o", "b", "--replace", new)
    assert [type(edit).__name__ for edit in diff(load(HOUSEHOLD), load("b"))] == [
        "ReplaceComponent"
    ]


def test_a_stores_bundles_are_named_shown_and_verified(coevo, here: Path) -> None:  # type: ignore[no-untyped-def]
    store = Store(here / "s")
    first = store.add(load(HOUSEHOLD), source="seed")
    coevo("edit", HOUSEHOLD, "-o", "b", "--remove", "holding_state")
    second = store.add(load("b"), parents=(first,), round=1, note="bare")
    store.move("incumbent", second)
    assert second in coevo("show", "s@incumbent")
    assert coevo("verify", "s") == "".join(f"{id[:12]}: ok\n" for id in sorted([first, second]))
    lines = coevo("lineage", "s", "incumbent").split("\n")
    assert re.search(rf"{second[:12]} \(incumbent\) +bundle +{first[:12]} +1", lines[1])
    assert "rollback" not in coevo("lineage", "s")
    assert "name a bundle of it as s@NAME (pointers: incumbent)" in coevo("show", "s", code=2)
    assert "has no bundles that begin with 'zz'" in coevo("show", "s@zz", code=2)
    assert "give the result with -o" in coevo("edit", "s@incumbent", "--remove", "x", code=2)


def test_a_run_by_chance_shows_each_step(coevo, here: Path) -> None:  # type: ignore[no-untyped-def]
    shown = coevo("run", HOUSEHOLD, "--policy", "random", "--max-steps", "2", "--trace", "t.json")
    assert "step 1" in shown
    assert "truncated after 2 steps" in shown
    assert "numbered_menu" in shown
    trace = json.loads((here / "t.json").read_text())
    assert (trace["steps"], trace["level"]) == (2, "full")


def test_a_run_by_hand_takes_what_is_typed(
    coevo, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    coevo("new", "a")
    typed = iter(["look", '{"name": "act", "arguments": {"command": "look"}}'])
    monkeypatch.setattr("builtins.input", lambda *_: next(typed))
    shown = coevo("run", "a", "--policy", "hand", "--max-steps", "2")
    assert shown.count("You are in the middle of a room") >= 2
    monkeypatch.setattr("builtins.input", _end)
    assert "ended by you" in coevo("run", "a", code=2)


def _end(*_: object) -> str:
    raise EOFError


def test_own_code_that_fails_is_found_by_verify(coevo, here: Path) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("resource")
    coevo("new", "a")
    (here / "own.py").write_text(OWN.format(hook="before_model", body="yield event.step / 0"))
    add = '{id: own, kind: processor, entrypoint: "own.py:Own"}'
    coevo("edit", "a", "--put", "own.py=own.py", "--add", add)
    assert coevo("verify", "a", "--static").endswith(": ok\n")
    assert "1 of 1 do not run" in coevo("verify", "a", "--sandbox", "unsafe_local", code=2)


def test_a_damaged_bundle_of_a_store_is_named_and_the_others_are_checked(  # type: ignore[no-untyped-def]
    coevo, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(here / "s")
    good = store.add(load(HOUSEHOLD), source="seed")
    coevo("edit", HOUSEHOLD, "-o", "b", "--remove", "holding_state")
    bad = store.add(load("b"), source="seed")
    manifest = store.path(bad) / "harness.yaml"
    manifest.chmod(0o644)
    manifest.write_text("schema: 1\ncomponents: []\n")
    assert main(["harness", "verify", "s", "--static"]) == 2
    out, err = capsys.readouterr()
    assert f"{good[:12]}: ok\n" in out
    assert f"{bad[:12]}: bundle {bad} in store" in out
    assert f"1 of 2 do not run: {bad[:12]}" in err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["show", "none"], "there is no such directory"),
        (["show", HOUSEHOLD, "--file", "x"], "no file 'x'; it has: "),
        (["diff", HOUSEHOLD, "none"], "there is no such directory"),
        (["edit", HOUSEHOLD, "-o", "b"], "no edit is given"),
        (["edit", HOUSEHOLD, "-o", "b", "--remove", "holding"], "did you mean 'holding_state'"),
        (["edit", HOUSEHOLD, "-o", "b", "--set", "x"], "ID.NAME=VALUE is expected"),
        (["edit", HOUSEHOLD, "-o", "b", "--set", "x=1"], "ID.NAME=VALUE is expected"),
        (["edit", HOUSEHOLD, "-o", "b", "--set", "history_window.a=["], "not YAML"),
        (["edit", HOUSEHOLD, "-o", "b", "--add", "x"], "a mapping is expected"),
        (["edit", HOUSEHOLD, "-o", "b", "--add", "{id: x, kind: y}"], "unknown kind 'y'"),
        (["edit", HOUSEHOLD, "-o", "b", "--put", "a=none"], "there is no file none"),
        (["edit", HOUSEHOLD, "-o", "b", "--edits", "none"], "there is no such file"),
        (["lineage", "."], "no store of bundles"),
        (["run", HOUSEHOLD, "--policy", "magic"], "hand, random, script:FILE or model:DIRECTORY"),
        (["run", HOUSEHOLD, "--policy", "script:none"], "No such file"),
        (["run", HOUSEHOLD, "--policy", "model:none"], "none has no config.json"),
        (["run", HOUSEHOLD, "--policy", "random", "--task", "x"], "a number below 480 or an id"),
        (["run", HOUSEHOLD, "--policy", "random", "--split", "x"], "one of evolve"),
        (["run", HOUSEHOLD, "--policy", "random", "--env", "hous"], "did you mean 'household'"),
        (["run", HOUSEHOLD, "--policy", "random", "--env-option", "x"], "KEY=VALUE is expected"),
        (
            ["run", HOUSEHOLD, "--policy", "random", "--env-option", "max_receptacles=2"],
            "4 or more",
        ),
        (["run", HOUSEHOLD, "--policy", "random", "--tools", "shel"], "did you mean 'shell'"),
        (
            ["run", HOUSEHOLD, "--policy", "random", "--workdir", "none"],
            "there is no such directory",
        ),
        (["run", HOUSEHOLD, "--policy", "random", "--max-steps", "0"], "1 or more is expected"),
    ],
)
def test_bad_input_is_one_message_that_says_what_to_do(
    coevo, arguments: list[str], reason: str
) -> None:  # type: ignore[no-untyped-def]
    said = coevo(*arguments, code=2)
    assert said.startswith("coevo: ")
    assert reason in said
