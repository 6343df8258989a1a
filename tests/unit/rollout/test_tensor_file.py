"""Tensor files: the library's format, both ways, and every damage found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

import rollout.tensor_file
from rollout.tensor_file import DTYPES, TensorFileError, read_tensors, write_tensors

ARRAYS = {
    "mask": np.array([True, False, True]),
    "ids": np.arange(5, dtype=np.int32),
    "logprobs": np.array([-0.5, np.nan, -np.inf], np.float32),
    "offsets": np.array([0, 1 << 40], np.int64),
    "empty": np.zeros(0, np.float64),
}


def same(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> bool:
    return left.keys() == right.keys() and all(
        left[k].dtype == right[k].dtype and left[k].tobytes() == right[k].tobytes() for k in left
    )


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 9), max_size=4)),
        min_size=1, max_size=4,
    ),
    st.integers(1, 64),
)  # fmt: skip
def test_the_library_reads_what_is_written_in_pieces(
    tmp_path_factory: pytest.TempPathFactory, shapes: list[tuple[str, list[int]]], chunk: int
) -> None:
    rng = np.random.default_rng(0)
    pieces = {
        f"t{k}": [rng.integers(0, 2, n).astype(DTYPES[kind]) for n in (sizes or [0])]
        for k, (kind, sizes) in enumerate(shapes)
    }
    path = tmp_path_factory.mktemp("t") / "x.safetensors"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rollout.tensor_file, "CHUNK", chunk)
        described = write_tensors(path, pieces)
    whole = {name: np.concatenate(arrays) for name, arrays in pieces.items()}
    assert same(load_file(path), whole)
    assert same(read_tensors(path, described), whole)
    assert described["bytes"] == path.stat().st_size


def test_what_the_library_wrote_is_read_with_its_sha256_alone(tmp_path: Path) -> None:
    import hashlib

    path = tmp_path / "x.safetensors"
    save_file(ARRAYS, path)
    data = path.read_bytes()
    described = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    assert same(read_tensors(path, described), ARRAYS)
    with pytest.raises(TensorFileError, match="sha256"):
        read_tensors(path, {**described, "sha256": "0" * 64})


def test_tensors_are_read_into_the_place_they_belong(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    described = write_tensors(path, {"ids": [ARRAYS["ids"]]})
    whole = np.zeros(9, np.int32)
    read_tensors(path, described, {"ids": whole[2:7]})
    assert whole.tolist() == [0, 0, 0, 1, 2, 3, 4, 0, 0]
    with pytest.raises(TensorFileError, match=r"tensor ids is int32 \[5\], expected int32 \[9\]"):
        read_tensors(path, described, {"ids": whole})


def test_every_flipped_byte_and_every_cut_is_found(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    described = write_tensors(path, {name: [a] for name, a in ARRAYS.items()})
    data = path.read_bytes()
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1
        path.write_bytes(changed)
        with pytest.raises(TensorFileError):
            read_tensors(path, described)
    for length in range(0, len(data), 7):
        path.write_bytes(data[:length])
        with pytest.raises(TensorFileError, match="bytes, expected"):
            read_tensors(path, described)


def test_a_full_disk_is_raised_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        write_tensors(Path("/dev/full"), {"ids": [ARRAYS["ids"]]})
