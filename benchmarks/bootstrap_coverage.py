"""How often the 95% intervals of `coevo compare` hold the true difference of two arms.

    python benchmarks/bootstrap_coverage.py [--repeats 300]

Two arms, three or five run seeds, the same tasks under every seed. Success of a task follows its
difficulty (logit, standard deviation 1.2); the second arm adds 0.5, a part of each task's own
(`task`: edits help some tasks and not others) and a part of each run seed's own (`seed`). Three ways
to resample: tasks alone (seeds as given), tasks anew within each drawn seed (nested), and tasks and
seeds at once (pigeonhole, what `coevo compare` does). Prints coverage and mean width in points.
"""

from __future__ import annotations

import argparse

import numpy as np

from coevo.stats import paired_bootstrap

SETTINGS = [(seeds, tasks, runs, seed_sd, task_sd)
            for seeds, tasks, runs in ((3, 100, 4), (5, 100, 4), (3, 200, 2))
            for seed_sd, task_sd in ((0.0, 0.0), (0.0, 2.5), (0.3, 2.5), (0.4, 0.0))]  # fmt: skip
DRAWS = 600


def rate(logit: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-logit))


def truth(seed_sd: float, task_sd: float) -> float:
    z = np.random.default_rng(1).normal(0, 1, (3, 1_000_000))
    return float(
        np.mean(rate(1.2 * z[0] + 0.5 + task_sd * z[1] + seed_sd * z[2]) - rate(1.2 * z[0]))
    )


def nested(difference: np.ndarray, rng: np.random.Generator) -> tuple[float, float]:
    """Bounds with the tasks drawn anew for each drawn seed. difference: [seeds, tasks] means."""
    n_seeds, n = difference.shape
    runs = rng.integers(0, n_seeds, (DRAWS, n_seeds, 1))
    tasks = rng.integers(0, n, (DRAWS, n_seeds, n))
    lo, hi = np.quantile(difference[runs, tasks].mean(axis=(1, 2)), [0.025, 0.975])
    return float(lo), float(hi)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=300)
    repeats = parser.parse_args().repeats
    rng = np.random.default_rng(0)
    print("| seeds | tasks | runs | seed | task | tasks alone | nested | tasks and seeds |")
    print("|---|---|---|---|---|---|---|---|")
    for n_seeds, n, runs, seed_sd, task_sd in SETTINGS:
        true = truth(seed_sd, task_sd)
        tasks = np.tile(np.repeat(np.arange(n), runs), n_seeds)
        seeds = np.repeat(np.arange(n_seeds), n * runs)
        found: list[list[tuple[float, float]]] = [[], [], []]
        for _ in range(repeats):
            base = rng.normal(0, 1.2, (1, n, 1))
            own = 0.5 + rng.normal(0, task_sd, (1, n, 1)) + rng.normal(0, seed_sd, (n_seeds, 1, 1))
            a = rng.random((n_seeds, n, runs)) < rate(base + own)
            b = rng.random((n_seeds, n, runs)) < rate(base)
            alone = paired_bootstrap(a.ravel(), b.ravel(), tasks, draws=DRAWS)
            both = paired_bootstrap(a.ravel(), b.ravel(), tasks, seeds, draws=DRAWS)
            found[0].append((alone.lo, alone.hi))
            found[1].append(nested((a * 1.0 - b).mean(axis=2), rng))
            found[2].append((both.lo, both.hi))
        cells = [
            f"{np.mean([lo <= true <= hi for lo, hi in bounds]):.1%} "
            f"({100 * np.mean([hi - lo for lo, hi in bounds]):.1f})"
            for bounds in found
        ]
        print(f"| {n_seeds} | {n} | {runs} | {seed_sd} | {task_sd} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
