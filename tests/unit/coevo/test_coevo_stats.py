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
