"""The task × round grid, the traces behind it, and the lineage: what the page is given of them."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import shutil

import pytest
from evolved_runs import evolve_run
from hypothesis import given
from hypothesis import strategies as st
from synthetic_runs import add_events, add_matrix, make_run

from coevo.compare import compare
from coevo.report.data import payload, read_run_data
from coevo.report.grid import STATES, Cell, evolve_grid, measured_grid, states
from coevo.report.traces import MAX_TEXT, of_cell, pack, shorten, wanted
from coevo.runs import load_run
from harness.evolve.journal import Journal
from harness.evolve.records import Episode


def of(*runs):
    """States of a task from (passed, n) a round; None: not run."""
    return states([None if one is None else Cell(*one) for one in runs])


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([(0, 4), (4, 4)], ["unsolved", "solved"]),
        ([(2, 4), (0, 4), (0, 4)], ["flipping", "regressed", "unsolved"]),
        ([(1, 1), None, (0, 1)], ["solved", "absent", "regressed"]),
        ([(1, 1), (0, 1), (1, 1), (1, 1)], ["solved", "regressed", "flipping", "solved"]),
        ([(0, 1), (1, 1)], ["unsolved", "solved"]),
        ([(4, 4), (0, 4), (4, 4)], ["solved", "regressed", "solved"]),
        ([(0, 0), (1, 2)], ["absent", "flipping"]),
    ],
)
def test_a_task_is_named_by_its_runs_and_by_the_round_before(runs, expected):
    assert of(*runs) == expected


@given(st.lists(st.one_of(st.none(), st.integers(0, 3).flatmap(
    lambda n: st.tuples(st.integers(0, n), st.just(n))))))  # fmt: skip
def test_each_round_has_one_state_and_only_a_solved_or_flipping_one_had_a_pass(runs):
    found = of(*runs)
    assert len(found) == len(runs)
    for state, one in zip(found, runs, strict=True):
        assert state in STATES
        assert (state == "absent") == (one is None or one[1] == 0)
        assert (state in ("solved", "flipping")) == (one is not None and one[0] > 0)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    return evolve_run(make_run(tmp_path_factory.mktemp("runs"), "coevolve", rounds=3))


@pytest.fixture
def path(template, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(template, tmp_path / template.name)


def unpacked(chunk):
    return json.loads(gzip.decompress(base64.b64decode(chunk["data"])))


def test_the_held_out_grid_has_every_task_of_every_evaluation(path):
    grid = measured_grid("heldout", load_run(path).evaluations)
    assert grid is not None
    assert grid.rounds == (0, 1, 2)
    assert len(grid.tasks) == 50
    assert {task.group for task in grid.tasks} == {f"kind-{i}" for i in range(6)}
    assert all(cell.n == 4 for cells in grid.cells.values() for cell in cells.values())


def test_an_infrastructure_error_is_neither_passed_nor_failed():
    runs = [Episode("t", n, "h", outcome, outcome == "completed", 0.0, 1)
            for n, outcome in enumerate(["completed", "infra_error"])]  # fmt: skip
    grid = evolve_grid({0: runs, 1: runs[1:]})
    assert grid is not None
    assert grid.cells["t"] == {0: Cell(1, 1), 1: Cell(0, 0)}
    assert grid.states("t") == ["solved", "absent"]


def test_a_page_holds_at_most_one_passed_and_one_failed_trace_of_a_cell(path):
    data = payload(compare([load_run(path)]), "t")
    counts = data["traces"]
    assert counts["shown"] == counts["asked"] > 48
    cells = [(c["round"], item["task"], item["success"]) for c in counts["chunks"] for item in unpacked(c)]  # fmt: skip
    assert len(set(cells)) == len(cells) == counts["shown"]
    assert data["problems"] == []


def test_traces_that_show_most_stay_where_the_page_has_no_room(path):
    found = read_run_data(load_run(path))
    grid = next(g for g in found.grids if g.split == "evolve")
    asked = wanted(0, grid, found.episodes)
    packed, _ = pack(asked, [path], max_traces=5)
    assert packed["shown"] == 5
    assert packed["asked"] == len(asked)
    best = {grid.states(task)[chunk["round"]] for chunk in packed["chunks"] for task in chunk["tasks"]}  # fmt: skip
    assert best <= {"regressed", "flipping"}
    small, _ = pack(asked, [path], max_packed=3000)
    assert 0 < small["shown"] < len(asked)
    assert sum(len(chunk["data"]) for chunk in small["chunks"]) <= 3000


def test_a_trace_has_agent_and_processor_calls_of_a_step_together(path):
    found = read_run_data(load_run(path))
    episode = found.episodes[1][0]
    ((item,), problems) = of_cell(path, [episode])
    assert problems == []
    assert item["ref"] == episode.ref
    assert item["success"] == episode.success
    step = item["trace"]["steps"][0]
    model, tool = step["agent"]
    assert model["said"] == episode.trace[0].action
    assert tool["result"] == "You see 0."
    assert model["tokens"] == [40, 4]
    assert tool["tool"] == "act"
    assert step["harness"] == [["before_model", "menu", "transform", 1.5, ""]]
    assert step["notes"] == [["menu", "<b>note</b> 0"]]


def test_long_texts_of_a_trace_are_cut_and_say_by_how_much():
    reply = {"content": "x" * (MAX_TEXT + 7), "tool_calls": [], "finish_reason": "stop",
             "prompt_tokens": 1, "sampled_tokens": 2}  # fmt: skip
    entry = {"step": 0, "kind": "model", "role": "main", "kept": 0, "messages": [], "reply": reply}
    (step,) = shorten({"status": "completed", "agent": [entry]})["steps"]
    assert step["agent"][0]["said"].endswith("x … [7 characters cut]")


@pytest.mark.parametrize(
    "damage",
    [b"", b"no gzip", gzip.compress(b'{"id": "else"}\n'), gzip.compress(b"{}\n")[:-9]],
    ids=["empty", "no gzip", "another's", "cut"],
)
def test_a_damaged_trace_file_is_named_and_the_rest_is_shown(path, damage):
    (path / "traces" / "0000" / "incumbent.jsonl.gz").write_bytes(damage)
    data = payload(compare([load_run(path)]), "t")
    assert {chunk["round"] for chunk in data["traces"]["chunks"]} == {1}
    (problem,) = data["problems"]
    assert problem.startswith("coevolve-0/traces/0000/incumbent.jsonl.gz: ")


def test_a_damaged_journal_and_verdicts_are_named_and_the_rest_is_shown(path):
    (path / "journal.jsonl").write_text('{"schema": 1}\n')
    (path / "evolution" / "0001" / "verdicts.json").write_text("{")
    data = payload(compare([load_run(path)]), "t")
    run = data["arms"][0]["runs"][0]
    assert [grid["split"] for grid in run["grids"]] == ["heldout"]
    assert len(data["problems"]) == 2
    assert any("journal.jsonl line 1" in problem for problem in data["problems"])
    assert any("0001/verdicts.json" in problem for problem in data["problems"])
    assert [r["round"] for r in run["lineage"]["rounds"]] == [0, 1, 2]


def test_repeats_of_best_of_n_belong_to_no_round(tmp_path):
    run = make_run(tmp_path, "frozen", seed=0)
    (run / "journal.jsonl").unlink(missing_ok=True)
    journal = Journal(run / "journal.jsonl")

    async def phases():
        for key in ("0/measure", "repeat/1"):
            await journal.once(key, {}, one)

    async def one():
        return {}

    asyncio.run(phases())
    data = payload(compare([load_run(run)]), "t")
    assert data["problems"] == []


def test_each_candidate_comes_with_diff_prediction_verdict_and_numbers(path):
    data = payload(compare([load_run(path)]), "t")
    lineage = data["arms"][0]["runs"][0]["lineage"]
    shipped = lineage["rounds"][0]["candidates"][0]
    assert shipped["verdict"] == "apply"
    assert shipped["diff"].startswith("add goal_filter (control_flow")
    assert shipped["prediction"]["cause"].startswith("Most admitted actions")
    assert shipped["prediction"]["unlock"] > 0
    assert shipped["confirm"]["lo"] < shipped["confirm"]["mean_d"] < shipped["confirm"]["hi"]
    assert shipped["confirm"]["candidate"] > shipped["confirm"]["incumbent"]
    assert 0 < shipped["gate"]["hits"] <= shipped["gate"]["predicted"]
    assert {row["kind"] for row in lineage["kinds"]} >= {"control_flow"}


def test_the_matrix_of_a_run_and_its_decomposition_are_in_the_page(path):
    add_matrix(path)
    matrix = payload(compare([load_run(path)]), "t")["arms"][0]["runs"][0]["matrix"]
    assert len(matrix["cells"]) == 9
    parts = matrix["decomposition"]
    assert parts["total"]["mean"] == pytest.approx(
        parts["harness"]["mean"] + parts["model"]["mean"]
    )


@pytest.mark.parametrize(
    ("text", "said"), [("{", "matrix.json: "), ('{"schema": 9}', "matrix has schema 9")]
)
def test_a_matrix_that_cannot_be_read_is_a_problem(path, text, said):
    (path / "matrix.json").write_text(text)
    data = payload(compare([load_run(path)]), "t")
    assert data["arms"][0]["runs"][0]["matrix"] is None
    assert any(said in problem for problem in data["problems"])


def test_attempts_tell_how_long_they_lasted_and_what_was_lost(path):
    add_events(path)
    found = payload(compare([load_run(path)]), "t")["arms"][0]["runs"][0]["events"]
    assert [(a["number"], round(a["until"] - a["started"], 1), a["lost_s"], a["down_s"]) for a in found["attempts"]] == [
        (1, 42.5, 12.5, 20.5), (2, 33.0, 5.0, 26.0), (3, 60.0, 0.0, None),
    ]  # fmt: skip
    assert [a["reason"] for a in found["attempts"]] == ["killed", "stopped", "done"]
    assert [a["phases"] for a in found["attempts"]] == [1, 1, 0]
    assert [e["kind"] for e in found["events"] if e["fault"]] == ["worker_replaced"]
    assert "phase" not in {e["kind"] for e in found["events"]}


def test_a_run_without_events_has_no_attempts_to_show(path):
    assert payload(compare([load_run(path)]), "t")["arms"][0]["runs"][0]["events"] is None


def test_budgets_stand_against_the_arm_that_evolves_and_a_point_has_its_price(tmp_path):
    runs = [load_run(make_run(tmp_path, arm, seed=s)) for arm in ("frozen", "harness") for s in (0, 1)]  # fmt: skip
    data = payload(compare(runs), "t")
    frozen, harness = data["arms"]
    assert data["baseline"] == "harness"
    assert harness["over"]["wall_s"] == 0
    assert frozen["budget"]["wall_s"] == harness["budget"]["wall_s"] == pytest.approx(198)
    assert harness["per_point"]["wall_s"] == pytest.approx(198 / (100 * harness["gain"]["mean"]))
    assert [seed for seed, _ in data["pairs"][0]["by_seed"]] == [0, 1]
    assert {repeat["split"]: repeat["k"] for repeat in harness["repeats"]} == {"heldout": 4}
    assert harness["others"][0]["split"] == "evolve"
