"""Group-relative advantages over trajectories of several harnesses: pure functions on numpy arrays.

A group is the set of trajectories of one task, over every harness and every policy version in the
buffer. Each estimator maps rewards float64 [n], group keys [n] and harness ids [n] to advantages
float64 [n]. Groups without signal (one trajectory, or all rewards equal up to rounding) get exactly
0, so that they can be dropped before any forward pass.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from trainer.errors import BatchError

STD_FLOOR = 1e-3
"""Lower bound of a group's standard deviation: a rounding-size spread must not become ±1."""

EQUAL_TOLERANCE = 1e-8
"""Rewards of a group whose spread is below this share of their size are equal (0.1 + 0.2 and 0.3)."""

SHRINKAGE_STRENGTH = 4.0
"""Pseudo-count of the pooled group in `shrinkage`."""

Keys = np.ndarray | Sequence[str]
Estimator = Callable[[np.ndarray, Keys, Keys], np.ndarray]


@dataclass(frozen=True, slots=True)
class _Groups:
    """Sums by group. index: int [n], the group of each trajectory; the rest [groups]."""

    index: np.ndarray
    count: np.ndarray
    mean: np.ndarray
    var: np.ndarray  # population variance
    flat: np.ndarray  # bool: no signal


def _grouped(rewards: np.ndarray, keys: np.ndarray) -> _Groups:
    _, index = np.unique(keys, return_inverse=True)
    size = int(index.max()) + 1 if len(index) else 0
    count = np.bincount(index, minlength=size)
    mean = np.bincount(index, weights=rewards, minlength=size) / np.maximum(count, 1)
    var = np.bincount(index, weights=(rewards - mean[index]) ** 2, minlength=size) / np.maximum(
        count, 1
    )
    high = np.full(size, -np.inf)
    low = np.full(size, np.inf)
    np.maximum.at(high, index, rewards)
    np.minimum.at(low, index, rewards)
    scale = np.maximum(1.0, np.maximum(np.abs(high), np.abs(low)))
    return _Groups(index, count, mean, var, high - low <= EQUAL_TOLERANCE * scale)


def _inputs(rewards: np.ndarray, groups: Keys, harnesses: Keys) -> tuple[np.ndarray, ...]:
    values = np.asarray(rewards, dtype=np.float64)
    group_keys, harness_keys = np.asarray(groups), np.asarray(harnesses)
    for name, array in (("groups", group_keys), ("harnesses", harness_keys)):
        if array.shape != values.shape:
            raise BatchError(
                f"advantage: {name} has shape {array.shape} for {values.shape} rewards"
            )
    bad = ~np.isfinite(values)
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        raise BatchError(
            f"advantage: reward {at} of group {str(group_keys[at])!r} is {values[at]}; rewards must be "
            "finite: give the trajectory an outcome that leaves the group instead"
        )
    return values, group_keys, harness_keys


def _pair_keys(groups: np.ndarray, harnesses: np.ndarray) -> np.ndarray:
    _, g = np.unique(groups, return_inverse=True)
    names, h = np.unique(harnesses, return_inverse=True)
    return g.astype(np.int64) * max(len(names), 1) + h


def pooled(rewards: np.ndarray, groups: Keys, harnesses: Keys) -> np.ndarray:
    """(r − μ) / max(σ, STD_FLOOR) over the task's group, all harnesses together (GRPO)."""
    r, g, _ = _inputs(rewards, groups, harnesses)
    s = _grouped(r, g)
    out = (r - s.mean[s.index]) / np.maximum(np.sqrt(s.var), STD_FLOOR)[s.index]
    out[s.flat[s.index]] = 0.0
    return out


def within_harness(rewards: np.ndarray, groups: Keys, harnesses: Keys) -> np.ndarray:
    """`pooled` over (task, harness): a harness is only compared with itself."""
    r, g, h = _inputs(rewards, groups, harnesses)
    return pooled(r, _pair_keys(g, h), h)


