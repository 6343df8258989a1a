"""Group-relative advantages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.advantage import (
    ESTIMATORS,
    advantages,
    centred,
    estimator,
    leave_one_out,
    pooled,
    shrinkage,
    within_harness,
)
from trainer.errors import BatchError

ONE_TASK = ["t"] * 4
HARNESSES = ["a", "a", "b", "b"]
REWARDS = np.array([1.0, 0.0, 1.0, 1.0])


def test_pooled_compares_all_harnesses_of_a_task() -> None:
    # μ = 3/4, σ = √(3/16)
    s = np.sqrt(3) / 4
    expected = [0.25 / s, -0.75 / s, 0.25 / s, 0.25 / s]
    np.testing.assert_allclose(pooled(REWARDS, ONE_TASK, HARNESSES), expected, rtol=1e-12)


def test_within_harness_compares_a_harness_with_itself() -> None:
    np.testing.assert_allclose(within_harness(REWARDS, ONE_TASK, HARNESSES), [1, -1, 0, 0])


def test_leave_one_out_is_the_reward_minus_the_mean_of_the_others() -> None:
    third = 1 / 3
    np.testing.assert_allclose(
        leave_one_out(REWARDS, ONE_TASK, HARNESSES), [third, -1.0, third, third]
    )


def test_centred_has_no_scale() -> None:
    np.testing.assert_allclose(centred(REWARDS, ONE_TASK, HARNESSES), [0.25, -0.75, 0.25, 0.25])


def test_shrinkage_weighs_the_own_harness_by_its_runs() -> None:
    # λ = 1/5: harness a has mean .5 and variance .25, b mean 1 and variance 0; pooled .75, 3/16.
    mean_a, mean_b = 0.2 * 0.5 + 0.8 * 0.75, 0.2 * 1.0 + 0.8 * 0.75
    sd_a, sd_b = np.sqrt(0.2 * 0.25 + 0.8 * 3 / 16), np.sqrt(0.8 * 3 / 16)
    expected = [(1 - mean_a) / sd_a, -mean_a / sd_a, (1 - mean_b) / sd_b, (1 - mean_b) / sd_b]
    np.testing.assert_allclose(shrinkage(REWARDS, ONE_TASK, HARNESSES), expected, rtol=1e-12)


def test_shrinkage_of_single_runs_is_pooled() -> None:
    each = ["a", "b", "c", "d"]
    np.testing.assert_allclose(
        shrinkage(REWARDS, ONE_TASK, each), pooled(REWARDS, ONE_TASK, each), rtol=1e-12
    )


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize(
    "rewards", [[0.7], [0.1 + 0.2, 0.3], [0.0, 0.0, 0.0], [1.0, 1.0], [1e6 + 1e-5, 1e6]]
)
def test_a_group_without_signal_gets_exactly_zero(name: str, rewards: list[float]) -> None:
    n = len(rewards)
    out = estimator(name)(np.array(rewards), ["t"] * n, [f"h{i % 2}" for i in range(n)])
    assert out.tolist() == [0.0] * n


def test_a_small_spread_is_not_blown_up_to_one() -> None:
    out = pooled(np.array([0.5, 0.5 + 1e-5]), ["t", "t"], ["a", "a"])
    np.testing.assert_allclose(out, [-0.005, 0.005], rtol=1e-6)


def test_infrastructure_and_harness_errors_leave_the_group_before_its_mean() -> None:
    report = advantages(
        "centred",
        np.array([1.0, 0.0, 99.0, np.nan]),
        ["t"] * 4,
        ["a"] * 4,
        np.array([True, True, False, False]),
    )
    assert report.advantages.tolist() == [0.5, -0.5, 0.0, 0.0]
    assert (report.groups, report.groups_with_signal) == (1, 1)


def test_the_report_splits_reward_variance_between_and_within_harnesses() -> None:
    report = advantages("pooled", REWARDS, ONE_TASK, HARNESSES, np.ones(4, bool))
    assert report.between == pytest.approx(1 / 16)
    assert report.within == pytest.approx(1 / 8)
    assert report.between + report.within == pytest.approx(np.var(REWARDS))


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(BatchError, match="'poled' is unknown; did you mean 'pooled'"):
        estimator("poled")


def test_a_reward_that_is_not_finite_is_named() -> None:
    with pytest.raises(BatchError, match="reward 1 of group 't'"):
        pooled(np.array([1.0, np.inf]), ["t", "t"], ["a", "a"])


rewards_and_keys = st.lists(
    st.tuples(st.floats(-10, 10, allow_nan=False), st.sampled_from("xyz"), st.sampled_from("ab")),
    min_size=1,
    max_size=30,
)


@given(rewards_and_keys, st.sampled_from(["pooled", "within_harness", "centred", "leave_one_out"]))
@settings(max_examples=60, deadline=None)
def test_advantages_of_a_group_sum_to_zero(rows: list[tuple[float, str, str]], name: str) -> None:
    r, g, h = (list(c) for c in zip(*rows, strict=True))
    out = estimator(name)(np.array(r), g, h)
    for key in set(g):
        assert abs(out[np.array(g) == key].sum()) < 1e-6


@given(rewards_and_keys, st.sampled_from(list(ESTIMATORS)), st.randoms())
@settings(max_examples=60, deadline=None)
def test_the_order_of_trajectories_does_not_matter(rows, name, random) -> None:  # type: ignore[no-untyped-def]
    order = list(range(len(rows)))
    random.shuffle(order)
    r, g, h = (np.array(c) for c in zip(*rows, strict=True))
    direct = estimator(name)(r, g, h)
    shuffled = estimator(name)(r[order], g[order], h[order])
    np.testing.assert_allclose(shuffled, direct[order], atol=1e-8)
