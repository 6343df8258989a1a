"""Statistics of success rates: intervals, pass@k, paired differences (pure, numpy only).

Every rate here is a share in 0–1. Sources: Wilson (1927); Newcombe (1998) for the difference of two
independent proportions, method 10; Chen et al. (2021) for pass@k; Yao et al. (2024) for pass^k;
McNemar (1947), exact form; Efron (1979) for the percentile bootstrap, resampled over tasks because
the episodes of one task are not independent; Owen (2007, the pigeonhole bootstrap) where run seeds are
resampled as well; Kish (1965) for the effective sample size.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

_CHUNK_CELLS = 2_000_000
"""Task indices drawn at once (draws × tasks): 16 MB of int64, whatever the number of tasks."""


class StatsError(ValueError):
    """A statistic was asked of numbers for which it is not defined."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A rate or a difference with its confidence limits. `estimate` is None when n is 0."""

    estimate: float | None
    lo: float
    hi: float


@dataclass(frozen=True, slots=True)
class PairedBootstrap:
    """Mean paired difference with percentile bounds over resampled tasks (and run seeds).

    mean: over pairs, in the unit of the values. lo, hi: two-sided bounds at `confidence`.
    lo_one_sided, hi_one_sided: the bound that holds alone at `confidence` (5% in one tail for .95).
    n_tasks: resampling units. n_pairs: pairs in them. n_seeds: resampled too where more than one.
    se: standard deviation of the draws.
    """

    mean: float
    lo: float
    hi: float
    lo_one_sided: float
    hi_one_sided: float
    n_tasks: int
    n_pairs: int
    confidence: float
    n_seeds: int = 1
    se: float = 0.0


def _z(confidence: float) -> float:
    if not 0.0 < confidence < 1.0:
        raise StatsError(
            f"confidence is {confidence}; expected a share between 0 and 1, such as 0.95"
        )
    return NormalDist().inv_cdf(0.5 + confidence / 2.0)


def _counts(successes: float, n: float) -> None:
    if n < 0 or not 0 <= successes <= n:
        raise StatsError(
            f"{successes} successes of {n} attempts; expected 0 ≤ successes ≤ attempts"
        )


def wilson(successes: float, n: float, confidence: float = 0.95) -> Interval:
    """Wilson score interval of a proportion; an effective n need be no whole number. n = 0 gives
    [0, 1] and no estimate."""
    _counts(successes, n)
    z = _z(confidence)
    if n == 0:
        return Interval(None, 0.0, 1.0)
    p = successes / n
    z2n = z * z / n
    centre = (p + z2n / 2.0) / (1.0 + z2n)
    half = z / (1.0 + z2n) * math.sqrt(p * (1.0 - p) / n + z2n / (4.0 * n))
    # Exact at the edges, where rounding would leave 1e-17 instead of 0.
    lo = 0.0 if successes == 0 else max(0.0, centre - half)
    hi = 1.0 if successes == n else min(1.0, centre + half)
    return Interval(p, lo, hi)


def difference(
    successes_a: int, n_a: int, successes_b: int, n_b: int, confidence: float = 0.95
) -> Interval:
    """Interval of p_a − p_b for independent samples (Newcombe 1998, method 10: hybrid score)."""
    a, b = wilson(successes_a, n_a, confidence), wilson(successes_b, n_b, confidence)
    if a.estimate is None or b.estimate is None:
        return Interval(None, -1.0, 1.0)
    d = a.estimate - b.estimate
    lo = d - math.hypot(a.estimate - a.lo, b.hi - b.estimate)
    hi = d + math.hypot(a.hi - a.estimate, b.estimate - b.lo)
    return Interval(d, max(-1.0, lo), min(1.0, hi))


