"""Micro-batches within a token budget, over ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_trainer import random_batch

from trainer.batch import TrainBatch
from trainer.packing import Layout, collate, input_lengths, plan_micro_batches, split_steps


def test_nothing_after_the_last_sampled_token_is_run() -> None:
    batch = TrainBatch(
        token_ids=np.arange(9, dtype=np.int32),
        loss_mask=np.array([0, 0, 1, 0, 0, 0, 0, 0, 0], dtype=bool),
        behaviour=np.zeros(9, dtype=np.float32),
        offsets=np.array([0, 5, 9]),
        trajectory=np.array([0, 0]),
        group=np.array([0]),
        advantage=np.ones(1, dtype=np.float32),
        temperature=1.0,
    )
    assert input_lengths(batch).tolist() == [2, 0]


def test_packed_rows_restart_positions_and_know_which_row_predicts_what() -> None:
    batch = TrainBatch(
        token_ids=np.array([10, 11, 12, 20, 21, 22, 23], dtype=np.int32),
        loss_mask=np.array([0, 0, 1, 0, 1, 0, 1], dtype=bool),
        behaviour=np.zeros(7, dtype=np.float32),
        offsets=np.array([0, 3, 7]),
        trajectory=np.array([0, 1]),
        group=np.array([0, 0]),
        advantage=np.ones(2, dtype=np.float32),
        temperature=1.0,
    )
    lengths = input_lengths(batch)
    packed = collate(batch, lengths, [0, 1], "packed")
    assert packed.input_ids.tolist() == [[10, 11, 20, 21, 22]]
    assert packed.position_ids is not None
    assert packed.position_ids.tolist() == [[0, 1, 0, 1, 2]]
    assert packed.rows.tolist() == [1, 2, 4]
    padded = collate(batch, lengths, [0, 1], "padded")
    assert padded.input_ids.tolist() == [[10, 11, 0], [20, 21, 22]]
    assert padded.rows.tolist() == [1, 3, 5]
    for micro in (packed, padded):
        assert micro.labels.tolist() == [12, 21, 23]
        assert micro.token.tolist() == [2, 4, 6]
        assert micro.segment.tolist() == [0, 1, 1]


plans = st.tuples(
    st.lists(st.integers(0, 90), min_size=1, max_size=60),
    st.integers(40, 300),
    st.integers(1, 4),
    st.sampled_from(["packed", "padded"]),
)


@given(plans)
@settings(max_examples=150, deadline=None)
def test_every_segment_with_sampled_tokens_is_in_exactly_one_micro_batch(
    case: tuple[list[int], int, int, Layout],
) -> None:
    sizes, budget, ranks, layout = case
    lengths = np.array(sizes)
    plan = plan_micro_batches(
        lengths, np.arange(len(sizes)), budget=budget, ranks=ranks, layout=layout
    )
    seen: list[int] = []
    for part, dummies in zip(plan.ranks, plan.dummies, strict=True):
        assert len(part) == plan.steps
        for micro in part[: len(part) - dummies]:
            seen.extend(micro.tolist())
            size = lengths[micro].sum() if layout == "packed" else len(micro) * lengths[micro].max()
            assert size <= budget or len(micro) == 1
    assert sorted(seen) == np.flatnonzero(lengths > 0).tolist()
    assert plan.dropped == int((lengths == 0).sum())
    assert plan.tokens <= plan.padded_tokens or not seen


def test_a_plan_is_the_same_on_every_rank() -> None:
    lengths = np.random.default_rng(0).integers(1, 100, 200)
    first, second = (
        plan_micro_batches(lengths, np.arange(200), budget=512, ranks=3, layout="packed")
        for _ in range(2)
    )
    for a, b in zip(first.ranks, second.ranks, strict=True):
        assert [x.tolist() for x in a] == [x.tolist() for x in b]


def test_ranks_get_about_the_same_work() -> None:
    lengths = np.random.default_rng(1).integers(1, 400, 500)
    plan = plan_micro_batches(lengths, np.arange(500), budget=2048, ranks=2, layout="padded")
    work = [sum(len(m) * int(lengths[m].max()) for m in p) for p in plan.ranks]
    assert max(work) < 1.1 * min(work)


def test_a_small_step_is_cut_so_that_no_rank_idles() -> None:
    plan = plan_micro_batches(np.full(8, 10), np.arange(8), budget=10_000, ranks=4, layout="padded")
    assert plan.dummies == (0, 0, 0, 0)


def test_padding_of_sorted_rows_is_small() -> None:
    lengths = np.random.default_rng(2).integers(60, 140, 2000)
    plan = plan_micro_batches(lengths, np.arange(2000), budget=4096, ranks=1, layout="padded")
    assert plan.tokens / plan.padded_tokens > 0.97


def test_minibatches_keep_task_groups_whole_and_cover_the_buffer_each_epoch() -> None:
    batch = random_batch(trajectories=12)
    parts = split_steps(batch, steps=4, minibatches=2, seed=0, first_step=0)
    for epoch in (parts[:2], parts[2:]):
        assert (epoch[0] ^ epoch[1]).all()
    for part in parts:
        for group in np.unique(batch.group):
            assert len(np.unique(part[batch.group == group])) == 1


@pytest.mark.parametrize("first_step", [0, 7])
def test_minibatches_depend_on_seed_and_step_only(first_step: int) -> None:
    batch = random_batch(trajectories=12)
    a = split_steps(batch, 4, 2, seed=3, first_step=first_step)
    b = split_steps(batch, 4, 2, seed=3, first_step=first_step)
    assert all((x == y).all() for x, y in zip(a, b, strict=True))
