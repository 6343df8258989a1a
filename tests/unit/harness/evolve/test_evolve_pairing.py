"""Pairing two harnesses' runs."""

from __future__ import annotations

import pytest
from evolve_world import episode
from hypothesis import given
from hypothesis import strategies as st

from harness.evolve.pairing import PairingError, pair

RUN = st.tuples(
    st.sampled_from(["a", "b", "c"]),
    st.integers(0, 3),
    st.sampled_from(["cand", "inc", "other"]),
    st.booleans(),
    st.sampled_from(["completed", "truncated", "infra_error"]),
)
RUNS = st.lists(RUN, unique_by=lambda run: run[:3]).map(
    lambda runs: [
        episode(task, seed, harness, won and how != "infra_error", outcome=how)
        for task, seed, harness, won, how in runs
    ]
)


def test_d_is_the_difference_of_pass_rates_over_the_same_seeds():
    runs = [episode("a", s, "cand", s < 2) for s in range(2)]
    runs += [episode("a", s, "inc", s < 1) for s in range(2)]
    found = pair(runs, "cand", "inc", "select")
    assert [(item.task, item.d, item.repeats) for item in found.tasks] == [("a", 0.5, 2)]
    assert (found.mean_d, found.lost) == (0.5, 0)


def test_an_infrastructure_error_loses_its_pair_and_is_no_failure():
    runs = [
        episode("a", 0, "cand", True),
        episode("a", 0, "inc", True),
        episode("a", 1, "cand", outcome="infra_error"),
        episode("a", 1, "inc", True),
    ]
    found = pair(runs, "cand", "inc", "select")
    assert (found.mean_d, found.lost, found.pairs) == (0.0, 1, 1)


def test_a_run_twice_is_refused_by_name():
    with pytest.raises(PairingError, match="task 'a' seed 0"):
        pair([episode("a", 0, "inc"), episode("a", 0, "inc")], "cand", "inc", "select")
    with pytest.raises(PairingError, match="itself"):
        pair([], "inc", "inc", "select")


@given(RUNS, st.randoms())
def test_pairing_ignores_order_and_strangers_and_is_antisymmetric(runs, shuffle):
    found = pair(runs, "cand", "inc", "select")
    mixed = [run for run in runs if run.harness_id != "other"]
    shuffle.shuffle(mixed)
    assert pair(mixed, "cand", "inc", "select") == found
    back = pair(runs, "inc", "cand", "select")
    assert back.d_of() == {task: -d for task, d in found.d_of().items()}
    assert all(-1 <= d <= 1 for d in found.d_of().values())
    assert found.pairs + found.lost == found.asked
