"""The quickstart's results: five arms of three seeds, the matrix of each co-evolution, the page.

    python benchmarks/quickstart_results.py [--runs-dir runs/results] [--seeds 3]

Runs what is missing (finished runs and matrices are skipped; a killed one goes on), then writes the
tables of docs/results/quickstart.md, each between its markers, and the page beside it. The prose
around the markers is written by hand. Under an hour on two cores without a GPU.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from coevo.arms import parse_seeds
from coevo.cli import main as coevo
from coevo.compare import Comparison, compare
from coevo.compare_view import amount, budget_rows, by_seed_text, difference_text, per_point
from coevo.live import p_value, percent, points, quantity, with_interval
from coevo.matrix import FILE, Matrix
from coevo.records import RepeatResult
from coevo.report import write_report
from coevo.runs import Run, load_run
from harness.atomic import write_atomic, write_json

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "configs" / "quickstart.yaml"
PAGE = ROOT / "docs" / "results" / "quickstart.md"
REPORT = PAGE.with_suffix(".html")
ARMS = ("frozen", "harness", "model", "coevolve", "best_of_n")
SETTINGS = ("name=quickstart", "evaluation.repeats=2", "evaluation.ends={ood: 140}")
"""Each task twice, for pass^k and the flip rate; kinds of tasks that nothing learns from, too."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs-dir", type=Path, default=Path("runs/results"))
    parser.add_argument("--seeds", default="3", help="as `coevo experiment` takes them")
    arguments = parser.parse_args()
    root: Path = arguments.runs_dir
    seeds = parse_seeds(arguments.seeds)
    timed(
        root, "experiment",
        ["experiment", str(CONFIG), "--arms", ",".join(ARMS), "--seeds", arguments.seeds,
         f"runs_dir={root}", *SETTINGS],
    )  # fmt: skip
    paths = [root / f"quickstart-{arm}-s{seed}" for arm in ARMS for seed in seeds]
    for path in paths:
        if "-coevolve-" in path.name and not (path / FILE).is_file():
            timed(
                root, path.name,
                ["matrix", str(path), "--harness", "0,last", "--policy", "0,last"],
            )  # fmt: skip
    runs = [load_run(path) for path in paths]
    write_page(compare(runs), runs, root)
    write_report(runs, REPORT, title="Quickstart: five arms, three seeds")
    # A page that is kept here names no directory of the machine that made it.
    write_atomic(REPORT, REPORT.read_bytes().replace(f"{ROOT}/".encode(), b""))
    print(f"{PAGE}\n{REPORT}")


def timed(root: Path, step: str, command: Sequence[str]) -> None:
    """Run a command of coevo; its seconds are kept, added up where it was run in parts."""
    file = root / "seconds.json"
    began = time.monotonic()
    code = coevo(command)
    spent: dict[str, float] = json.loads(file.read_text()) if file.is_file() else {}
    spent[step] = spent.get(step, 0.0) + time.monotonic() - began
    root.mkdir(parents=True, exist_ok=True)
    write_json(file, spent)
    if code:
        raise SystemExit(code)


# --- the page ---


def write_page(found: Comparison, runs: Sequence[Run], root: Path) -> None:
    """Put each table between its markers. Raises ValueError where the page has no such markers."""
    tables: dict[str, Callable[[], str]] = {
        "arms": lambda: arms(found),
        "seeds": lambda: by_seed(runs),
        "pairs": lambda: pairs(found),
        "splits": lambda: splits(found),
        "budgets": lambda: budgets(found),
        "notes": lambda: "\n".join(f"- {note}" for note in found.notes),
        "matrix": lambda: matrices(runs),
        "time": lambda: machine_time(root),
    }
    text = PAGE.read_text(encoding="utf-8")
    for name, make in tables.items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        head, found_begin, rest = text.partition(begin)
        _, found_end, tail = rest.partition(end)
        if not found_begin or not found_end:
            raise ValueError(f"{PAGE}: expected {begin} and, after it, {end}")
        text = f"{head}{begin}\n{make()}\n{end}{tail}"
    write_atomic(PAGE, text.encode())


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def arms(found: Comparison) -> str:
    return table(
        ["arm", "start", "final", "best (round)", "pass@k", "pass^k", "flipping"],
        [
            [
                arm.label,
                with_interval(arm.initial),
                with_interval(arm.final),
                "–" if arm.best is None else f"{percent(arm.best.success)} ({arm.best_round})",
                *repeated(arm.repeats[1]),
            ]
            for arm in found.arms
        ],
    )


