"""The matrix: how the gain is split, which episodes count as measured, and what is refused."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_runs import harness_hash, make_run

from coevo import matrix_commands
from coevo.cli import main
from coevo.eval_pairs import RunPairs
from coevo.matrix import Matrix, PairFile, decompose, restricted
from coevo.records import EpisodeResult, Evaluation, ServedTasks
from coevo.runs import load_run
from coevo.stack import Stack

PLACES = [(0, 0), (0, 1), (1, 0), (1, 1)]


def episode(task: int, success: bool, outcome: str = "completed", seed: int = 7) -> EpisodeResult:
    return EpisodeResult(
        task_id=f"t{task:03}", seed=seed, success=success, reward=float(success), steps=3,
        outcome=outcome,
    )  # fmt: skip


def corners(*solved: int, n: int = 10) -> dict[tuple[int, int], list[EpisodeResult]]:
    """H0M0, H0M1, H1M0, H1M1, each solving its first so many of n tasks."""
    return {at: [episode(i, i < k) for i in range(n)] for at, k in zip(PLACES, solved, strict=True)}


def test_main_effects_hold_half_of_the_interaction_each() -> None:
    parts = decompose(corners(1, 3, 4, 8), (0, 1), (0, 1))
    assert parts is not None
    # H1M0 − H0M0 = .3, H1M1 − H0M1 = .5, H0M1 − H0M0 = .2, H1M1 − H1M0 = .4
    assert parts.total.mean == pytest.approx(0.7)
    assert parts.harness.mean == pytest.approx(0.4)
    assert parts.model.mean == pytest.approx(0.3)
    assert parts.interaction.mean == pytest.approx(0.2)
    assert parts.harness_alone.mean == pytest.approx(0.3)
    assert parts.model_alone.mean == pytest.approx(0.2)
    assert parts.n_tasks == 10
    assert parts.total.lo < 0.7 < parts.total.hi


@given(st.lists(st.tuples(*[st.booleans()] * 4), min_size=1, max_size=12))
def test_the_parts_sum_to_the_whole(rows: list[tuple[bool, ...]]) -> None:
    given_ = {at: [episode(i, row[k]) for i, row in enumerate(rows)] for k, at in enumerate(PLACES)}
    parts = decompose(given_, (0, 1), (0, 1))
    assert parts is not None
    assert parts.harness.mean + parts.model.mean == pytest.approx(parts.total.mean)
    alone = parts.harness_alone.mean + parts.model_alone.mean
    assert alone + parts.interaction.mean == pytest.approx(parts.total.mean)
    assert parts.harness.lo <= parts.harness.mean <= parts.harness.hi


def test_a_task_that_one_corner_could_not_score_is_left_out_of_all() -> None:
    found = corners(0, 0, 10, 10)
    found[(0, 1)][0] = episode(0, False, "infra_error")
    parts = decompose(found, (0, 1), (0, 1))
    assert parts is not None
    assert parts.n_tasks == 9
    assert parts.harness.mean == 1.0
    found[(0, 1)] = [episode(i, False, "infra_error") for i in range(10)]
    assert decompose(found, (0, 1), (0, 1)) is None


def test_a_harness_that_never_changed_has_no_part_in_the_gain() -> None:
    found = {(0, 0): corners(2, 2, 2, 2)[(0, 0)], (0, 1): corners(6, 6, 6, 6)[(0, 0)]}
    parts = decompose(found, (0, 0), (0, 1))
    assert parts is not None
    assert (parts.harness.mean, parts.harness.lo, parts.harness.hi) == (0.0, 0.0, 0.0)
    assert parts.model.mean == parts.total.mean == pytest.approx(0.4)


def evaluation(**changes: object) -> Evaluation:
    fields = {
        "round": 2, "harness_id": "a", "policy_version": 1,
        "episodes": tuple(episode(i, i % 2 == 0) for i in range(6)),
    }  # fmt: skip
    return Evaluation.model_validate(fields | changes)


SEEDS = {f"t{i:03}": 7 for i in range(6)}


def test_the_first_tasks_of_a_longer_measurement_are_a_measurement() -> None:
    found = restricted(evaluation(), "a", 4, SEEDS)
    assert found is not None
    assert [e.task_id for e in found.episodes] == ["t000", "t001", "t002", "t003"]
    assert (found.result.successes, found.result.n) == (2, 4)


@pytest.mark.parametrize(
    ("harness", "n", "seeds"),
    [("b", 4, SEEDS), ("a", 7, SEEDS), ("a", 4, SEEDS | {"t002": 8})],
    ids=["another harness", "too few tasks", "another seed"],
)
def test_what_was_measured_otherwise_is_no_measurement(
    harness: str, n: int, seeds: dict[str, int]
) -> None:
    assert restricted(evaluation(), harness, n, seeds) is None


def test_of_several_harnesses_only_the_one_that_served_all_tasks_counts() -> None:
    routed = evaluation(
        variants={"x": ServedTasks(harness_id="b", task_ids=("t004", "t005"))},
    )
    assert restricted(routed, "a", 4, SEEDS) is not None
    assert restricted(routed, "a", 5, SEEDS) is None


# --- rounds of a run ---


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = make_run(tmp_path, "coevolve", rounds=3)
    (path / "state.json").write_text(
        json.dumps(
            {"schema": 1, "round": 3, "harness_id": harness_hash("2-0"), "policy_version": 3}
        )
    )
    return path


def test_rounds_are_named_by_number_and_last_is_what_the_run_ended_with(run: Path) -> None:
    pairs = RunPairs(run)
    assert pairs.at("0").harness_id == harness_hash("H0")
    assert pairs.at("last") == pairs.at("3")
    assert pairs.at("last").policy_version == 3
    assert [at.round for at in pairs.several("last,0,0")] == [0, 3]
    assert [at.round for at in pairs.several("all")] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["--harness", "0,9"], "has no round '9'; expected 0 to 3, or last"),
        (["-n", "0"], "-n is 0; expected at least 1 task"),
        (["--policy", "first"], "has no round 'first'; expected 0 to 3, or last"),
    ],
)
def test_a_round_that_is_not_there_is_named(
    run: Path, command: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    real_config(run)
    assert main(["matrix", str(run), *command]) == 2
    assert said in capsys.readouterr().err


def test_a_run_without_rounds_says_how_to_go_on(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    real_config(run)
    (run / "metrics.jsonl").unlink()
    (run / "state.json").unlink()
    assert main(["matrix", str(run)]) == 2
    said = capsys.readouterr().err
    assert "has no committed round" in said
    assert f"coevo resume {run}" in said


def test_a_run_that_still_goes_is_named_with_its_holder(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    real_config(run)
    with RunPairs(run).dir:
        assert main(["matrix", str(run)]) == 2
    assert "is in use by process" in capsys.readouterr().err


def test_an_unknown_run_names_the_nearest(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(run, run.with_name("coevolve-1"))
    assert main(["matrix", str(run.with_name("coevolv-1"))]) == 2
    assert f"Did you mean {run.with_name('coevolve-1')}?" in capsys.readouterr().err


def real_config(run: Path) -> None:
    """The synthetic run's own configuration is no whole one."""
    from coevo.config import dump_config, load_config

    config = load_config(Path(__file__).parents[3] / "configs" / "smoke.yaml", [f"name={run.name}"])
    (run / "config.yaml").write_text(dump_config(config))


