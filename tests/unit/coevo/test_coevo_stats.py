"""Statistics against published numbers and against what must hold for every input."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coevo import stats


@pytest.mark.parametrize(
    ("successes", "n", "lo", "hi"),
    [
        # Newcombe (1998), Statistics in Medicine 17:857, table I, method 3.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_interval_equals_the_published_examples(successes, n, lo, hi):
    interval = stats.wilson(successes, n)
    assert (round(interval.lo, 4), round(interval.hi, 4)) == (lo, hi)


@given(st.integers(0, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_interval_lies_in_the_unit_range_and_holds_its_estimate(counts):
    successes, n = counts
    interval = stats.wilson(successes, n)
    assert 0.0 <= interval.lo <= interval.hi <= 1.0
    mirror = stats.wilson(n - successes, n)
    assert interval.lo == pytest.approx(1 - mirror.hi, abs=1e-12)
    if n:
        assert interval.lo <= interval.estimate <= interval.hi


def test_no_attempts_give_no_estimate_and_the_whole_range():
    assert stats.wilson(0, 0) == stats.Interval(None, 0.0, 1.0)


def test_difference_of_proportions_equals_the_published_examples():
    # Newcombe (1998), Statistics in Medicine 17:873, table II, method 10.
    a = stats.difference(56, 70, 48, 80)
    assert (round(a.lo, 4), round(a.hi, 4)) == (0.0524, 0.3339)
    b = stats.difference(9, 10, 3, 10)
    assert (round(b.lo, 4), round(b.hi, 4)) == (0.1705, 0.8090)
    c = stats.difference(10, 10, 0, 10)
    assert (round(c.lo, 4), round(c.hi, 4)) == (0.6075, 1.0)


def test_pass_at_k_and_pass_hat_k_follow_their_formulas():
    assert stats.pass_at_k(10, 3, 1) == pytest.approx(0.3)
    assert stats.pass_at_k(10, 3, 5) == pytest.approx(1 - 21 / 252)
    assert stats.pass_at_k(4, 4, 2) == 1.0
    assert stats.pass_hat_k(10, 3, 2) == pytest.approx(3 / 45)
    assert stats.pass_hat_k(10, 1, 2) == 0.0
    counts = [(4, 0), (4, 1), (4, 4), (4, 3)]
    assert stats.mean_pass_at_k(counts, 4) == 0.75
    assert stats.mean_pass_hat_k(counts, 4) == 0.25


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=30),
)
def test_flip_rate_is_pass_at_r_minus_pass_hat_r(successes):
    counts = [(5, c) for c in successes]
    gap = stats.mean_pass_at_k(counts, 5) - stats.mean_pass_hat_k(counts, 5)
    assert stats.flip_rate(counts) == pytest.approx(gap)


def test_mcnemar_exact_is_twice_the_binomial_tail():
    assert stats.mcnemar_exact(6, 16) == pytest.approx(0.052478790283, abs=1e-11)
    assert stats.mcnemar_exact(0, 6) == pytest.approx(2 / 64)
    assert stats.mcnemar_exact(0, 0) == 1.0
    assert stats.mcnemar_exact(5, 5) == 1.0
    assert 0 < stats.mcnemar_exact(1900, 2100) < 0.01  # C(4000, 1900) is no float


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_is_a_symmetric_probability(a, b):
    p = stats.mcnemar_exact(a, b)
    n, m = a + b, min(a, b)
    exact = min(1.0, 2 * sum(math.comb(n, k) for k in range(m + 1)) / 2**n) if n else 1.0
    assert p == pytest.approx(exact, rel=1e-9)
    assert p == stats.mcnemar_exact(b, a)


def test_bootstrap_bounds_of_a_binary_difference_are_binomial_quantiles():
    # 30 tasks of 100 gain one, none loses: a resampled mean is Binomial(100, 0.3) / 100, whose
    # 2.5%, 97.5%, 5% and 95% quantiles are 21, 39, 23 and 38.
    a = np.repeat([1.0, 0.0], [30, 70])
    found = stats.paired_bootstrap(a, np.zeros(100), range(100), draws=100_000)
    assert found.mean == pytest.approx(0.30)
    assert (found.lo, found.hi) == (0.21, 0.39)
    assert (found.lo_one_sided, found.hi_one_sided) == (0.23, 0.38)


def test_bootstrap_resamples_tasks_and_not_episodes():
    # Ten repeats of a task say the same thing once.
    once = stats.paired_bootstrap([1.0] * 10 + [0.0] * 10, [0.0] * 20, range(20))
    tasks = [i for i in range(20) for _ in range(10)]
    ten = stats.paired_bootstrap([1.0] * 100 + [0.0] * 100, [0.0] * 200, tasks)
    assert (ten.lo, ten.hi) == (once.lo, once.hi)
    assert (ten.n_tasks, ten.n_pairs) == (20, 200)


@given(
    st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 6)), min_size=1, max_size=60),
    st.randoms(),
)
def test_bootstrap_ignores_the_order_of_pairs_and_mirrors_when_sides_swap(pairs, random):
    a, b, tasks = (list(column) for column in zip(*pairs, strict=True))
    found = stats.paired_bootstrap(a, b, tasks, draws=300)
    shuffled = pairs[:]
    random.shuffle(shuffled)
    a2, b2, tasks2 = (list(column) for column in zip(*shuffled, strict=True))
    assert stats.paired_bootstrap(a2, b2, tasks2, draws=300).lo == pytest.approx(found.lo)
    swapped = stats.paired_bootstrap(b, a, tasks, draws=300)
    assert (swapped.lo, swapped.hi) == (pytest.approx(-found.hi), pytest.approx(-found.lo))
    assert found.lo <= found.hi


def test_chunked_draws_equal_draws_made_at_once(monkeypatch):
    a, b = np.random.default_rng(1).random((2, 40))
    whole = stats.paired_bootstrap(a, b, range(40), draws=500)
    monkeypatch.setattr(stats, "_CHUNK_CELLS", 40 * 7)
    assert stats.paired_bootstrap(a, b, range(40), draws=500) == whole


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: stats.wilson(3, 2), "3 successes of 2 attempts"),
        (lambda: stats.wilson(1, 2, confidence=95), "confidence is 95"),
        (lambda: stats.pass_at_k(4, 2, 5), "k is 5 with 4 attempts"),
        (lambda: stats.mcnemar_exact(-1, 2), "-1 and 2"),
        (lambda: stats.flip_rate([]), "no tasks"),
        (lambda: stats.paired_bootstrap([], [], []), "no pairs"),
        (lambda: stats.paired_bootstrap([1.0], [1.0, 0.0], ["a"]), r"shapes \(1,\) and \(2,\)"),
        (lambda: stats.paired_bootstrap([math.nan], [1.0], ["a"]), "not finite"),
    ],
)
def test_undefined_statistics_are_refused_with_the_numbers(call, says):
    with pytest.raises(stats.StatsError, match=says):
        call()


# --- several run seeds ---


def test_one_seed_gives_what_no_seed_gives():
    a, b = [1, 0, 1, 1, 0, 1], [0, 0, 1, 0, 0, 1]
    tasks = ["x", "x", "y", "y", "z", "z"]
    assert stats.paired_bootstrap(a, b, tasks, [7] * 6) == stats.paired_bootstrap(a, b, tasks)


def test_seeds_that_disagree_widen_the_interval_and_seeds_that_agree_do_not():
    tasks = [t for t in range(40) for _ in range(3)]
    seeds = [0, 1, 2] * 40
    zero = np.zeros(120)
    alike = np.array([1.0 if t % 2 else 0.0 for t in range(40) for _ in range(3)])
    apart = np.array([float(s == 0) for _ in range(40) for s in range(3)])
    over_tasks = stats.paired_bootstrap(alike, zero, tasks)
    over_both = stats.paired_bootstrap(alike, zero, tasks, seeds)
    assert (over_both.lo, over_both.hi) == pytest.approx((over_tasks.lo, over_tasks.hi), abs=0.02)
    # Whole tasks alike, whole seeds apart: the mean of a draw is the share of seed 0 in it.
    found = stats.paired_bootstrap(apart, zero, tasks, seeds)
    assert (found.lo, found.hi) == (0.0, 1.0)
    assert found.se == pytest.approx(math.sqrt(1 / 3 * 2 / 3 / 3), abs=0.01)
    assert found.n_seeds == 3
    fixed = stats.paired_bootstrap(apart, zero, tasks)
    assert (fixed.lo, fixed.hi) == (pytest.approx(1 / 3), pytest.approx(1 / 3))


def test_seeds_without_a_common_task_are_resampled_all_the_same():
    found = stats.paired_bootstrap([1.0, 0.0], [0.0, 0.0], ["a", "b"], [0, 1])
    assert (found.mean, found.lo, found.hi) == (0.5, 0.0, 1.0)


def test_as_many_run_seeds_as_pairs_are_expected():
    with pytest.raises(stats.StatsError, match="2 run seeds for 1 pairs"):
        stats.paired_bootstrap([1.0], [0.0], ["a"], [0, 1])


def test_a_rate_of_repeated_tasks_is_as_sure_as_its_tasks():
    tasks = [t for t in range(50) for _ in range(4)]
    same = [float(t < 20) for t in tasks]  # a task's four episodes agree: 50 observations
    found = stats.clustered_rate(same, tasks, [0] * 200)
    expected = stats.wilson(20, 50)
    assert found.estimate == 0.4
    assert (found.lo, found.hi) == pytest.approx((expected.lo, expected.hi), abs=0.01)
    assert stats.clustered_rate([1.0] * 200, tasks, [0] * 200).lo == stats.wilson(50, 50).lo
    alone = stats.clustered_rate([1.0, 0.0, 1.0], ["a", "b", "c"], [0, 0, 0])
    assert alone == stats.wilson(2, 3)


@pytest.mark.parametrize(
    ("seed_sd", "task_sd", "least"), [(0.0, 0.0, 0.95), (0.0, 0.3, 0.9), (0.08, 0.1, 0.82)]
)
def test_the_interval_over_three_seeds_covers_the_true_difference(seed_sd, task_sd, least):
    # Differences in probability of 60 tasks, by task and by seed; the full table is a benchmark.
    rng, hits, runs = np.random.default_rng(0), 0, 100
    tasks = [t for t in range(60) for _ in range(3)]
    seeds = [0, 1, 2] * 60
    for _ in range(runs):
        effect = 0.1 + rng.normal(0, task_sd, (60, 1)) + rng.normal(0, seed_sd, (1, 3))
        a = rng.random((60, 3)) < np.clip(0.4 + effect, 0, 1)
        b = rng.random((60, 3)) < 0.4
        found = stats.paired_bootstrap(a.ravel(), b.ravel(), tasks, seeds, draws=400)
        hits += found.lo <= 0.1 <= found.hi
    assert hits / runs >= least
