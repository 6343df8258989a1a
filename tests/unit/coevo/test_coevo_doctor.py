"""`coevo doctor`: what it finds right and wrong, each with what to do."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import shutil
from importlib import metadata
from pathlib import Path

import pytest

from coevo import doctor_checks as doctor
from coevo.cli import main
from coevo.cluster import ClusterConfig


def test_this_machine_passes_and_says_so_as_a_table_and_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["doctor", "configs/smoke.yaml", f"runs_dir={tmp_path}/runs", "--no-engines"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "0 to mend" in out
    assert main([*arguments, "--json"]) == 0
    found = {check["name"]: check for check in json.loads(capsys.readouterr().out)}
    assert {"packages", "sandbox", "ports", "runs_dir", "open files", "configuration"} <= set(found)
    assert "fsync, rename and flock work" in found["runs_dir"]["found"]
    assert list(tmp_path.iterdir()) == []


def test_a_failed_check_ends_with_2_and_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 4096))
    assert main(["doctor", "--no-engines"]) == 2
    out, error = capsys.readouterr()
    assert "ulimit -n 4096" in out
    assert "checks failed: open files" in error


def test_a_version_outside_the_supported_range_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.version

    def version(name: str) -> str:
        if name == "datasets":
            raise metadata.PackageNotFoundError(name)
        return "9.9" if name == "ray" else real(name)

    monkeypatch.setattr(metadata, "version", version)
    found = doctor.packages()[0]
    assert found.status == "fail"
    assert "ray is 9.9, needs <2.61,>=2.60" in found.found
    assert "datasets is missing" in found.found


def test_a_second_lock_is_refused_while_the_first_is_held(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert doctor._second_lock_is_refused(file)
    code, said, _ = doctor._python(doctor.TAKE_LOCK, 30, str(file))
    assert (code, said) == (0, "(no output)")  # it was free again
    handle = os.open(file, os.O_RDWR)
    fcntl.flock(handle, fcntl.LOCK_EX)
    assert doctor._python(doctor.TAKE_LOCK, 30, str(file))[1] == "refused"
    os.close(handle)


@pytest.mark.parametrize(
    ("free", "status"), [(0.5, "fail"), (5, "warn"), (500, "ok")]
)  # fmt: skip
def test_free_disk_is_judged(
    free: float, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "free_bytes", lambda _: int(free * doctor.GIB))
    assert doctor.free_disk("runs_dir", tmp_path / "not" / "yet").status == status


def test_an_object_store_larger_than_shm_fails() -> None:
    assert doctor.shared_memory(1 << 60).status == "fail"
    assert doctor.shared_memory(1 << 20).status in ("ok", "warn")


def test_an_unwritable_directory_fails() -> None:
    assert doctor.shared_directory("runs_dir", Path("/proc/runs")).status == "fail"


def test_an_interface_that_does_not_exist_fails() -> None:
    assert doctor.ports("ib7").status == "fail"
    assert "of 600 blocks" in doctor.ports("lo").found


def test_without_slurm_only_a_configuration_with_a_cluster_is_warned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    (check,) = doctor.slurm_checks(None)
    assert check.status == "ok"
    (check,) = doctor.slurm_checks(ClusterConfig())
    assert check.status == "warn"


def test_what_fails_in_a_process_of_its_own_is_told_in_its_last_line() -> None:
    code, said, _ = doctor._python("import no_such_engine", 30)
    assert code == 1
    assert doctor._last(said) == "ModuleNotFoundError: No module named 'no_such_engine'"
    assert doctor._python("import time; time.sleep(60)", 0.5)[1] == "nothing after 0.5 s"


@pytest.mark.slow
def test_the_engines_import_and_ray_starts_and_stops() -> None:
    checks = [*doctor.engine_imports(), doctor.ray_starts()]
    assert [(c.name, c.status) for c in checks] == [
        ("vLLM", "ok"), ("DeepSpeed", "ok"), ("TRL", "ok"), ("Ray", "ok"),
    ]  # fmt: skip
