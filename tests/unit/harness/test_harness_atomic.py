"""Files that are replaced whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.atomic import (
    put_directory,
    replacing,
    replacing_directory,
    write_atomic,
    write_json,
)


def test_a_failed_write_leaves_the_old_file_and_nothing_beside(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    write_atomic(file, b"old")
    (tmp_path / "full").mkdir()
    with pytest.raises(OSError):
        write_atomic(tmp_path / "full", b"new")  # a directory cannot be replaced by a file
    with pytest.raises(ZeroDivisionError), replacing(file) as beside:
        beside.write_bytes(b"half" * (1 // 0))
    with pytest.raises(ValueError, match="nan"):
        write_json(file, {"x": float("nan")})
    assert file.read_bytes() == b"old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["full", "state.json"]


KILLED = """
import os, signal, sys
from pathlib import Path
from harness.atomic import write_atomic

file, point = Path(sys.argv[1]), int(sys.argv[2])
calls = 0
for name in ("open", "fsync", "replace"):
    def dying(*args, real=getattr(os, name)):
        global calls
        if calls == point:
            os.kill(os.getpid(), signal.SIGKILL)
        calls += 1
        return real(*args)
    setattr(os, name, dying)
write_atomic(file, b"new")
"""


@pytest.mark.parametrize("point", range(7))
def test_a_write_killed_at_any_call_leaves_the_old_or_the_new(tmp_path: Path, point: int) -> None:
    file = tmp_path / "deep" / "file"
    write_atomic(file, b"old")
    run = subprocess.run([sys.executable, "-c", KILLED, file, str(point)], check=False)
    assert run.returncode == (0 if point >= 5 else -9)  # open, fsync, replace, open, fsync
    assert file.read_bytes() == (b"old" if point <= 2 else b"new")


def test_the_scratch_file_may_be_placed_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    with replacing(tmp_path / "file", tmp_path / "scratch" / "file") as beside:
        beside.write_text("x")
        assert os.listdir(tmp_path / "scratch") == ["file"]
    assert (tmp_path / "file").read_text() == "x"
    assert os.listdir(tmp_path / "scratch") == []


def test_a_directory_is_put_in_the_place_of_the_old_one_whole_or_not_at_all(
    tmp_path: Path,
) -> None:
    target = tmp_path / "deep" / "out"
    with replacing_directory(target) as beside:
        (beside / "part").mkdir()
        (beside / "part" / "old").write_text("1")
    with pytest.raises(ZeroDivisionError), replacing_directory(target) as beside:
        (beside / "half").write_text("x" * (1 // 0))
    assert (target / "part" / "old").read_text() == "1"
    with replacing_directory(target) as beside:
        (beside / "new").write_text("2")
    assert [p.name for p in target.iterdir()] == ["new"]
    assert [p.name for p in target.parent.iterdir()] == ["out"]


def test_everything_in_a_directory_is_synced_before_it_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = tmp_path / "beside"
    (beside / "part").mkdir(parents=True)
    (beside / "part" / "file").write_text("x")
    done: list[str] = []
    monkeypatch.setattr("harness.atomic.fsync", lambda path: done.append(path.name))
    monkeypatch.setattr("os.replace", lambda a, b: done.append("rename"))
    put_directory(beside, tmp_path / "out")
    assert sorted(done[:-2]) == ["beside", "file", "part"]
    assert done[-2:] == ["rename", tmp_path.name]