def _k(n: int, k: int) -> None:
    if not 1 <= k <= n:
        raise StatsError(f"k is {k} with {n} attempts a task; expected 1 ≤ k ≤ {n}")


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that at least one of k attempts passes: 1 − C(n−c, k)/C(n, k), unbiased."""
    _counts(c, n)
    _k(n, k)
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """Chance that all of k attempts pass (pass^k): C(c, k)/C(n, k), unbiased."""
    _counts(c, n)
    _k(n, k)
    return math.comb(c, k) / math.comb(n, k)


def mean_pass_at_k(counts: Iterable[tuple[int, int]], k: int) -> float:
    """pass@k averaged over tasks given as (attempts, successes)."""
    return _mean([pass_at_k(n, c, k) for n, c in counts])


def mean_pass_hat_k(counts: Iterable[tuple[int, int]], k: int) -> float:
    """pass^k averaged over tasks given as (attempts, successes)."""
    return _mean([pass_hat_k(n, c, k) for n, c in counts])


def flip_rate(counts: Iterable[tuple[int, int]]) -> float:
    """Share of tasks that passed some of their attempts and failed others: pass@r − pass^r."""
    return _mean([float(0 < c < n) for n, c in counts])


def _mean(values: Sequence[float]) -> float:
    if not values:
        raise StatsError("no tasks to average over; expected at least one (attempts, successes)")
    return float(np.mean(values))


def mcnemar_exact(only_a: int, only_b: int) -> float:
    """Two-sided exact p that A and B succeed equally often, from the discordant pairs.

    only_a: pairs where only A succeeded; only_b: only B. No discordant pair gives 1.
    Pairs are taken as independent: with several seeds a task prefer `paired_bootstrap`.
    """
    if only_a < 0 or only_b < 0:
        raise StatsError(f"discordant pairs are {only_a} and {only_b}; expected counts ≥ 0")
    n, m = only_a + only_b, min(only_a, only_b)
    if n == 0:
        return 1.0
    # Logs: C(n, k) overflows a float from n = 1030 on.
    logs = [math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) for k in range(m + 1)]
    tail = math.fsum(math.exp(x - n * math.log(2.0)) for x in logs)
    return min(1.0, 2.0 * tail)


def paired_bootstrap(
    a: Sequence[float] | np.ndarray,
    b: Sequence[float] | np.ndarray,
    tasks: Sequence[Hashable],
    seeds: Sequence[Hashable] | None = None,
    *,
    draws: int = 10_000,
    seed: int = 0,
    confidence: float = 0.95,
) -> PairedBootstrap:
    """Percentile bootstrap of mean(a − b) over pairs, resampling whole tasks, and run seeds.

    a, b: [n] values (success 0/1 or reward) of the same episode slot under two systems.
    tasks: [n] task of each pair. seeds: [n] run seed of each pair; with several the seeds are drawn as
    well, and each drawn seed keeps the drawn tasks: runs of other seeds face the same tasks, whose
    difficulty they share (tasks drawn anew for each seed cover 75% where edits help some tasks and not
    others, this 93 to 99%; benchmarks/bootstrap_coverage.py).
    The same `seed` gives the same bounds, whatever the order of pairs.
    """
    va, vb = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if va.shape != vb.shape or va.ndim != 1 or len(tasks) != len(va):
        raise StatsError(
            f"paired values have shapes {va.shape} and {vb.shape} for {len(tasks)} task names; "
            "expected three of one length"
        )
    if seeds is not None and len(seeds) != len(va):
        raise StatsError(f"{len(seeds)} run seeds for {len(va)} pairs; expected one a pair")
    if len(va) == 0:
        raise StatsError("no pairs to compare; expected at least one episode run by both")
    d = va - vb
    if not np.isfinite(d).all():
        raise StatsError(
            "a paired value is not finite; drop infrastructure errors before comparing"
        )
    _z(confidence)  # refuses a confidence outside (0, 1)
    task, n = _indices(tasks)
    run, n_seeds = _indices([0] * len(d) if seeds is None else seeds)
    cell = run * n + task
    sums = np.bincount(cell, weights=d, minlength=n_seeds * n).reshape(n_seeds, n)
    sizes = np.bincount(cell, minlength=n_seeds * n).reshape(n_seeds, n).astype(np.float64)
    means = _draw_means(sums, sizes, draws, np.random.default_rng(seed))
    tail = 1.0 - confidence
    lo, hi, lo1, hi1 = np.quantile(means, [tail / 2, 1 - tail / 2, tail, 1 - tail])
    return PairedBootstrap(
        mean=float(d.mean()),
        lo=float(lo),
        hi=float(hi),
        lo_one_sided=float(lo1),
        hi_one_sided=float(hi1),
        n_tasks=n,
        n_pairs=len(d),
        confidence=confidence,
        n_seeds=n_seeds,
        se=float(means.std()),
    )


def _indices(names: Sequence[Hashable]) -> tuple[np.ndarray, int]:
    """[n] index of each name among the different ones, and how many these are."""
    index = {name: i for i, name in enumerate(sorted(set(names), key=repr))}
    return np.fromiter((index[name] for name in names), np.int64, len(names)), len(index)


def _draw_means(
    sums: np.ndarray, sizes: np.ndarray, draws: int, rng: np.random.Generator
) -> np.ndarray:
    """[draws] means of the values under resampled rows and columns. sums, sizes: [seeds, tasks]."""
    n_seeds, n = sums.shape
    means = np.empty(draws)
    step = max(1, _CHUNK_CELLS // n)
    for start in range(0, draws, step):
        rows = min(step, draws - start)
        drawn = rng.integers(0, n, size=(rows, n))
        if n_seeds == 1:
            total, count = sums[0][drawn].sum(axis=1), sizes[0][drawn].sum(axis=1)
        else:
            runs = rng.integers(0, n_seeds, size=(rows, n_seeds))
            times = (runs[:, :, None] == np.arange(n_seeds)).sum(axis=1).astype(np.float64)
            total = np.take_along_axis(times @ sums, drawn, axis=1).sum(axis=1)
            count = np.take_along_axis(times @ sizes, drawn, axis=1).sum(axis=1)
        means[start : start + rows] = np.divide(
            total, count, out=np.full(rows, np.nan), where=count > 0
        )
    # Seeds that share no task may draw tasks that none of the drawn seeds has.
    return means[np.isfinite(means)]


def clustered_rate(
    values: Sequence[float], tasks: Sequence[Hashable], seeds: Sequence[Hashable]
) -> Interval:
    """Success rate whose episodes share tasks and runs: Wilson's interval at the effective sample
    size p(1 − p)/SE², SE by the bootstrap over both. Never narrower than that of as many independent
    episodes; where all or none succeed, which says nothing of SE, the tasks are what is counted.

    values: [n] 0 or 1. One episode a task and one seed give Wilson's interval itself.
    """
    n, successes = len(values), int(sum(values))
    if n == 0 or (len(set(tasks)) == n and len(set(seeds)) == 1):
        return wilson(successes, n)
    p = successes / n
    if successes in (0, n):
        size = float(len(set(tasks)))
    else:
        found = paired_bootstrap(values, np.zeros(n), tasks, seeds, draws=2000)
        size = min(float(n), p * (1 - p) / found.se**2) if found.se > 0 else float(n)
    interval = wilson(p * size, size)
    return Interval(p, interval.lo, interval.hi)
