"""Safetensors files in one pass: written from pieces and read into place, checksummed on the way.

The library reads what is written here, and the other way round; it copies a file's content several
times on each way, which costs more than the disk does.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

DTYPES: Mapping[str, type] = {
    "I64": np.int64, "F64": np.float64, "I32": np.int32, "F32": np.float32, "BOOL": np.bool_,
}  # fmt: skip
"""Names of the format, by falling alignment: tensors lie in that order, so each is aligned."""

_NAMES = {np.dtype(dtype): name for name, dtype in DTYPES.items()}
CHUNK = 2 << 20


class TensorFileError(ValueError):
    """A file that is no tensor file, is cut short, or whose checksum differs."""


def write_tensors(
    path: Path,
    tensors: Mapping[str, Sequence[np.ndarray]],
    dtypes: Mapping[str, type] | None = None,
) -> dict[str, Any]:
    """Write one-dimensional tensors, each the concatenation of its pieces.

    The file is on its way to the disk then, the caller syncs it. Returns its crc32 and bytes.
    dtypes: of DTYPES, what pieces are cast to; without one, that of the first piece counts.
    """
    kinds = {n: np.dtype((dtypes or {}).get(n, p[0].dtype)) for n, p in tensors.items()}
    order = sorted(tensors, key=lambda name: list(_NAMES).index(kinds[name]))
    header: dict[str, Any] = {}
    end = 0
    for name in order:
        count = sum(map(len, tensors[name]))
        begin, end = end, end + count * kinds[name].itemsize
        header[name] = {
            "dtype": _NAMES[kinds[name]], "shape": [count], "data_offsets": [begin, end],
        }  # fmt: skip
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    start = np.frombuffer(struct.pack("<Q", len(text)) + text, np.uint8)

    crc = size = 0
    # Each chunk is on its way to the disk while the next is summed: little is left to sync.
    with path.open("wb", buffering=0) as file, _Line() as writing:
        handle = file.fileno()
        whole = (_joined(tensors[name], kinds[name]) for name in order)
        for chunk in _chunks(chain([start], whole)):
            writing.put(_write, handle, chunk, size)
            crc = zlib.crc32(chunk, crc)
            size += len(chunk)
        writing.finish()
    return {"crc32": crc, "bytes": size}


def read_tensors(
    path: Path, described: Mapping[str, Any], into: Mapping[str, np.ndarray] | None = None
) -> dict[str, np.ndarray]:
    """The tensors of the file, checked against what `write_tensors` returned.

    into: contiguous arrays that the tensors are read to, by name. A file that was described by its
    sha256 is checked by that. Raises TensorFileError; OSError as reading does.
    """
    out = dict(into or {})
    sha = None if "crc32" in described else hashlib.sha256()
    crc = 0
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size != described["bytes"]:
            raise TensorFileError(f"{path} has {size} bytes, expected {described['bytes']}")
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        text = file.read(length) if length < size else b""
        try:
            header = json.loads(text)
            entries = sorted(
                (e["data_offsets"], name, np.dtype(DTYPES[e["dtype"]]), e["shape"])
                for name, e in header.items() if name != "__metadata__"
            )  # fmt: skip
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TensorFileError(f"{path} has no header of tensors: {error}") from error
        for piece in (start, text):
            crc = zlib.crc32(piece, crc)
            if sha:
                sha.update(piece)
        for _, name, dtype, shape in entries:
            array = out.get(name)
            if array is None:
                out[name] = array = np.empty(shape, dtype)
            if array.dtype != dtype or list(array.shape) != shape:
                raise TensorFileError(
                    f"{path}: tensor {name} is {dtype} {shape}, expected {array.dtype} "
                    f"{list(array.shape)}"
                )
            view = _bytes(array)
            done = 0
            while done < len(view):
                got = file.readinto(view[done:])
                if not got:
                    raise TensorFileError(f"{path} ends within tensor {name}")
                done += got
            crc = zlib.crc32(view, crc)
            if sha:
                sha.update(view)
    found, expected = (sha.hexdigest(), described["sha256"]) if sha else (crc, described["crc32"])
    if found != expected:
        raise TensorFileError(
            f"{path} has {'sha256' if sha else 'crc32'} {found}, expected {expected}: it changed "
            "after it was written"
        )
    return out


def checksum(path: Path) -> tuple[int, int]:
    """(crc32, bytes) of a file, as `write_tensors` gives them."""
    crc = size = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            crc = zlib.crc32(chunk, crc)
            size += len(chunk)
    return crc, size


def _joined(pieces: Sequence[np.ndarray], dtype: np.dtype[Any]) -> np.ndarray:
    """One array of the pieces: thousands of short ones cost more to sum and to write than to join."""
    if len(pieces) == 1 and pieces[0].dtype == dtype:
        return np.ascontiguousarray(pieces[0])
    return np.concatenate(pieces, dtype=dtype, casting="same_kind")


def _chunks(arrays: Iterable[np.ndarray]) -> Iterator[memoryview]:
    """Their bytes in order, at most CHUNK at a time."""
    for array in arrays:
        content = _bytes(array)
        for begin in range(0, len(content), CHUNK):
            yield content[begin : begin + CHUNK]


def _write(handle: int, content: memoryview, begin: int) -> None:
    """To `begin` bytes into the file, and on to the disk."""
    done = 0
    while done < len(content):  # a full disk says so at the next call
        done += os.pwrite(handle, content[done:], begin + done)
    # Linux begins to write dirty pages that are not needed, and does not wait for them.
    os.posix_fadvise(handle, begin, done, os.POSIX_FADV_DONTNEED)


def _bytes(array: np.ndarray) -> memoryview:
    """A contiguous array's memory."""
    return array.view(np.uint8).data if array.size else memoryview(b"")


class _Line:
    """Calls in another thread, one after the other, at most a few chunks behind."""

    def __init__(self, ahead: int = 4) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._open: deque[Future[Any]] = deque()
        self._ahead = ahead

    def __enter__(self) -> _Line:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def put(self, call: Any, *args: Any) -> None:
        if len(self._open) >= self._ahead:
            self._open.popleft().result()
        self._open.append(self._pool.submit(call, *args))

    def finish(self) -> None:
        while self._open:
            self._open.popleft().result()
