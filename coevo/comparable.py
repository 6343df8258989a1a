"""Which runs belong together, and whether they answer the same question: the same environment,
seeds and held-out episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coevo.runs import Run

ARM_NAMES: dict[str, str] = {
    "frozen": "Frozen",
    "harness": "Harness only",
    "model": "Model only",
    "coevolve": "Co-evolution",
    "best_of_n": "Best of n",
}
"""Arms in the order in which they are shown; the first one present is the reference."""

SAME_KEYS = ("environment", "evaluation.splits", "rollout.max_steps")
"""Config keys (or sections) that decide what was asked: runs that are compared must agree in them."""

OWN_KEYS = frozenset({"name", "mode", "seed", "runs_dir", "best_of_n.n", "best_of_n.match"})
"""Config keys in which runs differ by being different runs; no note is made of them."""


PLACE = ("cluster", "resources", "sinks", "project")
"""Sections that say where a run is computed and shown, not what."""


class NotComparableError(ValueError):
    """Runs whose results answer different questions; the message names the difference."""


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """A nested mapping as {dotted path: leaf}; lists are leaves, and an empty config has none."""
    if not isinstance(config, Mapping) or not config:
        return {prefix: config} if prefix else {}
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat.update(flatten(value, f"{prefix}.{key}" if prefix else str(key)))
    return flat


def grouped(runs: Sequence[Run]) -> list[tuple[str, str, tuple[Run, ...]]]:
    """(key, label, runs) a group: runs of one arm whose configurations differ in their seed only.

    An arm with several configurations makes several groups, named by the keys that differ. Where a
    group would hold one seed twice, each run stands alone under its name.
    """
    groups: list[tuple[str, list[Run]]] = []
    for run in runs:
        own = next((g for arm, g in groups if arm == run.arm and not _unlike(g[0], run)), None)
        if own is None:
            groups.append((run.arm, [run]))
        else:
            own.append(run)
    if any(len({run.seed for run in group}) < len(group) for _, group in groups):
        names = [run.name for run in runs]
        if len(set(names)) < len(names):
            names = [str(run.path) for run in runs]
        return [(name, name, (run,)) for name, run in zip(names, runs, strict=True)]
    order = {arm: i for i, arm in enumerate(ARM_NAMES)}
    groups.sort(key=lambda item: (order.get(item[0], len(order)), item[0]))
    found = []
    for arm, group in groups:
        others = [other[0] for name, other in groups if name == arm and other is not group]
        suffix = _setting(group[0], others)
        group.sort(key=lambda run: (run.seed is None, run.seed or 0))
        found.append((arm + suffix, ARM_NAMES.get(arm, arm) + suffix, tuple(group)))
    return found


def _unlike(a: Run, b: Run) -> dict[str, tuple[Any, Any]]:
    """Keys in which two runs of one arm were set otherwise: what either one's version did not know
    yet is not among them."""
    return {
        key: (left, right)
        for key, left, right in differing(flatten(a.config), flatten(b.config))
        if key not in OWN_KEYS
        and key.partition(".")[0] not in PLACE
        and left is not None
        and right is not None
    }


def _setting(run: Run, others: Sequence[Run]) -> str:
    """' (trainer.lr=0.0003)': what sets a group apart from others of its arm."""
    mine = {key: pair[0] for other in others for key, pair in _unlike(run, other).items()}
    shown = [f"{key}={value}" for key, value in sorted(mine.items())]
    more = [f"and {len(shown) - 2} more"] if len(shown) > 2 else []
    return f" ({', '.join(shown[:2] + more)})" if shown else ""


def check_comparable(groups: Sequence[tuple[str, str, tuple[Run, ...]]]) -> None:
    runs = [run for _, _, group in groups for run in group]
    flat = {id(run): flatten(run.config) for run in runs}
    for run in runs[1:]:
        for key, left, right in differing(flat[id(runs[0])], flat[id(run)]):
            if any(key == same or key.startswith(f"{same}.") for same in SAME_KEYS):
                raise NotComparableError(
                    f"{runs[0].name} and {run.name} cannot be compared: {key} is {left!r} in the "
                    f"first and {right!r} in the second"
                )
    first_key, _, first_group = groups[0]
    seeds = {run.seed for run in first_group}
    for key, _, group in groups[1:]:
        if {run.seed for run in group} != seeds:
            raise NotComparableError(
                f"arms {first_key} and {key} cannot be compared: their run seeds are "
                f"{_listed(seeds)} and {_listed({run.seed for run in group})}; give the same seeds "
                "of each"
            )
    for seed in seeds:
        same = [run for run in runs if run.seed == seed and run.last is not None]
        for i, run in enumerate(same):
            for other in same[:i]:
                _check_episodes(other, run)


def differing(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Keys of two flat configs with other values; none when either could not be read."""
    if not left or not right:
        return []
    keys = sorted(left.keys() | right.keys())
    return [(k, left.get(k), right.get(k)) for k in keys if left.get(k) != right.get(k)]


def _faced(run: Run) -> set[tuple[str, int]]:
    return {(e.task_id, e.seed) for e in run.last.episodes} if run.last is not None else set()


def _check_episodes(a: Run, b: Run) -> None:
    """Refuse two last evaluations unless one holds all episodes of the other.

    A run still going, or stopped early, may have faced a part of what a finished one ends on.
    """
    left, right = _faced(a), _faced(b)
    only_left, only_right = sorted(left - right), sorted(right - left)
    if only_left and only_right:
        raise NotComparableError(
            f"{a.name} and {b.name} cannot be compared: of their last held-out episodes "
            f"{len(only_left)} are in the first alone, such as {_episode(only_left[0])}, and "
            f"{len(only_right)} in the second alone, such as {_episode(only_right[0])}; expected "
            "the same tasks and seeds"
        )


def _episode(key: tuple[str, int]) -> str:
    return f"task {key[0]} with seed {key[1]}"


def _listed(seeds: set[int | None]) -> str:
    return ", ".join(str(s) for s in sorted(seeds, key=lambda s: (s is None, s)))
