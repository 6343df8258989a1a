"""Checkpoint directories: sealed whole, and damage is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainer.checkpoint import MANIFEST, layout_of, seal, staging, verify
from trainer.config import LoRAConfig, TrainerConfig
from trainer.errors import CheckpointError

LAYOUT = layout_of(TrainerConfig())


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    target = tmp_path / "0003"
    beside = staging(target)
    (beside / "state").mkdir()
    (beside / "state" / "weights.pt").write_bytes(bytes(range(200)))
    (beside / "state" / "optimiser.pt").write_bytes(b"moments")
    seal(beside, target, LAYOUT, step=5)
    return target


def test_a_sealed_checkpoint_verifies(sealed: Path) -> None:
    manifest = verify(sealed, LAYOUT)
    assert manifest["step"] == 5
    assert sorted(manifest["files"]) == ["state/optimiser.pt", "state/weights.pt"]
    assert [p.name for p in sealed.parent.iterdir()] == ["0003"]


def test_one_flipped_bit_is_named(sealed: Path) -> None:
    path = sealed / "state" / "weights.pt"
    data = bytearray(path.read_bytes())
    data[77] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match=r"state/weights\.pt is damaged"):
        verify(sealed, LAYOUT)


def test_a_file_cut_short_a_missing_and_an_added_one_are_named(sealed: Path) -> None:
    path = sealed / "state" / "optimiser.pt"
    path.write_bytes(b"mom")
    with pytest.raises(CheckpointError, match=r"optimiser\.pt has 3 bytes, 7 were written"):
        verify(sealed)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"optimiser\.pt is missing"):
        verify(sealed)
    path.write_bytes(b"moments")
    (sealed / "stray").write_text("x")
    with pytest.raises(CheckpointError, match="stray is not in the manifest"):
        verify(sealed)


def test_a_directory_that_was_never_sealed_is_no_checkpoint(sealed: Path) -> None:
    (sealed / MANIFEST).unlink()
    with pytest.raises(CheckpointError, match="never sealed"):
        verify(sealed)


def test_a_damaged_manifest_is_named(sealed: Path) -> None:
    (sealed / MANIFEST).write_text("{")
    with pytest.raises(CheckpointError, match=r"MANIFEST\.json is damaged"):
        verify(sealed)
    (sealed / MANIFEST).write_text(json.dumps({"schema": 99, "files": {}, "layout": {}}))
    with pytest.raises(CheckpointError, match="schema 99"):
        verify(sealed)


def test_another_layout_is_refused_with_both_values(sealed: Path) -> None:
    other = layout_of(TrainerConfig(zero_stage=2))
    with pytest.raises(CheckpointError, match="zero_stage 0 and is loaded with 2"):
        verify(sealed, other)
    adapter = layout_of(TrainerConfig(lora=LoRAConfig(rank=4)))
    with pytest.raises(CheckpointError, match=r"lora None and is loaded with .*'rank': 4"):
        verify(sealed, adapter)


def test_another_number_of_ranks_is_taken(sealed: Path) -> None:
    verify(sealed, layout_of(TrainerConfig(world_size=2)))


def test_a_kill_before_sealing_leaves_the_earlier_checkpoint(sealed: Path) -> None:
    beside = staging(sealed)
    (beside / "state").mkdir()
    (beside / "state" / "weights.pt").write_bytes(b"half")
    verify(sealed, LAYOUT)
    again = staging(sealed)
    assert list(again.iterdir()) == []


def test_sealing_again_replaces_the_checkpoint(sealed: Path) -> None:
    beside = staging(sealed)
    (beside / "new.pt").write_bytes(b"new")
    seal(beside, sealed, LAYOUT, step=9)
    assert list(verify(sealed)["files"]) == ["new.pt"]
