"""The job under a real Slurm: stops, requeues, resumes; never twice, never for nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from job_under_test import JobUnderTest, steps_job, submit_steps
from throwaway_slurm import ThrowawaySlurm, until

ROOT = Path(__file__).resolve().parents[2]
Submit = Callable[..., JobUnderTest]


def keys(job: JobUnderTest, run: int = 0) -> list[str]:
    return [phase["key"] for phase in job.phases(run)]


def numbers(count: int) -> list[str]:
    return [str(i) for i in range(count)]


def test_usr1_stops_between_two_phases_and_the_job_resumes_there(
    steps: Submit, capsys: pytest.CaptureFixture[str]
) -> None:
    job = steps({"steps": 12})
    job.wait_for_phases(2)
    job.signal("USR1")
    assert job.wait_for_end() == "COMPLETED"
    assert job.decisions() == ["requeue", "done"]
    assert job.events("end")[0]["code"] == "75"
    assert job.events("end")[0]["stopped"] == "USR1"
    # Every phase once, by two processes.
    assert keys(job) == numbers(12)
    assert len({phase["result"] for phase in job.phases()}) == 2
    latest = job.run / "logs" / "latest"
    assert latest.resolve().name == f"{job.id}.1"
    assert (job.run / "logs" / f"{job.id}.0" / "driver.log").read_text().count("stopped") == 1
    assert list(job.run.glob(".ray_token*")) == []
    with capsys.disabled():
        print(f"\nrequeue to resume: {job.requeue_to_resume_s():.0f} s")


def test_a_python_bug_is_final(steps: Submit) -> None:
    job = steps({"steps": 12, "bug_at": 1})
    assert job.wait_for_end() == "FAILED"
    assert job.decisions() == ["bug"]
    assert "bug: a bug" in job.told()


def test_scancel_is_final_and_keeps_what_was_done(steps: Submit) -> None:
    job = steps({"steps": 200})
    job.wait_for_phases(2)
    job.slurm.ask("scancel", job.id)
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


def test_one_task_of_an_array_is_requeued_without_the_other(steps: Submit) -> None:
    job = steps({"steps": 25}, runs=2)
    for run in (0, 1):
        job.wait_for_phases(2, run)
    job.signal("USR1", task=0)
    for task in (0, 1):
        assert job.wait_for_end(task) == "COMPLETED"
    assert job.decisions(0) == ["requeue", "done"]
    assert job.decisions(1) == ["done"]
    assert keys(job, 0) == keys(job, 1) == numbers(25)


def test_a_preempted_job_stops_in_its_grace_time_and_goes_on_later(steps: Submit) -> None:
    job = steps({"steps": 40}, partition="spot")
    job.wait_for_phases(2)
    high = job.slurm.ask(
        "sbatch", "--parsable", "-p", "high", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1"
    )
    assert job.wait_for_end() == "COMPLETED"
    assert job.decisions() == ["requeue", "done"]
    assert job.events("end")[0]["code"] == "75"
    assert keys(job) == numbers(40)
    assert job.slurm.ask("squeue", "-h", "-t", "all", "-j", high, "-o", "%T") == "COMPLETED"


def test_a_lost_node_costs_an_attempt_and_nothing_else(steps: Submit) -> None:
    job = steps({"steps": 60, "seconds": 0.5}, partition="frail", nodes=2)
    job.wait_for_phases(2)
    job.slurm.kill_node("n4")
    job.wait(lambda: job.state() != "RUNNING", "the loss to be noticed")
    job.slurm.start_node("n4")
    assert job.wait_for_end() == "COMPLETED"
    assert len(job.events("start")) == 2
    assert keys(job) == numbers(60)


def test_the_loss_of_a_daemon_ends_the_attempt(steps: Submit, slurm: ThrowawaySlurm) -> None:
    job = steps({"steps": 20, "seconds": 0.5}, cpus_per_task=2)
    job.wait_for_phases(2)
    step = slurm.ask("squeue", "-h", "-s", "-j", job.id, "-o", "%i").split()
    (daemon,) = [s for s in step if not s.endswith((".batch", ".extern"))]
    slurm.ask("scancel", "--signal=KILL", daemon)
    assert job.wait_for_end() == "COMPLETED"
    assert job.decisions() == ["requeue", "done"]
    assert "lost a Ray node" in job.told()
    assert keys(job) == numbers(20)


def test_the_time_limit_is_met_by_a_stop_before_it(long_jobs: Mapping[str, JobUnderTest]) -> None:
    job = long_jobs["time-limit"]
    assert job.wait_for_end() == "COMPLETED"
    assert set(job.decisions()[:-1]) == {"requeue"}
    assert job.decisions()[-1] == "done"
    assert job.events("end")[0]["stopped"] == "USR1"
    assert keys(job) == numbers(35)


def test_a_job_that_gets_nowhere_gives_up(long_jobs: Mapping[str, JobUnderTest]) -> None:
    job = long_jobs["stuck"]
    assert job.wait_for_end() == "FAILED"
    # The first attempt finished phases 0 and 1; two restarts finished none.
    assert job.decisions() == ["requeue", "requeue", "gave up"]
    assert [event["code"] for event in job.events("end")] == ["137", "137", "70"]
    assert "2 restarts in a row finished no phase" in job.told()


def test_a_phase_longer_than_the_time_limit_is_requeued_at_the_limit(
    long_jobs: Mapping[str, JobUnderTest],
) -> None:
    job = long_jobs["long-phase"]
    job.wait(lambda: job.decisions(), "the time limit", 240)
    assert job.decisions()[0] == "requeue"
    assert job.events("end")[0]["code"] == "137"
    job.wait(lambda: len(job.events("start")) == 2, "the second attempt")
    job.slurm.ask("scancel", job.id)


def test_the_scratch_of_ended_attempts_is_gone(
    long_jobs: Mapping[str, JobUnderTest], scratch: Path
) -> None:
    job = long_jobs["stuck"]
    job.wait_for_end()
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


def coevo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "coevo.cli", *arguments], cwd=ROOT, capture_output=True, text=True
    )


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
    slurm: ThrowawaySlurm, tmp_path: Path, override: str, said: str
) -> None:
    done = coevo("submit", "configs/smoke.yaml", f"runs_dir={tmp_path}", override)
    assert done.returncode == 2, done.stdout
    assert said in done.stderr
    assert "Traceback" not in done.stderr
