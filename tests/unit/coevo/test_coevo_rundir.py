"""A run directory has one owner, one configuration, and files that are whole or absent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from coevo.config import load_config
from coevo.rollouts import TaskSource, episode_specs
from coevo.rundir import RunDir, RunDirError

ROOT = Path(__file__).resolve().parents[3]
QUICKSTART = ROOT / "configs" / "quickstart.yaml"


def test_a_run_is_created_once_and_found_again(tmp_path: Path) -> None:
    config = load_config(QUICKSTART)
    RunDir.create(tmp_path / "r", config, {"coevo": "0"})
    again = RunDir.create(tmp_path / "r", config, {"coevo": "0"})
    assert again.config() == config
    assert RunDir.open(tmp_path / "r").config() == config


def test_another_configuration_is_refused_with_the_difference(tmp_path: Path) -> None:
    RunDir.create(tmp_path / "r", load_config(QUICKSTART), {})
    with pytest.raises(RunDirError, match=r"rounds: 3 there, 2 asked for"):
        RunDir.create(tmp_path / "r", load_config(QUICKSTART, ["rounds=2"]), {})


def test_a_directory_of_something_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(RunDirError, match="holds no run"):
        RunDir.create(tmp_path, load_config(QUICKSTART), {})
    with pytest.raises(RunDirError, match="there is no run here"):
        RunDir.open(tmp_path)


def test_a_second_process_is_refused_and_told_who_holds_the_run(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "r", load_config(QUICKSTART), {})
    code = f"from pathlib import Path; from coevo.rundir import RunDir; RunDir(Path({str(run.path)!r})).__enter__()"
    with run:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "is in use by process" in done.stderr
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_rounds_tasks_go_through_the_whole_split_in_turn() -> None:
    config = load_config(QUICKSTART)
    source = TaskSource(config.environment, seed=3)
    laps = [task.id for round in range(4) for task in source.batch(round, 24)]
    assert len(set(laps)) == 96
    assert laps == [t.id for r in range(4) for t in TaskSource(config.environment, 3).batch(r, 24)]
    assert laps != [t.id for r in range(4) for t in TaskSource(config.environment, 4).batch(r, 24)]


def test_paired_harnesses_get_the_same_seeds_and_other_draws_others() -> None:
    tasks = TaskSource(load_config(QUICKSTART).environment, 0).batch(0, 3)

    def seeds(draw: str) -> dict[str, list[int]]:
        specs = episode_specs(
            0, "p", 0, tasks, [("a" * 64, "incumbent"), ("b" * 64, "candidate")], 0, 2, draw
        )
        assert len({s.id for s in specs}) == len(specs) == 12
        return {h: [s.seed for s in specs if s.harness_id == h * 64] for h in "ab"}

    select, confirm = seeds("select"), seeds("confirm")
    assert select["a"] == select["b"]
    assert not set(select["a"]) & set(confirm["a"])


def test_too_many_tasks_are_refused_with_the_key_to_change() -> None:
    source = TaskSource(load_config(QUICKSTART).environment, 0)
    with pytest.raises(ValueError, match=r"tasks\.per_round is 97"):
        source.batch(0, 97)
    with pytest.raises(ValueError, match=r"counts\.heldout"):
        source.check_size("heldout", 241)


@pytest.mark.parametrize("left", ["lock.json", ".lock.json.0f3a.tmp", ".config.yaml.0f3a.tmp"])
def test_a_directory_whose_making_was_killed_is_made_again(left: str, tmp_path: Path) -> None:
    (tmp_path / "it").mkdir()
    (tmp_path / "it" / left).write_text("{")
    run = RunDir.create(tmp_path / "it", load_config(QUICKSTART), {})
    assert run.config().name == "quickstart"
