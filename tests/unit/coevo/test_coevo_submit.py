"""`coevo submit` refuses before it submits, and renders the script that was asked for."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from coevo.cli import main
from coevo.config import load_config
from coevo.rundir import RunDir, RunDirError

QUICKSTART = "configs/quickstart.yaml"


@pytest.fixture(autouse=True)
def _no_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without Slurm, whatever this one has."""
    monkeypatch.setenv("PATH", "/usr/bin/nowhere")


def dry_run(capsys: pytest.CaptureFixture[str], *arguments: str, config: str = QUICKSTART) -> str:
    code = main(["submit", config, "--dry-run", *arguments])
    out, error = capsys.readouterr()
    assert code == 0, error
    return out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    code = main(["submit", QUICKSTART, *arguments])
    error = capsys.readouterr().err
    assert code == 2
    assert "Traceback" not in error
    return error


def test_a_dry_run_prints_the_script_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "my runs"
    script = dry_run(
        capsys, f"runs_dir={runs}", "name=it", "cluster.partition=gpu", "cluster.nodes=2",
        "cluster.gpus_per_node=4", "cluster.time=4:00:00", "cluster.modules=[cuda/12.4]",
        "cluster.mem=64G", "cluster.account=lab", "cluster.extra=['--constraint=h100']",
        "cluster.interface=ib0",
    )  # fmt: skip
    for line in (
        "#SBATCH --job-name=it",
        f'#SBATCH --output="{runs}/jobs/it/%j.out"',
        "#SBATCH --signal=B:USR1@300",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        "#SBATCH --time=4:00:00",
        "#SBATCH --nodes=2",
        "#SBATCH --gpus-per-node=4",
        "#SBATCH --mem=64G",
        "#SBATCH --partition=gpu",
        "#SBATCH --account=lab",
        "#SBATCH --constraint=h100",
        f"runs=('{runs}/it' )",
        "interface=(--interface ib0)",
    ):
        assert f"\n{line}\n" in script, line
    assert "module load cuda/12.4" in script
    assert "--array" not in script
    assert "ray stop`" in script  # named in a comment, never run
    assert not runs.exists()


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["cluster.container=pyxis:nvcr.io#nvidia/pytorch", "cluster.modules=[a]"],
        ["cluster.exclusive=true", "cluster.qos=q", "cluster.extra=['--comment=it''s']"],
    ],
)
def test_every_script_is_bash(overrides: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    script = dry_run(capsys, "cluster.nodes=2", *overrides)
    subprocess.run(["/bin/bash", "-n"], input=script, text=True, check=True)


def test_an_array_has_a_run_a_task_named_like_those_of_an_experiment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = f"runs_dir={tmp_path}"
    script = dry_run(capsys, where, "cluster.nodes=1", "--array", "seeds", "--seeds", "3,5")
    assert f"runs=({tmp_path}/quickstart-coevolve-s3 {tmp_path}/quickstart-coevolve-s5 )" in script
    assert "#SBATCH --array=0-1\n" in script
    assert "/jobs/quickstart/%A_%a.out" in script
    script = dry_run(capsys, where, "cluster.nodes=1", "--array", "arms", "--arms", "frozen,model")
    assert f"runs=({tmp_path}/quickstart-frozen-s0 {tmp_path}/quickstart-model-s0 )" in script


def test_a_container_brings_its_own_python(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = tmp_path / "coevo.sif"
    image.touch()
    script = dry_run(capsys, f"cluster.container=apptainer:{image}", f"cluster.mounts=[{tmp_path}]")
    assert f"container=apptainer:{image}\n" in script
    assert "\ndriver=(python -m coevo.launcher drive )\n" in script
    assert f"mounts=({tmp_path} )" in script
    assert "export PATH" not in script


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "has no `cluster` section"),
        (("cluster.node=2",), "did you mean 'nodes'?"),
        (("cluster.nodes=2",), "sinfo is not on PATH"),
        (("name=a 'b'", "cluster.nodes=1"), "name: is \"a 'b'\""),
        (("cluster.nodes=1", "runs_dir=/proc/x"), "cannot be made or written"),
        (("cluster.nodes=1", "--dry-run", "runs_dir=/tmp/50%"), "sbatch lines cannot carry"),
        (("cluster.nodes=1", "--dry-run", "cluster.scratch=/proc"), "is not a directory that can"),
        (("--local", "cluster.nodes=1", "cluster.scratch=/no"), "is not a directory that can"),
        (("cluster.venv=/no/such", "--dry-run"), "cluster.venv: there is no /no/such/bin/python"),
        (("cluster.container=apptainer:/x.sif", "--dry-run"), "there is no image /x.sif"),
        (("cluster.container=pyxis:/x.sqsh", "--dry-run"), "there is no image /x.sqsh"),
        (("cluster.container=pyxis:a#b", "--local"), "pyxis needs srun"),
        (("cluster.cpus_per_task=1", "--dry-run"), "books 3 CPUs"),
        (("cluster.nodes=1", "--seeds", "1,2"), "--seeds needs --array"),
        (
            ("cluster.nodes=1", "--array", "arms", "--arms", "frozen,harnes"),
            "'harnes' is none; did you mean 'harness'?",
        ),
    ],
)
def test_bad_input_is_refused_before_anything_is_submitted(
    arguments: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = () if any(a.startswith("runs_dir=") for a in arguments) else (f"runs_dir={tmp_path}",)
    assert said in refused(capsys, *where, *arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_configuration_edited_between_attempts_is_refused_with_the_difference(
    tmp_path: Path,
) -> None:
    path, first = tmp_path / "r", load_config(QUICKSTART, ["name=r"])
    RunDir.create(path, first, {})
    edited = load_config(QUICKSTART, ["name=r", "trainer.lr=0.01", "cluster.nodes=4"])
    with pytest.raises(RunDirError, match=r"trainer.lr: 0.0006 there, 0.01 asked for") as caught:
        RunDir.create(path, edited, {})
    assert "--accept-config" in str(caught.value)
    assert "cluster" not in str(caught.value)


def test_an_accepted_change_becomes_the_runs_own_and_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "r"
    RunDir.create(path, load_config(QUICKSTART), {})
    edited = load_config(QUICKSTART, ["trainer.lr=0.01"])
    run = RunDir.create(path, edited, {}, accept=True)
    assert run.config().trainer.lr == 0.01
    (line,) = (path / "config_changes.jsonl").read_text().splitlines()
    assert json.loads(line)["changed"] == {"trainer.lr": [0.0006, 0.01]}
    RunDir.create(path, edited, {})


def test_where_a_run_is_computed_may_change_between_attempts(tmp_path: Path) -> None:
    RunDir.create(tmp_path / "r", load_config(QUICKSTART), {})
    RunDir.create(tmp_path / "r", load_config(QUICKSTART, ["cluster.nodes=2"]), {})


def test_what_makes_the_run_this_run_cannot_be_accepted(tmp_path: Path) -> None:
    RunDir.create(tmp_path / "r", load_config(QUICKSTART), {})
    edited = load_config(QUICKSTART, ["seed=1", "trainer.lr=0.01"])
    with pytest.raises(RunDirError, match="cannot change within a run:\n- seed: 0 there, 1"):
        RunDir.create(tmp_path / "r", edited, {}, accept=True)
