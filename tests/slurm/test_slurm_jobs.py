"""The job under a real Slurm: stops, requeues, resumes; never twice, never for nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from job_under_test import JobUnderTest, steps_job, submit_steps
from throwaway_slurm import ThrowawaySlurm, until

from coevo.cli import main

ROOT = Path(__file__).resolve().parents[2]
Fleet = Mapping[str, JobUnderTest]


def keys(job: JobUnderTest, run: int = 0) -> list[str]:
    return [phase["key"] for phase in job.phases(run)]


def numbers(count: int) -> list[str]:
    return [str(i) for i in range(count)]


def test_usr1_stops_between_two_phases_and_the_job_resumes_there(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    job = fleet["signalled"]
    assert job.wait_for_end() == "COMPLETED"
    assert job.decisions() == ["requeue", "done"]
    assert job.events("end")[0]["code"] == "75"
    assert job.events("end")[0]["stopped"] == "USR1"
    # Every phase once, by two processes.
    assert keys(job) == numbers(20)
    assert len({phase["result"] for phase in job.phases()}) == 2
    logs = job.run / "logs"
    assert (logs / "latest").resolve().name == f"{job.id}.1"
    assert "stopped between two phases" in (logs / f"{job.id}.0" / "driver.log").read_text()
    assert list(job.run.glob(".ray_token*")) == []
    with capsys.disabled():
        print(f"\nrequeue to resume: {job.requeue_to_resume_s():.0f} s")


def test_a_python_bug_is_final(fleet: Fleet) -> None:
    job = fleet["bug"]
    assert job.wait_for_end() == "FAILED"
    assert job.decisions() == ["bug"]
    assert "bug: a bug" in job.told()


def test_scancel_is_final_and_keeps_what_was_done(fleet: Fleet) -> None:
    job = fleet["cancelled"]
    assert job.wait_for_end() == "CANCELLED"
    assert job.decisions() == ["cancelled"]
    assert keys(job) == numbers(len(job.phases()))


def test_a_scratch_that_no_node_can_write_is_final_and_named(
    slurm: ThrowawaySlurm, tmp_path: Path
) -> None:
    job = submit_steps(slurm, tmp_path / "it", Path("/proc"), {"steps": 1}, {})
    assert job.wait_for_end() == "FAILED"
    assert job.decisions() == ["bad input"]
    assert "cluster.scratch /proc cannot be written" in job.told()


def test_one_task_of_an_array_is_requeued_without_the_other(fleet: Fleet) -> None:
    job = fleet["array"]
    for task in (0, 1):
        assert job.wait_for_end(task) == "COMPLETED"
    assert job.decisions(0) == ["requeue", "done"]
    assert job.decisions(1) == ["done"]
    assert keys(job, 0) == keys(job, 1) == numbers(30)


def test_arms_are_submitted_as_an_array_and_an_edited_configuration_only_on_request(
    slurm: ThrowawaySlurm,
    runs: Path,
    scratch: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    python = runs / "my venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        '#!/bin/bash\n[ "$3" = node ] && exec sleep 1000\n'
        f'exec {sys.executable} {ROOT}/tests/slurm/steps_driver.py "$@"\n'
    )
    python.chmod(0o755)
    settings = {
        "interface": "lo", "scratch": scratch, "cpus_per_task": 4, "mem": "100M",
        "venv": python.parents[1],
    }  # fmt: skip
    command = [
        "submit", "configs/smoke.yaml", "--array", "arms", "--arms", "frozen,harness",
        f"runs_dir={runs}/arms", *(f"cluster.{key}={value}" for key, value in settings.items()),
    ]  # fmt: skip
    own = [runs / "arms" / f"smoke-{arm}-s0" for arm in ("frozen", "harness")]

    def submitted(*more: str) -> JobUnderTest:
        assert main([*command, *more]) == 0, capsys.readouterr().err
        said = capsys.readouterr().out
        number = said.splitlines()[0].removeprefix("submitted job ").partition(":")[0]
        return JobUnderTest(slurm, number, own, runs / "arms" / "jobs" / "smoke")

    def ends_well(job: JobUnderTest) -> None:
        for task in (0, 1):
            assert job.wait_for_end(task) == "COMPLETED", job.told()

    job = submitted()
    ends_well(job)
    assert [job.decisions(task) for task in (0, 1)] == [["done"], ["done"]]
    modes = [yaml.safe_load((run / "submitted.yaml").read_text())["mode"] for run in own]
    assert modes == ["frozen", "harness"]

    assert main([*command, "evaluation.episodes=5"]) == 2
    assert "evaluation.episodes: 6 there, 5 asked for" in capsys.readouterr().err
    ends_well(submitted("evaluation.episodes=5", "--accept-config"))
    assert "evaluation.episodes" in (own[0] / "config_changes.jsonl").read_text()


def test_a_preempted_job_stops_in_its_grace_time_and_goes_on_later(fleet: Fleet) -> None:
    job = fleet["preempted"]
    assert job.wait_for_end() == "COMPLETED"
    assert job.decisions() == ["requeue", "done"]
    assert job.events("end")[0]["code"] == "75"
    assert keys(job) == numbers(40)


def test_a_lost_node_costs_an_attempt_and_nothing_else(fleet: Fleet) -> None:
    job = fleet["node-lost"]
    job.wait(lambda: job.state() != "RUNNING", "the loss to be noticed")
    job.slurm.start_node("n4")
    assert job.wait_for_end() == "COMPLETED"
    assert len(job.events("start")) == 2
    assert keys(job) == numbers(120)


def test_the_loss_of_a_daemon_ends_the_attempt(fleet: Fleet) -> None:
    job = fleet["daemon-lost"]
    assert job.wait_for_end() == "COMPLETED"
    assert job.decisions() == ["requeue", "done"]
    assert "lost a Ray node" in job.told()
    assert keys(job) == numbers(30)


def test_the_time_limit_is_met_by_a_stop_before_it(fleet: Fleet) -> None:
    job = fleet["time-limit"]
    assert job.wait_for_end() == "COMPLETED"
    assert set(job.decisions()[:-1]) == {"requeue"}
    assert job.decisions()[-1] == "done"
    assert job.events("end")[0]["stopped"] == "USR1"
    assert keys(job) == numbers(35)


def test_a_job_that_gets_nowhere_gives_up_and_leaves_no_scratch(
    fleet: Fleet, scratch: Path
) -> None:
    job = fleet["stuck"]
    assert job.wait_for_end() == "FAILED"
    # The first attempt finished phases 0 and 1; two restarts finished none.
    assert job.decisions() == ["requeue", "requeue", "gave up"]
    assert [event["code"] for event in job.events("end")] == ["137", "137", "70"]
    assert "2 restarts in a row finished no phase" in job.told()
    assert list(scratch.glob(f"r{job.id}.*")) == []


def test_the_same_script_runs_without_slurm_and_through_a_container(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = tmp_path / "coevo.sif"
    image.touch()
    stub = tmp_path / "bin" / "apptainer"
    stub.parent.mkdir()
    stub.write_text(
        f'#!/bin/bash\necho "$*" >> "{tmp_path}/called"\n'
        'while [ "${1##*.}" != sif ]; do shift; done; shift; exec "$@"\n'
    )
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stub.parent}:/usr/bin:/bin")
    cluster = {"container": f"apptainer:{image}", "mounts": ["/opt"], "gpus_per_node": 1}
    job = steps_job(tmp_path / "it", scratch, {"steps": 2}, cluster)
    done = subprocess.run(["bash", job.script, "--local"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    called = (tmp_path / "called").read_text()
    assert called.count(f"exec --nv --bind {job.runs[0]}:{job.runs[0]} --bind {scratch}") == 2
    assert f"--bind /opt:/opt {image} {sys.executable}" in called
    phases = (job.runs[0] / "journal.jsonl").read_text().splitlines()
    assert [json.loads(line)["key"] for line in phases] == ["0", "1"]
    assert list(scratch.glob(f"r{job.runs[0].name}*")) == []


def test_without_slurm_a_stop_ends_the_script_with_75(tmp_path: Path, scratch: Path) -> None:
    job = steps_job(tmp_path / "it", scratch, {"steps": 100}, {})
    process = subprocess.Popen(
        ["bash", str(job.script), "--local"], stdout=subprocess.PIPE, text=True
    )
    until(lambda: (job.runs[0] / "journal.jsonl").exists(), "the first phase")
    process.terminate()
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 75, said
    assert "coevo resume" in said


def test_a_phase_longer_than_the_time_limit_is_requeued_at_the_limit(fleet: Fleet) -> None:
    job = fleet["long-phase"]
    job.wait(job.decisions, "the time limit", 240)
    assert job.decisions()[0] == "requeue"
    assert job.events("end")[0]["code"] == "137"
    job.wait(lambda: len(job.events("start")) >= 2, "the second attempt")
    job.slurm.ask("scancel", job.id)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("cluster.partition=mian", "did you mean 'main'?"),
        ("cluster.partition=night", "there are: frail, high, main, spot"),
        ("cluster.gpus_per_node=8", "no node of partition 'main' has more than 4"),
        ("cluster.nodes=3", "partition 'main' has 2 nodes"),
        ("cluster.time=2-00:00:00", "allows 86400 s"),
        ("cluster.extra=['--reservation=mine']", "sbatch refused"),
    ],
)
def test_what_this_cluster_cannot_do_is_refused_at_once(
    override: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["submit", str(ROOT / "configs/smoke.yaml"), f"runs_dir={tmp_path}", override])
    error = capsys.readouterr().err
    assert code == 2
    assert said in error
    assert "Traceback" not in error
