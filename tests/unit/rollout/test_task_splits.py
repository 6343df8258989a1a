"""Splits: by hash where an environment has none, sealed where they are measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.events import TaskView
from rollout.task import (
    SEALED,
    SPLITS,
    SealedRead,
    SealedSplitError,
    SealKey,
    SplitError,
    Task,
    TaskSplits,
    assign_split,
    split_ids,
)

names = st.text(min_size=1, max_size=12)
id_sets = st.sets(names, max_size=60)


def task(split, number):
    return Task(f"{split}-{number}", "toy", split, TaskView(f"do {number}", "toy"))


def splits(reads):
    return TaskSplits(lambda split: [task(split, i) for i in range(3)], reads.append)


# --- by hash ---


@given(ids=id_sets, seed=st.integers(0, 99), data=st.data())
def test_a_split_depends_on_the_id_and_the_seed_only(ids, seed, data):
    order = data.draw(st.permutations(sorted(ids)))
    found = split_ids(order, seed=seed)
    assert found == split_ids(sorted(ids), seed=seed)
    assert sorted(i for part in found.values() for i in part) == sorted(ids)  # disjoint, complete
    assert all(assign_split(i, seed=seed) == name for name, part in found.items() for i in part)


@given(ids=id_sets, more=id_sets, seed=st.integers(0, 99))
def test_further_tasks_move_none_of_the_old_ones(ids, more, seed):
    before, after = split_ids(ids, seed=seed), split_ids(ids | more, seed=seed)
    assert all(set(before[name]) <= set(after[name]) for name in before)


@given(ids=id_sets, seed=st.integers(0, 99))
def test_a_group_is_wholly_out_of_distribution_or_not_at_all(ids, seed):
    groups = {i: i[:1] for i in ids}
    found = split_ids(ids, {"evolve": 0.5, "heldout": 0.2, "ood": 0.3}, seed, groups)
    inside = {groups[i] for name in ("evolve", "heldout") for i in found[name]}
    assert inside.isdisjoint({groups[i] for i in found["ood"]})


def test_the_shares_are_met_and_the_assignment_is_golden():
    ids = [f"task-{i}" for i in range(4000)]
    found = split_ids(ids)
    assert {name: len(part) for name, part in found.items()} == {
        "evolve": 2387,
        "heldout": 1016,
        "ood": 597,
    }
    assert [assign_split(f"task-{i}") for i in range(8)] == ["evolve"] * 4 + ["ood", "evolve"] * 2
    assert split_ids(ids, seed=1) != found


def test_a_share_of_all_takes_all_and_a_share_of_none_nothing():
    ids = [f"task-{i}" for i in range(200)]
    groups = dict.fromkeys(ids, "one")
    assert split_ids(ids, {"evolve": 1.0})["evolve"] == tuple(sorted(ids))
    assert split_ids(ids, {"ood": 1.0}, groups=groups)["ood"] == tuple(sorted(ids))
    assert split_ids(ids, {"evolve": 0.5, "heldout": 0.5, "ood": 0.0})["ood"] == ()


@pytest.mark.parametrize(
    "shares", [{"evolve": 0.5}, {"evolve": 1.5, "ood": -0.5}, {"evolve": 0.5, "test": 0.5}, {}]
)
def test_shares_that_are_no_division_are_refused(shares):
    with pytest.raises(SplitError, match="sum to 1, of evolve, valid_seen, heldout, ood"):
        assign_split("a", shares)


def test_ids_twice_and_tasks_without_a_group_are_named():
    with pytest.raises(SplitError, match="'a' stands there twice"):
        split_ids(["a", "b", "a"])
    with pytest.raises(SplitError, match="'b' has no group"):
        split_ids(["a", "b"], groups={"a": "x"})


# --- sealed ---


def test_what_is_measured_cannot_be_read_without_the_key():
    reads: list[SealedRead] = []
    source = splits(reads)
    assert [t.id for t in source.tasks("evolve")] == ["evolve-0", "evolve-1", "evolve-2"]
    for split in sorted(SEALED):
        with pytest.raises(SealedSplitError, match=f"split '{split}' is sealed"):
            source.tasks(split)
        with pytest.raises(SealedSplitError, match="with a key that is not this environment's"):
            source.sealed(split, 1, SealKey(), "the critic", {})
    source.key()
    with pytest.raises(SealedSplitError, match="with a key that is not"):
        source.sealed("heldout", 1, splits([]).key(), "the gate", {})
    with pytest.raises(SealedSplitError, match="handed out already"):
        source.key()
    assert reads == []
    assert set(SPLITS) - SEALED == {"evolve"}


def test_a_read_under_the_key_is_told_with_its_reader_and_size():
    reads: list[SealedRead] = []
    source = splits(reads)
    key = source.key()
    found = source.sealed("heldout", 2, key, "evaluator", {"round": 3})
    assert [t.id for t in found] == ["heldout-0", "heldout-1"]
    again = source.sealed("heldout", 2, key, "evaluator", {"round": 4})
    assert again == found
    assert [(r.split, r.n, r.reader, r.about["round"]) for r in reads] == [
        ("heldout", 2, "evaluator", 3),
        ("heldout", 2, "evaluator", 4),
    ]
    assert reads[0].tasks == reads[1].tasks
    with pytest.raises(SplitError, match="asks for 4 tasks of split 'ood', which has 3"):
        source.sealed("ood", 4, key, "evaluator", {})
    assert source.size("ood") == 3
    assert len(reads) == 2
