"""A run with damaged files says which, goes back to what is whole, and ends as it would have."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.kill_test import final_state
from coevo.commands import versions
from coevo.config import load_config
from coevo.integrity import ASIDE, check, repair
from coevo.rundir import RunDir
from coevo.seed_model import seed_model
from coevo.session import run_all

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def resume(*directories: Path) -> str:
    """What `coevo resume` does, for each over the same engines; what was printed."""
    runs = [RunDir.open(directory) for directory in directories]
    configs = [run.config() for run in runs]
    said = io.StringIO()
    model, _ = seed_model(configs[0])
    for _ in run_all(list(zip(runs, configs, strict=True)), model, Console(file=said, width=400)):
        pass
    return said.getvalue()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    config = load_config(ROOT / "configs" / "smoke.yaml", [f"runs_dir={root}", "name=whole"])
    run = RunDir.create(root / "whole", config, versions())
    resume(run.path)
    return run.path


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> RunDir:
    shutil.copytree(whole, tmp_path / "run")
    return RunDir(tmp_path / "run")


def flip(file: Path, at: float = 0.5) -> Path:
    """One bit, about that far into the file."""
    data = bytearray(file.read_bytes())
    data[int(at * (len(data) - 1))] ^= 1
    file.parent.chmod(0o755)  # harnesses are read-only
    file.chmod(0o644)
    file.write_bytes(data)
    return file


def zero_tail(file: Path) -> Path:
    """The last third as zeros: what a power cut leaves where nothing was synced."""
    data = file.read_bytes()
    keep = 2 * len(data) // 3
    file.write_bytes(data[:keep] + bytes(len(data) - keep))
    return file


KINDS = {
    "trainer/*/state/*.pt": "1/train",
    "trainer/*/MANIFEST.json": "1/train",
    "policy/*/model.safetensors": "1/train",
    "policy/*/model.safetensors.json": "1/train",
    "rounds/*/incumbent/trajectories.parquet": "1/rollout",
    "rounds/*/incumbent/segments.safetensors": "1/rollout",
    "rounds/*/incumbent/MANIFEST.json": "1/rollout",
    "rounds/*/incumbent/trainer_logprobs.safetensors": "1/train",
    "rounds/*/select-*/segments.safetensors": "1/evolve",
    "traces/*/incumbent.jsonl.gz": "1/rollout",
    "traces/*/select-*.gz": "1/evolve",
    "evolution/*/journal.jsonl": "1/evolve",
    "evolution/*/verdicts.json": "1/evolve",
    "heldout/*.json": "2/measure",
    "state.json": None,
}
"""The newest file of each kind, and the phase that is done again."""


@pytest.mark.parametrize("damage", [flip, zero_tail])
@pytest.mark.parametrize("pattern", KINDS)
def test_damage_is_named_and_the_journal_cut_back_to_what_is_whole(
    run: RunDir, pattern: str, damage: Callable[[Path], Path]
) -> None:
    assert check(run, None).damages == ()
    file = damage(max(run.path.glob(pattern)))
    said: list[str] = []
    repaired = repair(run, run.config(), said.append)
    assert repaired is not None
    assert str(file.relative_to(run.path)) in said[0]
    phase = KINDS[pattern]
    assert (repaired.dropped[:1] == (phase,)) if phase else not repaired.dropped
    moved = repaired.aside / file.relative_to(run.path)
    assert moved.exists()  # kept, for whoever wants to look
    assert not file.exists()
    assert check(run, None).damages == ()
    assert repair(run, run.config(), said.append) is None


def test_a_damaged_harness_or_journal_line_is_found(run: RunDir) -> None:
    [verdicts] = run.path.glob("evolution/0001/verdicts.json")
    assert verdicts.exists()
    for id in sorted(p.name for p in run.bundles.iterdir()):
        flip(run.bundles / id / "harness.yaml")
    said: list[str] = []
    repaired = repair(run, run.config(), said.append)
    assert repaired is not None
    assert repaired.last == "0/train"
    assert len([line for line in said if line.startswith("damaged: harness")]) == 4

    lines = (run.path / "journal.jsonl").read_bytes().splitlines(keepends=True)
    flip(run.path / "journal.jsonl", at=(len(lines[0]) + len(lines[1]) / 2) / sum(map(len, lines)))
    repaired = repair(run, run.config(), said.append)
    assert repaired is not None
    assert "journal.jsonl line 2" in said[-2]
    assert repaired.last == "0/measure"
    assert not list(run.buffer.glob("*/*"))


def test_a_damaged_older_policy_matters_only_when_the_run_goes_back_to_it(run: RunDir) -> None:
    flip(run.path / "trainer" / "0001" / "state" / "mp_rank_00_model_states.pt")
    assert repair(run, run.config(), print) is None
    assert [d.key for d in check(run, None).damages] == ["0/train"]
    shutil.rmtree(run.path / "trainer" / "0002")
    repaired = repair(run, run.config(), print)
    assert repaired is not None
    assert {d.key for d in repaired.damages} == {"0/train", "1/train"}
    assert repaired.last == "0/evolve"


def test_runs_with_damage_of_every_kind_end_in_the_same_state(whole: Path, tmp_path: Path) -> None:
    state = final_state(whole)
    damages = {
        "newest": ["trainer/*/state/*.pt", "policy/*/model.safetensors", "heldout/*.json", "state.json"],
        "journal": ["journal.jsonl", "harness/objects/*/harness.yaml"],
    }  # fmt: skip
    for name, patterns in damages.items():
        shutil.copytree(whole, tmp_path / name)
        for pattern in patterns:
            flip(max((tmp_path / name).glob(pattern)), at=0.7)
    runs = [tmp_path / name for name in damages]
    said = resume(*runs)
    assert said.count("the run goes on after") == len(runs)
    for directory in runs:
        assert list((directory / ASIDE).iterdir())
        assert final_state(directory) == state, directory.name
