"""What a user sees who mistypes: one message that says what to do, and exit code 2."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from coevo.cli import main
from coevo.config import load_config
from coevo.rundir import RunDir

QUICKSTART = "configs/quickstart.yaml"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "configs/quickstrat.yaml"], "did you mean 'quickstart.yaml'?"),
        (["run", QUICKSTART, "rouns=2"], "did you mean 'rounds'?"),
        (["run", QUICKSTART, "evolution.recipe=nonesuch"], "there is no such recipe"),
        (["resume", "runs/nothing-here"], "there is no run here"),
        (["status", "runs/nothing-here"], "there is no such run directory"),
        (["compare", "runs/nothing-here"], "there is no such run directory"),
        (["warmstart", QUICKSTART, "policy.warmstart.episodes=0"], "episodes: is 0"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    if arguments[0] == "run":
        arguments = [*arguments, f"runs_dir={tmp_path}"]
    try:
        code = main(arguments)
    except SystemExit as stop:
        code = stop.code
    error = capsys.readouterr().err
    assert code == 2
    assert said in error
    assert "Traceback" not in error


def test_a_run_in_use_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDir.create(tmp_path / "it", load_config(QUICKSTART, ["name=it"]), {})
    with run:
        code = main(["resume", str(run.path)])
    assert code == 2
    assert "is in use by process" in capsys.readouterr().err


def test_an_experiment_with_an_unknown_arm_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["experiment", QUICKSTART, f"runs_dir={tmp_path}", "--arms", "frozen,harnes"])
    assert code == 2
    assert "'harnes' is none; did you mean 'harness'?" in capsys.readouterr().err


def test_overrides_may_stand_before_and_after_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["experiment", QUICKSTART, "--arms", "frozen", f"runs_dir={tmp_path}", "rouns=1"])
    assert code == 2
    assert "did you mean 'rounds'?" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["experiment", QUICKSTART, "--arms", "frozen", "--sead=1"])


def test_a_reader_that_leaves_early_is_no_bug(tmp_path: Path) -> None:
    bundle = shlex.quote(str(Path(QUICKSTART).parent / "harness" / "household"))
    command = f"{sys.executable} -m coevo.cli harness show --json {bundle} | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["141"]
    assert done.stderr == ""


def test_a_bug_ends_with_70_and_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: object) -> int:
        raise ZeroDivisionError("here")

    monkeypatch.setattr("coevo.commands.dispatch", broken)
    assert main(["status", "runs/it"]) == 70
    assert "ZeroDivisionError: here" in capsys.readouterr().err
