"""What the report page is given: the comparison and its runs as one JSON object."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import yaml

from coevo.compare import ARM_NAMES, Arm, Comparison, PairedDifference, by_round, flatten
from coevo.records import SplitResult
from coevo.report.verdict import verdict
from coevo.runs import Run

_SLOTS = {arm: i for i, arm in enumerate(ARM_NAMES)}
"""A known arm has one colour, dash and marker in every report; others take the next free ones."""


def _split(result: SplitResult | None) -> dict[str, Any] | None:
    return None if result is None else result.model_dump()


def _pair(pair: PairedDifference | None) -> dict[str, Any] | None:
    if pair is None:
        return None
    i = pair.interval
    return {
        "a": pair.a,
        "b": pair.b,
        "mean": i.mean,
        "lo": i.lo,
        "hi": i.hi,
        "tasks": i.n_tasks,
        "pairs": i.n_pairs,
        "only_a": pair.only_a,
        "only_b": pair.only_b,
        "p": pair.p_mcnemar,
        "dropped": pair.dropped,
        "conclusion": pair.conclusion,
    }


def _run(run: Run) -> dict[str, Any]:
    return {
        "name": run.name,
        "seed": run.seed,
        "finished": run.finished,
        "rounds": [record.to_json() for record in run.rounds],
        "heldout": {r: _split(e.result) for r, e in sorted(run.evaluations.items())},
        "config": yaml.safe_dump(dict(run.config), sort_keys=False, allow_unicode=True),
        "lock": json.dumps(run.lock, indent=2, ensure_ascii=False),
        "problems": list(run.problems),
    }


def _arm(arm: Arm, slot: int) -> dict[str, Any]:
    return {
        "key": arm.key,
        "label": arm.label,
        "mode": arm.mode,
        "slot": slot,
        "finished": arm.finished,
        "initial": _split(arm.initial),
        "final": _split(arm.final),
        "final_round": arm.final_round,
        "best": _split(arm.best),
        "best_round": arm.best_round,
        "gain": _pair(arm.gain),
        "tokens": arm.tokens.model_dump(),
        "wall_s": arm.wall_s,
        "curve": {r: _split(result) for r, result in by_round(arm.runs).items()},
        "runs": [_run(run) for run in arm.runs],
    }


def _config_differences(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Config keys in which the runs differ, with every run's value as text."""
    flat = [flatten(run.config) for run in runs]
    keys = sorted({key for config in flat for key in config})
    rows = []
    for key in keys:
        values = [json.dumps(config.get(key), default=str) for config in flat]
        if len(set(values)) > 1:
            rows.append({"key": key, "values": values})
    return rows


def payload(comparison: Comparison, title: str) -> dict[str, Any]:
    """The object that page.js draws; numbers are shares and seconds, formatted by the page."""
    words = verdict(comparison)
    runs = [run for arm in comparison.arms for run in arm.runs]
    free = iter(range(len(_SLOTS), len(_SLOTS) + len(comparison.arms)))
    return {
        "schema": 1,
        "title": title,
        "headline": words.headline,
        "paragraph": words.paragraph,
        "reference": comparison.reference,
        "notes": list(comparison.notes),
        "arms": [
            _arm(arm, _SLOTS[arm.key] if arm.key in _SLOTS else next(free))
            for arm in comparison.arms
        ],
        "pairs": [_pair(pair) for pair in comparison.pairs],
        "config_differences": _config_differences(runs),
    }
