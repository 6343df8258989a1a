"""Files and directories that a reader finds whole: written beside their place, synced, renamed."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

AT_ONCE = 8
"""Files that are synced at the same time."""


@contextmanager
def replacing(path: Path, beside: Path | None = None) -> Iterator[Path]:
    """A file to write instead of `path`; when the block ends it is synced and renamed there.

    After an error, or a kill at any instant, `path` is what it was. beside: where it is written,
    on the same file system (default: a hidden name in the same directory, which is created).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = beside or _beside(path, "tmp")
    try:
        yield beside
        fsync(beside)
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    fsync(path.parent)


def write_atomic(path: Path, data: bytes) -> None:
    """Readers see the old file or the whole new one."""
    with replacing(path) as beside:
        beside.write_bytes(data)


@contextmanager
def replacing_directory(path: Path) -> Iterator[Path]:
    """An empty directory to fill instead of `path`; when the block ends it is put there, synced.

    After an error `path` is what it was and nothing lies beside.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = _beside(path, "tmp")
    beside.mkdir()
    try:
        yield beside
        put_directory(beside, path)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


def put_directory(beside: Path, path: Path) -> None:
    """Sync all that lies in `beside` and rename it to `path`, in the place of a directory there.

    After a kill at any instant `path` is the old one, the new one or, between two renames, absent.
    """
    sync_tree(beside)
    if path.exists():
        old = _beside(path, "old")
        os.replace(path, old)
        os.replace(beside, path)
        shutil.rmtree(old)
    else:
        os.replace(beside, path)
    fsync(path.parent)


def sync_tree(directory: Path) -> None:
    """fsync of every file and folder below, and of the directory itself."""
    paths = [
        path
        for folder, _, files in os.walk(directory)
        for path in (Path(folder), *(Path(folder, name) for name in files))
    ]
    # Together: a journaling file system then writes them in few transactions.
    with ThreadPoolExecutor(min(len(paths), AT_ONCE)) as pool:
        for _ in pool.map(fsync, paths):
            pass


def _beside(path: Path, what: str) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.{what}")


def write_json(path: Path, value: Any) -> None:
    """`value` as indented JSON, atomically; NaN is refused."""
    write_atomic(path, json.dumps(value, indent=1, allow_nan=False).encode() + b"\n")


def fsync(path: Path) -> None:
    """Of a file or a directory, so that its content or a rename in it survives a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256(path: Path) -> str:
    """Of a file's content, hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
