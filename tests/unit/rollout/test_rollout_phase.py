"""Outcomes of a phase and its length bias, by hand."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.phase import length_bias, phase_stats
from rollout.trajectory import Cost, Outcome, Trajectory


def test_the_bias_is_the_mean_of_the_finished_over_the_mean_of_all() -> None:
    # Mean 4; short ones first: after a quarter 1, after half 2, after three quarters 3.
    assert length_bias([7, 1, 5, 3], [1, 3, 5, 7]) == {0.25: 0.25, 0.5: 0.5, 0.75: 0.75, 1.0: 1.0}
    # Any order in which lengths are balanced has none.
    assert length_bias([2, 2, 2, 2], [2, 2, 2, 2]) == {0.25: 1.0, 0.5: 1.0, 0.75: 1.0, 1.0: 1.0}
    # A long one was lost: even the whole phase is biased.
    assert length_bias([1, 1, 10], [1, 1])[1.0] == pytest.approx(1 / 4)
    assert length_bias([], []) == {}
    assert length_bias([0, 0], [0, 0]) == {}


@given(st.lists(st.integers(1, 100), min_size=1))
def test_sorted_by_length_it_rises_to_one(lengths: list[int]) -> None:
    bias = list(length_bias(lengths, sorted(lengths)).values())
    assert bias == sorted(bias)
    assert bias[-1] == pytest.approx(1.0)


def test_outcome_classes_are_counted_apart() -> None:
    base = Trajectory(
        "a", "t", 0, "incumbent", "h", 0, 0, Outcome("completed"), 1.0, True, 3, (), Cost(9, 4)
    )
    lost = dataclasses.replace(base, id="b", outcome=Outcome("infra_error", "gone"), cost=Cost())
    cut = dataclasses.replace(base, id="c", outcome=Outcome("truncated"), cost=Cost(9, 8))
    stats = phase_stats([base, lost, cut], [base, cut])
    assert stats.outcomes == {"completed": 1, "infra_error": 1, "truncated": 1}
    assert stats.length_bias == {0.25: 1.0, 0.5: 1.0, 0.75: 1.5, 1.0: 1.5}
