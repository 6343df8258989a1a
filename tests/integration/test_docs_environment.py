"""The page on environments of one's own, run as it is written; then its run measured and taken apart."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from coevo.matrix import Matrix, PairFile
from coevo.records import Evaluation
from coevo.runs import load_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "bring_your_own_environment.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def coevo(where: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "coevo.cli", *arguments],
        cwd=where, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, f"{arguments}: {done.stdout[-2000:]}{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the page's files, in which its commands were given."""
    where = tmp_path_factory.mktemp("guess")
    (where / "configs").symlink_to(ROOT / "configs")
    (where / "guess.py").write_text(blocks("python")[0])
    (where / "guess.yaml").write_text(blocks("yaml")[0])
    model = "PATH"
    for line in "".join(blocks("sh")).splitlines():
        said = coevo(where, *line.replace("PATH", model).split()[1:])
        if found := re.search(r"policy M0: (\S+)", said):
            model = found[1]
    return where


def test_the_example_goes_through_a_round_of_co_evolution(there: Path) -> None:
    run = load_run(there / "runs" / "guess")
    assert run.finished
    assert not run.problems
    (record,) = run.rounds
    assert record.train is not None
    assert record.evolution.outcome != "off"
    assert sum(record.rollout.outcomes.values()) == 8
    reads = (run.path / "sealed_reads.jsonl").read_text().splitlines()
    assert {json.loads(read)["split"] for read in reads} == {"heldout"}
    assert {e.task_id.split("/")[1] for e in run.evaluations[0].episodes} == {"heldout"}


def test_a_pair_measured_again_gives_the_episodes_that_the_run_measured(there: Path) -> None:
    path = there / "runs" / "guess"
    own = load_run(path).evaluations
    kept = path / "kept"
    (path / "heldout").rename(kept)
    try:
        coevo(there, "matrix", str(path), "--rounds", "all")
    finally:
        kept.rename(path / "heldout")
    matrix = Matrix.from_json(json.loads((path / "matrix.json").read_text()), "matrix.json")
    assert [p.version for p in matrix.policies] == [0, 1]
    assert {cell.source for cell in matrix.cells} == {"matrix"}
    ends = {0: own[0], len(matrix.policies) - 1: own[1]}
    for column, evaluation in ends.items():
        row = [h.id for h in matrix.harnesses].index(evaluation.harness_id)
        file = path / matrix.cell(row, column).file
        found = PairFile.from_json(json.loads(file.read_text()), str(file)).evaluation
        assert found.episodes == evaluation.episodes
    reads = [json.loads(line) for line in (path / "sealed_reads.jsonl").read_text().splitlines()]
    assert [r["reader"] for r in reads].count("matrix") == len(matrix.cells)

    # Nothing is left to measure: no engine starts, and the run's own measurements count.
    shutil.rmtree(path / "matrix")
    said = coevo(there, "matrix", str(path), "--harness", "0", "--policy", "0")
    assert "1 of 1 pairs are measured already" in said


def test_an_exported_pair_is_measured_in_another_environment(there: Path) -> None:
    coevo(there, "export", "harness", "runs/guess", "-o", "harness")
    coevo(there, "export", "model", "runs/guess@last", "-o", "model")
    (bundle,) = (there / "harness").glob("harness-*")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert AutoModelForCausalLM.from_pretrained(there / "model").num_parameters() > 0
    assert AutoTokenizer.from_pretrained(there / "model").chat_template
    said = coevo(
        there, "eval", "--harness", str(bundle), "--policy", "model", "--config", "guess.yaml",
        "--env", "household", "environment.options.counts={heldout: 3}", "rollout.max_steps=2",
        "-n", "3", "-o", "result.json",
    )  # fmt: skip
    assert "(n = 3)" in " ".join(said.split())
    result = json.loads((there / "result.json").read_text())
    assert result["environment"]["name"] == "household"
    assert {e["outcome"] for e in result["episodes"]} <= {"truncated", "completed"}
    assert result["reads"][0]["n"] == 3
    run = load_run(there / "runs" / "guess")
    assert result["policy"]["fingerprint"] != ""
    assert result["harness"]["id"] == run.evaluations[1].harness_id
    assert isinstance(run.evaluations[1], Evaluation)
