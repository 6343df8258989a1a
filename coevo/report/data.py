"""What the report page is given: the comparison and its runs as one JSON object."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import yaml

from coevo.compare import ARM_NAMES, Arm, Comparison, PairedDifference, by_round, flatten
from coevo.compare_view import per_point
from coevo.evolution_read import read_evolution
from coevo.matrix import FILE as MATRIX_FILE
from coevo.matrix import Matrix
from coevo.records import RecordError, SplitResult
from coevo.report.grid import Grid, evolve_grid, measured_grid, read_journal, task_table
from coevo.report.happened import happened
from coevo.report.lineage import lineage
from coevo.report.traces import Wanted, pack, wanted
from coevo.report.verdict import verdict
from coevo.runs import Run
from harness.evolve.records import Episode

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
        "by_seed": [[seed, mean] for seed, mean in pair.by_seed],
    }


@dataclass(frozen=True)
class RunData:
    """A run with what the page shows of it beside its rounds. going: phases of the round that is
    not committed yet. problems: of any of its files."""

    run: Run
    lineage: Mapping[str, Any]
    episodes: Mapping[int, Sequence[Episode]]
    grids: tuple[Grid, ...]
    matrix: Matrix | None
    happened: Mapping[str, Any] | None
    going: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def read_run_data(run: Run) -> RunData:
    """Everything of a run that the page shows; a damaged file is a problem and the rest is kept."""
    view = read_evolution(run.path)
    journal = read_journal(run)
    measured = {"heldout": run.evaluations, **run.others}
    found = [measured_grid(split, evaluations) for split, evaluations in measured.items()]
    found.insert(1, evolve_grid(journal.episodes))
    matrix, bad = _matrix(run)
    problems = dict.fromkeys((*run.problems, *view.problems, *journal.problems, *bad))
    return RunData(
        run,
        lineage(view),
        journal.episodes,
        tuple(grid for grid in found if grid is not None),
        matrix,
        happened(run),
        () if run.finished else journal.going,
        tuple(problems),
    )


def _matrix(run: Run) -> tuple[Matrix | None, list[str]]:
    """What `coevo matrix` left in the run, and what is wrong with it."""
    file = run.path / MATRIX_FILE
    try:
        return Matrix.from_json(json.loads(file.read_text()), str(file)), []
    except FileNotFoundError:
        return None, []
    except RecordError as error:
        return None, [str(error)]
    except (OSError, ValueError) as error:
        return None, [f"{file}: {error}"]


def _run(found: RunData, index: Mapping[str, int]) -> dict[str, Any]:
    run = found.run
    return {
        "name": run.name,
        "seed": run.seed,
        "finished": run.finished,
        "rounds": [_brief(record.to_json()) for record in run.rounds],
        "matrix": None if found.matrix is None else found.matrix.to_json(),
        "events": found.happened,
        "going": list(found.going),
        "asked_rounds": run.config.get("rounds"),
        "heldout": {r: _split(e.result) for r, e in sorted(run.evaluations.items())},
        "lineage": found.lineage,
        "grids": [grid.to_json(index) for grid in found.grids],
        "config": yaml.safe_dump(dict(run.config), sort_keys=False, allow_unicode=True),
        "lock": json.dumps(run.lock, indent=2, ensure_ascii=False),
    }


def _brief(record: dict[str, Any]) -> dict[str, Any]:
    """A round without its candidates, which the lineage has."""
    del record["evolution"]
    return record


def _arm(
    arm: Arm, slot: int, base: Arm, found: Mapping[int, RunData], index: Mapping[str, int]
) -> dict[str, Any]:
    """base: the arm whose budget the others are held against."""
    repeated = [("heldout", arm.repeats[1]), *((c.split, c.repeats[1]) for c in arm.others)]
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
        "budget": arm.budget.to_json(),
        "over": arm.budget.over(base.budget),
        "per_point": {
            name: per_point(getattr(arm.budget, name), arm.gain)
            for name in ("tokens", "wall_s", "gpu_s")
        },
        "others": [
            {
                "split": curve.split,
                "initial": _split(curve.initial),
                "final": _split(curve.final),
                "best": _split(curve.best),
                "best_round": curve.best_round,
                "gain": _pair(curve.gain),
            }
            for curve in arm.others
        ],
        "repeats": [
            {"split": split, **result.model_dump()} for split, result in repeated if result
        ],
        "curve": {r: _split(result) for r, result in by_round(arm.runs).items()},
        "runs": [_run(found[id(run)], index) for run in arm.runs],
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


def payload(
    comparison: Comparison,
    title: str,
    found: Sequence[RunData] | None = None,
    every: float | None = None,
) -> dict[str, Any]:
    """The object that the page draws; numbers are shares and seconds, formatted by the page.

    found: what `read_run_data` gave for each run, arm by arm; None reads it here. every: seconds
    between two questions of a page that is served, which asks for its traces; None for a page that
    stands alone and holds them.
    """
    words = verdict(comparison)
    runs = [run for arm in comparison.arms for run in arm.runs]
    found = [read_run_data(run) for run in runs] if found is None else found
    tasks = task_table(grid for item in found for grid in item.grids)
    index = {task.key: i for i, task in enumerate(tasks)}
    asked = _wanted(found) if every is None else []
    traces, damaged = pack(asked, [run.path for run in runs])
    told = [problem for item in found for problem in item.problems]
    free = iter(range(len(_SLOTS), len(_SLOTS) + len(comparison.arms)))
    by_id = {id(item.run): item for item in found}
    base = comparison.baseline
    return {
        "schema": 2,
        "title": title,
        "live": None if every is None else {"every": every},
        "headline": words.headline,
        "paragraph": words.paragraph,
        "reference": comparison.reference,
        "baseline": base.key,
        "notes": [note for note in comparison.notes if note not in told],
        "problems": [_placeless(text, runs) for text in dict.fromkeys([*told, *damaged])],
        "arms": [
            _arm(arm, _SLOTS[arm.key] if arm.key in _SLOTS else next(free), base, by_id, index)
            for arm in comparison.arms
        ],
        "pairs": [_pair(pair) for pair in comparison.pairs],
        "config_differences": _config_differences(runs),
        "tasks": [asdict(task) for task in tasks],
        "traces": traces,
    }


def _wanted(found: Sequence[RunData]) -> list[tuple[int, Wanted]]:
    return [
        item
        for number, one in enumerate(found)
        for grid in one.grids
        if grid.split == "evolve"
        for item in wanted(number, grid, one.episodes)
    ]


def _placeless(text: str, runs: Sequence[Run]) -> str:
    """A problem with the run's name in the place of its path: pages are passed on."""
    for run in runs:
        text = text.replace(str(run.path.absolute()), run.name).replace(str(run.path), run.name)
    return text
