"""Rows of data sets from the buffer: what is imitated, what is preferred, what never leaves."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollout.buffer import ReplayBuffer
from rollout.export import SCHEMAS, ExportError, export
from rollout.trajectory import Outcome, Segment, Trajectory


def segment(*runs: str) -> Segment:
    """A segment of the letters' codes; runs in capitals were sampled."""
    text = "".join(runs)
    mask = np.array([c.isupper() for c in text])
    return Segment(
        np.array([ord(c) for c in text], np.int32), mask, np.where(mask, -1.0, 0).astype("f4"),
        np.where(mask, 0, -1).astype("i4"), 1.0,
    )  # fmt: skip


def episode(id: str, reward: float, *segments: Segment, **changes: Any) -> Trajectory:
    made = Trajectory(
        id,
        "task",
        0,
        "incumbent",
        "h",
        0,
        0,
        Outcome("completed"),
        reward,
        reward > 0.5,
        1,
        segments,
    )
    return dataclasses.replace(made, **changes)


def buffer_of(root: Path, *episodes: Trajectory) -> ReplayBuffer:
    buffer = ReplayBuffer(root, 1, 100)
    buffer.append(0, "incumbent", episodes)
    return buffer


def spell(ids: Any) -> str:
    return "".join(map(chr, ids))


def test_the_sampled_tokens_of_successful_segments_are_the_labels(tmp_path: Path) -> None:
    buffer = buffer_of(
        tmp_path,
        episode("won", 1.0, segment("ab", "CD", "e", "F"), segment("only read")),
        episode("lost", 0.0, segment("ab", "X")),
        episode("cut", 1.0, segment("ab", "Y"), outcome=Outcome("truncated")),
    )
    (row,) = export(buffer, "sft", decode=spell).rows.to_pylist()
    assert row["text"] == "abCDeF"
    assert row["labels"] == [-100, -100, ord("C"), ord("D"), -100, ord("F")]
    assert (row["id"], row["segment"], row["harness_id"], row["reward"]) == ("won", 0, "h", 1.0)


def test_a_pair_is_the_best_against_the_worst_in_one_context(tmp_path: Path) -> None:
    buffer = buffer_of(
        tmp_path,
        episode("best", 1.0, segment("ab", "CD", "e", "F")),
        episode("middle", 0.4, segment("ab", "CX", "e", "G")),
        episode("worst", 0.0, segment("ab", "CD", "e", "HI")),
        episode("elsewhere", 0.0, segment("zb", "Q")),
        episode("other task", 0.0, segment("ab", "R"), task_id="other"),
    )
    made = export(buffer, "preference", decode=spell)
    assert made.rows.schema == SCHEMAS["preference"]
    # After "ab" best and worst did the same: that is no preference. After "abCDe" they part.
    (row,) = made.rows.to_pylist()
    assert (row["prompt"], row["chosen"], row["rejected"]) == ("abCDe", "F", "HI")
    assert spell(row["prompt_ids"]) == "abCDe"
    assert (row["chosen_id"], row["rejected_id"]) == ("best", "worst")
    assert (row["chosen_reward"], row["rejected_reward"]) == (1.0, 0.0)


def test_without_a_tokenizer_there_are_only_token_columns(tmp_path: Path) -> None:
    buffer = buffer_of(tmp_path, episode("won", 1.0, segment("ab", "C")))
    assert "text" not in export(buffer, "sft").rows.column_names


def test_rounds_and_roles_are_chosen_and_deleted_rounds_are_named(tmp_path: Path) -> None:
    buffer = ReplayBuffer(tmp_path, 1, 100, keep_rounds=2)
    for number in range(3):
        rows = [
            episode(f"{number}-{role}", 1.0, segment("ab", "C"), round=number, role=role)
            for role in ("incumbent", "candidate")
        ]
        buffer.append(number, "incumbent", rows)
    buffer.retain(2)
    made = export(buffer, "sft", roles=["candidate"])
    assert (made.rounds, made.deleted) == ((1, 2), (0,))
    assert made.rows.column("id").to_pylist() == ["1-candidate", "2-candidate"]
    assert export(buffer, "sft", [2]).rounds == (2,)
    with pytest.raises(ExportError, match=r"token data of rounds \[0\] was deleted"):
        export(buffer, "sft", [0])


def test_held_out_episodes_are_refused(tmp_path: Path) -> None:
    buffer = buffer_of(tmp_path, episode("won", 1.0, segment("ab", "C")))
    with pytest.raises(ExportError, match="never exported"):
        export(buffer, "sft", roles=["incumbent", "heldout"])


@pytest.mark.parametrize(
    ("kind", "why"), [("sft", "no episode succeeded"), ("preference", "no two")]
)
def test_nothing_to_export_says_why(tmp_path: Path, kind: Any, why: str) -> None:
    buffer = buffer_of(tmp_path, episode("lost", 0.0, segment("ab", "C")))
    with pytest.raises(ExportError, match=why):
        export(buffer, kind)
