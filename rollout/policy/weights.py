"""Fingerprints of safetensors files: what the trainer wrote is what the engine read."""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO


class WeightsError(ValueError):
    """A weights file is missing, is not a whole safetensors file, or lacks tensors."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where a tensor lies: `dtype` as safetensors names it (F32, BF16, …), bytes [start, end)."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_index(path: str | Path) -> dict[str, TensorEntry]:
    """Names, types, shapes and byte ranges (from the file's start), without reading tensor data.

    Raises WeightsError where the file is missing, cut short or no safetensors file.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            return _index(file, path)
    except OSError as error:
        raise WeightsError(
            f"weights file {str(path)!r} cannot be read: {error.strerror}"
        ) from error


def fingerprint_file(path: str | Path) -> str:
    """sha256 (hex) over the sorted (name, dtype, shape, bytes) of a safetensors file's tensors.

    Independent of the order of tensors in the file and of its metadata. Raises WeightsError.
    """
    return fingerprint_files([path])


def fingerprint_files(paths: Iterable[str | Path]) -> str:
    """As `fingerprint_file`, over a checkpoint in several files; a name in two files is refused."""
    where: dict[str, tuple[Path, TensorEntry]] = {}
    for path in map(Path, paths):
        for name, entry in read_index(path).items():
            if name in where:
                raise WeightsError(f"tensor {name!r} is in {where[name][0]} and in {path}")
            where[name] = (path, entry)
    maps: dict[Path, mmap.mmap] = {}
    digest = hashlib.sha256()
    try:
        for name in sorted(where):
            path, entry = where[name]
            if path not in maps:
                with path.open("rb") as file:
                    maps[path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            digest.update(json.dumps([name, entry.dtype, list(entry.shape)]).encode() + b"\n")
            with memoryview(maps[path]) as view:
                digest.update(view[entry.start : entry.end])
    finally:
        for mapped in maps.values():
            mapped.close()
    return digest.hexdigest()


INDEX = "model.safetensors.index.json"


def checkpoint_files(directory: str | Path) -> list[Path]:
    """The safetensors files of a model directory, sorted: those that its index names, where it is
    sharded; model.safetensors, where there is one; else all. Raises WeightsError where one lacks."""
    root = Path(directory)
    if (root / INDEX).is_file():
        names = set(_weight_map(root / INDEX).values())
        files = sorted(root / name for name in names)
        if lacking := [file.name for file in files if not file.is_file()]:
            raise WeightsError(
                f"{str(root)!r} lacks {len(lacking)} of the {len(files)} files that {INDEX} names, "
                f"e.g. {lacking[0]}; download them"
            )
        return files
    if (root / "model.safetensors").is_file():
        return [root / "model.safetensors"]
    files = sorted(root.glob("*.safetensors"))
    if not files:
        raise WeightsError(
            f"no *.safetensors file in {str(directory)!r}; save the model with save_pretrained"
        )
    return files


def _weight_map(index: Path) -> dict[str, str]:
    try:
        found: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WeightsError(f"{str(index)!r} is no index of a checkpoint: {error!r}") from error
    return found


def weight_files(path: str | Path) -> list[Path]:
    """Of published weights: one safetensors file, or a model directory. Raises WeightsError."""
    return checkpoint_files(path) if Path(path).is_dir() else [Path(path)]


def read_indices(path: str | Path) -> dict[str, TensorEntry]:
    """As `read_index`, over a file or all files of a model directory."""
    return {name: entry for file in weight_files(path) for name, entry in read_index(file).items()}


def is_model(path: str | Path) -> bool:
    """Whether `path` is a model directory; one of adapters has no config.json."""
    return (Path(path) / "config.json").is_file()


def adapter_rank(directory: str | Path) -> int:
    """The rank of a peft adapter directory. Raises WeightsError where its config is none."""
    path = Path(directory) / "adapter_config.json"
    try:
        rank = json.loads(path.read_text(encoding="utf-8"))["r"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WeightsError(f"{str(path)!r} is no adapter configuration: {error!r}") from error
    return int(rank)


def check_names(expected: Mapping[str, TensorEntry], found: Mapping[str, TensorEntry]) -> None:
    """Refuse a file that lacks or reshapes one of the `expected` tensors (WeightsError).

    Loading such a file would leave old weights in place without a word.
    """
    missing = sorted(set(expected) - set(found))
    if missing:
        raise WeightsError(
            f"weights file lacks {len(missing)} of {len(expected)} tensors, e.g. {missing[0]!r}; "
            "publish every parameter"
        )
    for name, entry in expected.items():
        if found[name].shape != entry.shape:
            raise WeightsError(
                f"tensor {name!r} has shape {list(found[name].shape)}, the served model has "
                f"{list(entry.shape)}"
            )


def _index(file: BinaryIO, path: Path) -> dict[str, TensorEntry]:
    """Parse the header: 8 bytes little-endian length, JSON, then the tensors' bytes."""
    size = path.stat().st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > size - 8:
        raise WeightsError(f"weights file {str(path)!r} is cut short ({size} bytes)")
    try:
        header = json.loads(file.read(length))
    except ValueError as error:
        raise WeightsError(f"{str(path)!r} is not a safetensors file: {error}") from error
    entries: dict[str, TensorEntry] = {}
    for name, item in header.items():
        if name == "__metadata__":
            continue
        start, end = (8 + length + offset for offset in item["data_offsets"])
        if end > size:
            raise WeightsError(
                f"weights file {str(path)!r} is cut short: tensor {name!r} ends at byte {end} of {size}"
            )
        entries[name] = TensorEntry(item["dtype"], tuple(item["shape"]), start, end)
    return entries
