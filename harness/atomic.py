"""Files that a reader finds whole: written beside their place, synced, renamed."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: Path, beside: Path | None = None) -> Iterator[Path]:
    """A file to write instead of `path`; when the block ends it is synced and renamed there.

    After an error, or a kill at any instant, `path` is what it was. beside: where it is written,
    on the same file system (default: a hidden name in the same directory, which is created).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = beside or path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
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
