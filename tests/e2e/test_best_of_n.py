"""The best-of-n arm on the real engines: one measurement, then repeats under other seeds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from coevo.records import BestOfN
from coevo.runs import load_run

ROOT = Path(__file__).resolve().parents[2]


def coevo(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "coevo.cli", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_repeats_run_under_seeds_of_their_own_and_each_read_is_journaled(tmp_path: Path) -> None:
    coevo(
        "run", "configs/smoke.yaml", f"runs_dir={tmp_path}", "name=it", "mode=best_of_n",
        "best_of_n.n=3",
    )  # fmt: skip
    run = tmp_path / "it"
    file = run / "best_of_n.json"
    record = BestOfN.from_json(json.loads(file.read_text()), str(file))
    assert Counter(e.task_id for e in record.episodes) == dict.fromkeys(record.attempts(), 3)
    assert len({e.seed for e in record.episodes}) == len(record.episodes) == 18
    first = load_run(run).evaluations[0]
    assert record.episodes[:6] == first.episodes
    assert record.tokens.prompt > 0
    reads = [json.loads(line) for line in (run / "sealed_reads.jsonl").read_text().splitlines()]
    assert [(read["n"], read["about"]["repeat"]) for read in reads] == [(6, 0), (6, 1), (6, 2)]
    assert "the best of 3 runs a task, chosen by the verifier" in coevo("status", str(run))
