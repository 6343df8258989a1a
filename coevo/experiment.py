"""The record of an experiment: NAME.experiment.json beside its runs, with the budget of every arm."""

from __future__ import annotations

from pathlib import Path

from coevo.compare import Comparison
from coevo.compare_view import budget_rows
from harness.atomic import write_json

SCHEMA = 1


def write_experiment(root: Path, name: str, comparison: Comparison) -> Path:
    """Write it; the file. Budgets are of one run (see coevo.budget); `over` is the relative
    difference to the baseline, null where one of the two is not known or none."""
    file = root / f"{name}.experiment.json"
    write_json(
        file,
        {
            "schema": SCHEMA,
            "name": name,
            "baseline": comparison.baseline.key,
            "arms": [
                {
                    "arm": arm.key,
                    "seeds": list(arm.seeds),
                    "runs": [run.name for run in arm.runs],
                    "budget": budget.to_json(),
                    "over": over,
                }
                for arm, budget, over in budget_rows(comparison)
            ],
        },
    )
    return file