# --- measuring, over episodes that a rule ends at once ---


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run of a scripted pool, and `coevo matrix` over the same pool."""
    import scripted_run

    monkeypatch.setattr(matrix_commands, "base_model", lambda *_: None)

    def over_pool(config: Any, model: Any, console: Any, work: Any, after: str) -> Any:
        pool: Any = scripted_run.Pool()
        return asyncio.run(work(Stack(config, None, cast(Any, None), pool, "in_process", "")))

    monkeypatch.setattr(matrix_commands, "run_measured", over_pool)
    assert scripted_run.main(tmp_path) == 0
    return tmp_path / "it"


def test_a_pair_measured_again_gives_what_the_run_measured_and_is_kept(
    scripted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = load_run(scripted).evaluations
    (scripted / "heldout").rename(scripted / "kept")
    reads = (scripted / "sealed_reads.jsonl").read_text().count("\n")
    assert main(["matrix", str(scripted), "--rounds", "all"]) == 0
    matrix = Matrix.from_json(json.loads((scripted / "matrix.json").read_text()), "matrix.json")
    assert {cell.source for cell in matrix.cells} == {"matrix"}
    for evaluation in own.values():
        row = [h.id for h in matrix.harnesses].index(evaluation.harness_id)
        file = scripted / matrix.cell(row, 0).file
        found = PairFile.from_json(json.loads(file.read_text()), str(file)).evaluation
        assert found.episodes == evaluation.episodes
    lines = (scripted / "sealed_reads.jsonl").read_text().splitlines()[reads:]
    assert [json.loads(line)["reader"] for line in lines] == ["matrix"] * len(matrix.cells)
    assert matrix.tokens.total > 0
    capsys.readouterr()
    assert main(["matrix", str(scripted), "--rounds", "all"]) == 0
    assert "; 0 to measure" in capsys.readouterr().out
    assert (scripted / "sealed_reads.jsonl").read_text().splitlines()[reads:] == lines


def test_the_runs_own_measurements_count_unless_its_settings_changed_on_the_way(
    scripted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["matrix", str(scripted), "--harness", "0", "-n", "4"]
    assert main(command) == 0
    assert "1 of 1 pairs are measured already" in capsys.readouterr().out
    matrix = Matrix.from_json(json.loads((scripted / "matrix.json").read_text()), "matrix.json")
    assert (matrix.cells[0].source, matrix.cells[0].result.n) == ("run", 4)
    changed = {"schema": 1, "changed": {"rollout.temperature": [1.0, 0.5]}}
    (scripted / "config_changes.jsonl").write_text(json.dumps(changed) + "\n")
    assert main(command) == 0
    assert "0 of 1 pairs are measured already" in capsys.readouterr().out


def test_a_damaged_pair_is_named(scripted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(scripted / "heldout")
    assert main(["matrix", str(scripted), "--harness", "0"]) == 0
    (file,) = (scripted / "matrix").glob("*.json")
    file.write_text("{")
    assert main(["matrix", str(scripted), "--harness", "0"]) == 2
    said = capsys.readouterr().err
    assert str(file) in said
    assert "remove it to measure the pair again" in said
