"""File trees on disk: read one with every refusal named, write one synced."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from harness.atomic import fsync
from harness.component import MAX_FILE_BYTES, File


def read(root: Path, problems: list[str], refused: list[str]) -> dict[str, File]:
    """Every regular file under `root` by its path there.

    A symbolic link, a special file or a file past MAX_FILE_BYTES is described in `problems` and
    its path is added to `refused`. Empty folders are skipped.
    """
    files: dict[str, File] = {}
    pending = [(os.fsencode(root), "")]
    while pending:
        folder, prefix = pending.pop()
        for name in sorted(os.listdir(folder)):
            full = os.path.join(folder, name)
            path = prefix + os.fsdecode(name)
            mode = os.lstat(full).st_mode
            if stat.S_ISDIR(mode):
                pending.append((full, path + "/"))
                continue
            file = _read_file(full, path, mode, problems)
            if file is None:
                refused.append(path)
            else:
                files[path] = file
    return files


def write(files: Mapping[str, File], root: Path, read_only: bool = False) -> None:
    """Write the files into the existing directory `root`, modes fixed, all synced to disk."""
    folders = {root}
    drop = 0o222 if read_only else 0
    for name, file in files.items():
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        folders.update(parent for parent in target.parents if parent.is_relative_to(root))
        _write(target, file.content, (0o755 if file.executable else 0o644) & ~drop)
    for folder in sorted(folders, reverse=True):
        folder.chmod(0o755)  # whatever the umask
        fsync(folder)


def _read_file(full: bytes, path: str, mode: int, problems: list[str]) -> File | None:
    if stat.S_ISLNK(mode):
        problems.append(f"file {path!r} is a symbolic link; put the file itself in the bundle")
        return None
    if not stat.S_ISREG(mode):
        problems.append(f"file {path!r} is not a regular file; remove it")
        return None
    # O_NOFOLLOW and O_NONBLOCK: the entry may have been exchanged since lstat.
    handle = os.open(full, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(handle, "rb") as stream:
        size = os.fstat(handle).st_size
        content = stream.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        problems.append(
            f"file {path!r} has {size} bytes, more than {MAX_FILE_BYTES}; shorten or split it"
        )
        return None
    return File(content, bool(mode & 0o100))


def _write(path: Path, content: bytes, mode: int) -> None:
    with open(path, "xb") as stream:
        stream.write(content)
        stream.flush()
        os.fchmod(stream.fileno(), mode)
        os.fsync(stream.fileno())