def shrinkage(rewards: np.ndarray, groups: Keys, harnesses: Keys) -> np.ndarray:
    """Between `pooled` and `within_harness`, by how many runs the harness has on the task.

    λ = (n_h − 1) / (n_h − 1 + SHRINKAGE_STRENGTH); mean λμ_h + (1−λ)μ, variance likewise. A harness
    with one run uses the pooled group; one with many uses its own.
    """
    r, g, h = _inputs(rewards, groups, harnesses)
    wide, own = _grouped(r, g), _grouped(r, _pair_keys(g, h))
    extra = own.count[own.index] - 1.0
    lam = extra / (extra + SHRINKAGE_STRENGTH)
    mean = lam * own.mean[own.index] + (1 - lam) * wide.mean[wide.index]
    var = lam * own.var[own.index] + (1 - lam) * wide.var[wide.index]
    out = (r - mean) / np.maximum(np.sqrt(var), STD_FLOOR)
    out[wide.flat[wide.index]] = 0.0
    return out


def leave_one_out(rewards: np.ndarray, groups: Keys, harnesses: Keys) -> np.ndarray:
    """r minus the mean of the group's other trajectories (RLOO), no scale."""
    r, g, _ = _inputs(rewards, groups, harnesses)
    s = _grouped(r, g)
    n = s.count[s.index]
    out = (r - s.mean[s.index]) * n / np.maximum(n - 1, 1)
    out[s.flat[s.index]] = 0.0
    return out


def centred(rewards: np.ndarray, groups: Keys, harnesses: Keys) -> np.ndarray:
    """r − μ over the task's group, no scale (Dr. GRPO)."""
    r, g, _ = _inputs(rewards, groups, harnesses)
    s = _grouped(r, g)
    out = r - s.mean[s.index]
    out[s.flat[s.index]] = 0.0
    return out


ESTIMATORS: dict[str, Estimator] = {
    "pooled": pooled,
    "within_harness": within_harness,
    "shrinkage": shrinkage,
    "leave_one_out": leave_one_out,
    "centred": centred,
}


def estimator(name: str) -> Estimator:
    """The estimator called `name`; BatchError names the nearest where there is none."""
    try:
        return ESTIMATORS[name]
    except KeyError:
        near = difflib.get_close_matches(name, ESTIMATORS, n=1, cutoff=0.0)
        raise BatchError(
            f"advantage {name!r} is unknown; did you mean {near[0]!r}? known: {', '.join(ESTIMATORS)}"
        ) from None


@dataclass(frozen=True, slots=True)
class AdvantageReport:
    """What the advantages were made of.

    advantages: float64 [n], 0 where `kept` is False. kept: bool [n], trajectories in their group.
    between, within: mean squared reward deviation of harness means from the task mean, and of
    rewards from their harness mean; their sum is the mean within-task variance of the rewards.
    """

    advantages: np.ndarray
    kept: np.ndarray
    groups: int
    groups_with_signal: int
    between: float
    within: float


def advantages(
    name: str, rewards: np.ndarray, groups: Keys, harnesses: Keys, kept: np.ndarray
) -> AdvantageReport:
    """Advantages by estimator `name`, over the trajectories where `kept` (bool [n]) is True.

    Trajectories not kept (infra_error, harness_error …) leave their group before its mean, whatever
    their reward is, and get 0.
    """
    mask = np.asarray(kept, dtype=bool)
    r = np.asarray(rewards, dtype=np.float64)
    g, h = np.asarray(groups), np.asarray(harnesses)
    if not r.shape == g.shape == h.shape == mask.shape:
        raise BatchError(
            f"advantage: rewards {r.shape}, groups {g.shape}, harnesses {h.shape} and kept "
            f"{mask.shape} must have one shape"
        )
    out = np.zeros(len(r))
    out[mask] = estimator(name)(r[mask], g[mask], h[mask])
    n = int(mask.sum())
    if n == 0:
        return AdvantageReport(out, mask, 0, 0, 0.0, 0.0)
    wide, own = _grouped(r[mask], g[mask]), _grouped(r[mask], _pair_keys(g[mask], h[mask]))
    between = float(np.mean((own.mean[own.index] - wide.mean[wide.index]) ** 2))
    within = float(np.mean((r[mask] - own.mean[own.index]) ** 2))
    return AdvantageReport(out, mask, len(wide.count), int((~wide.flat).sum()), between, within)
