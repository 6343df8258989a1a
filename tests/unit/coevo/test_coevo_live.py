"""What a user sees of a run in a terminal and in a log file."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from synthetic_runs import harness_hash, round_record

from coevo.live import LiveTable, quantity, round_line
from coevo.records import (
    CandidateRecord,
    EvolutionRecord,
    EvolveResult,
    RolloutRecord,
    SplitResult,
    Staleness,
    Tokens,
    Wall,
)

RECORD = round_record(
    3,
    evolve=EvolveResult(n=64, success=0.421875, reward=0.5),
    heldout=SplitResult.of(103, 200),
    tokens=Tokens(prompt=1_234_000, sampled=34_500),
    staleness=Staleness(histogram={"0": 30, "1": 10}, max=1),
    evolution=EvolutionRecord(
        outcome="applied",
        candidates=(
            CandidateRecord(id="C-R3-00", edits=("enable [goal_filter]",), verdict="apply"),
            CandidateRecord(id="C-R3-01", edits=("enable loop_guard",), verdict="reject"),
        ),
    ),
    wall=Wall(total=12.34),
)


def test_a_round_is_one_plain_line_with_everything_a_user_asks_for():
    assert round_line(RECORD, rounds=6) == (
        f"round 3/6 · harness {harness_hash('H0')[:8]} · policy v3 · evolve 42.2% (n=64) · "
        "held-out 51.5% [44.6, 58.3] (n=200) · tokens 1.23M+34.5k · staleness 0.2 (max 1) · "
        "evolution applied: enable [goal_filter] · 12.3 s"
    )


def test_outcome_classes_stand_apart_with_the_length_bias():
    rollout = RolloutRecord(
        outcomes={"completed": 100, "infra_error": 2, "truncated": 26},
        length_bias={"0.25": 0.7, "0.5": 0.8123, "1": 1.0},
    )
    assert (
        "episodes 100 completed, 26 truncated, 2 infra_error (length bias 0.81 at half) · tokens"
        in round_line(round_record(0, rollout=rollout))
    )


def test_a_round_without_measurements_says_so():
    line = round_line(round_record(0, evolve=EvolveResult(n=0, success=None, reward=None)))
    assert "evolve – (n=0) · held-out – · " in line


@pytest.mark.parametrize(
    ("n", "text"), [(0, "0"), (950, "950"), (12_345, "12.3k"), (4.56e6, "4.56M"), (2e9, "2G")]
)
def test_quantities_have_three_figures(n, text):
    assert quantity(n) == text


def test_outside_a_terminal_there_is_one_line_a_round_and_no_control_character(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as some CI systems do
    out = io.StringIO()
    with LiveTable(rounds=2, title="runs/demo", console=Console(file=out, width=80)) as table:
        for t in range(2):
            table.start("rollout", total=8)
            table.advance("rollout", 8)
            table.finish("rollout")
            table.add(round_record(t))
        table.note("stopped")
    lines = out.getvalue().splitlines()
    assert [line.split(" ·")[0] for line in lines] == [
        "runs/demo",
        "round 0/2",
        "round 1/2",
        "stopped",
    ]
    assert "\x1b" not in out.getvalue()


def test_on_a_terminal_the_last_frame_is_the_whole_table():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=140, height=15)
    with LiveTable(rounds=9, title="runs/[demo]", console=console, live=True) as table:
        for t in range(9):
            table.start("heldout", total=200)
            table.advance("heldout", 50)
            table.add(RECORD.model_copy(update={"round": t}))
    last = out.getvalue()[out.getvalue().rindex("runs/[demo]") :]
    for t in range(9):
        assert f"{t}/9" in last
    assert "51.5% [44.6, 58.3]" in last
    assert "applied: enable [goal_filter]" in last


def test_a_narrow_terminal_keeps_the_columns_that_matter():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, height=30)
    with LiveTable(console=console, live=True) as table:
        table.add(RECORD)
    last = out.getvalue()
    assert "51.5% [44.6, 58.3]" in last
    assert "tokens" not in last
