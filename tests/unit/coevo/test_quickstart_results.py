"""The script of the quickstart's results: tables go between their markers, the prose stays."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest
from synthetic_runs import make_run

from coevo.compare import compare, load_run
from coevo.matrix import (
    FILE,
    Decomposition,
    Effect,
    Matrix,
    MatrixCell,
    MatrixHarness,
    MatrixPolicy,
)
from coevo.records import SplitResult

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def results(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location(
        "quickstart_results", ROOT / "benchmarks" / "quickstart_results.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = tmp_path / "page.md"
    page.write_text(module.PAGE.read_text())
    monkeypatch.setattr(module, "PAGE", page)
    monkeypatch.setattr(module, "ARMS", ("frozen", "coevolve"))
    (tmp_path / "seconds.json").write_text(json.dumps({"experiment": 90.0, "matrix": 30.0}))
    return module


def prose(page: str) -> list[str]:
    """The parts of the page that lie outside of the markers."""
    return re.split(r"(?s)(?<=-->)\n.*?(?=<!-- end)", page)


def test_tables_are_written_between_the_markers_of_the_page(results, tmp_path):
    paths = [make_run(tmp_path, arm, seed=s) for s in (0, 1) for arm in ("frozen", "coevolve")]
    runs = [load_run(path) for path in paths]
    before = results.PAGE.read_text()
    for _ in range(2):  # written again, nothing is added
        results.write_page(compare(runs), runs, tmp_path)
    after = results.PAGE.read_text()
    assert "| Co-evolution − Frozen | +" in after
    assert "| arm | seed 0 | seed 1 |" in after
    assert "| all | 2.0 min |" in after
    assert after.count("| Frozen |") == 3  # arms, evolve split, budgets
    assert prose(after) == prose(before)


def test_the_matrix_of_each_co_evolution_is_a_row(results, tmp_path):
    run = make_run(tmp_path, "coevolve", seed=2)
    effect = Effect(mean=0.1, lo=0.05, hi=0.15)
    matrix = Matrix(
        run="coevolve-2",
        split="heldout",
        n=20,
        seed=2,
        harnesses=tuple(MatrixHarness(id=name, rounds=(0,)) for name in "ab"),
        policies=tuple(MatrixPolicy(version=v, fingerprint="f", rounds=(v,)) for v in (0, 1)),
        cells=tuple(
            MatrixCell(
                harness=h,
                policy=p,
                result=SplitResult.of(4 + 4 * h + 2 * p, 20),
                source="run",
                file="heldout/0000.json",
            )
            for h in (0, 1)
            for p in (0, 1)
        ),
        decomposition=Decomposition(
            rows=(0, 1), columns=(0, 1), n_tasks=20, total=effect, harness=effect, model=effect,
            interaction=effect, harness_alone=effect, model_alone=effect,
        ),
    )  # fmt: skip
    (run / FILE).write_text(json.dumps(matrix.to_json()))
    assert results.matrices([load_run(run)]).splitlines()[-1] == (
        "| 2 | 20.0% | 30.0% | 40.0% | 50.0% " + 4 * "| +10.0 [+5.0, +15.0] " + "|"
    )


def test_a_page_without_a_marker_is_refused(results, tmp_path):
    results.PAGE.write_text("nothing")
    runs = [load_run(make_run(tmp_path, "frozen"))]
    with pytest.raises(ValueError, match="expected <!-- begin arms -->"):
        results.write_page(compare(runs), runs, tmp_path)