def repeated(found: RepeatResult | None) -> list[str]:
    if found is None:
        return ["–"] * 3
    shares = (found.pass_at_k, found.pass_hat_k, found.flips)
    return [f"{percent(shares[0])} (k = {found.k})", *map(percent, shares[1:])]


def splits(found: Comparison) -> str:
    rows = [
        [
            arm.label,
            curve.split,
            with_interval(curve.initial),
            with_interval(curve.final),
            difference_text(curve.gain) if curve.gain else "–",
        ]
        for arm in found.arms
        for curve in arm.others
    ]
    return table(["arm", "split", "start", "final", "final − start, points"], rows)


def budgets(found: Comparison) -> str:
    rows = []
    for arm, spent, over in budget_rows(found):
        tokens, seconds = per_point(spent.tokens, arm.gain), per_point(spent.wall_s, arm.gain)
        rows.append(
            [
                arm.label,
                *(amount(getattr(spent, n), over[n]) for n in ("tasks", "episodes", "tokens")),
                quantity(spent.measured_tokens) if spent.measured_tokens is not None else "–",
                f"{spent.wall_s:.0f} s",
                "–" if tokens is None else quantity(tokens),
                "–" if seconds is None else f"{seconds:.0f} s",
            ]
        )
    columns = ["arm", "tasks", "episodes", "tokens", "tokens of measurements", "wall"]
    return table([*columns, "tokens a point", "wall a point"], rows)


def by_seed(runs: Sequence[Run]) -> str:
    finals = {(run.mode, run.seed): run.last for run in runs}
    seeds = sorted({run.seed for run in runs if run.seed is not None})
    rows = []
    for arm in ARMS:
        last = [finals[arm, seed] for seed in seeds]
        rows.append([arm, *(with_interval(e.result if e else None) for e in last)])
    return table(["arm", *(f"seed {seed}" for seed in seeds)], rows)


def pairs(found: Comparison) -> str:
    labels = {arm.key: arm.label for arm in found.arms}
    named = [(f"{a.label}, final − H0·M0", a.gain) for a in found.arms if a.gain is not None]
    named += [(f"{labels[p.a]} − {labels[p.b]}", p) for p in found.pairs]
    rows = [
        [name, difference_text(p), by_seed_text(p), p_value(p.p_mcnemar), p.conclusion]
        for name, p in named
    ]
    return table(["difference", "points, 95%", "by seed", "McNemar", "reading"], rows)


def matrices(runs: Sequence[Run]) -> str:
    """The corners and the decomposition of each co-evolution."""
    rows = []
    for run in runs:
        file = run.path / FILE
        if not file.is_file():
            continue
        found = Matrix.from_json(json.loads(file.read_text()), str(file))
        split = found.decomposition
        if split is None:
            continue
        corners = [found.cell(h, p).result.success for h in split.rows for p in split.columns]
        parts = [split.total, split.harness, split.model, split.interaction]
        rows.append(
            [
                str(run.seed),
                *map(percent, corners),
                *(f"{points(e.mean)} [{points(e.lo)}, {points(e.hi)}]" for e in parts),
            ]
        )
    columns = ["seed", "H0·M0", "H0·M1", "H1·M0", "H1·M1"]
    return table([*columns, "total", "harness", "model", "interaction"], rows)


def machine_time(root: Path) -> str:
    spent: dict[str, float] = json.loads((root / "seconds.json").read_text())
    rows = [[step, f"{seconds / 60:.1f} min"] for step, seconds in spent.items()]
    return table(["step", "time"], [*rows, ["all", f"{sum(spent.values()) / 60:.1f} min"]])


if __name__ == "__main__":
    main()
