"""The real loop over engines and a trainer of no delay: schedules, barriers, kills and stops."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from coevo import stop
from coevo.config import RunConfig, load_config
from coevo.evolving import Evolver
from coevo.live import LiveTable
from coevo.rundir import RunDir
from coevo.stop import StopRequested
from harness.bundle import load
from harness.evolve.journal import Journal
from harness.evolve.records import Episode
from harness.evolve.state import EvolutionState

ROOT = Path(__file__).resolve().parents[3]
SCHEDULES = pytest.mark.parametrize("schedule", ["synchronous", "pipelined"])
CLOCKED = ("wall", "wall_s", "length_bias", "bytes")


class Killed(BaseException):
    """Nothing catches it: what was not on disk is lost."""


@pytest.fixture(scope="module")
def timed() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "round_pipelining", ROOT / "benchmarks" / "round_pipelining.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _no_signals() -> Iterator[None]:
    yield
    stop.STOP._why = None


def config(root: Path, schedule: str, *overrides: str) -> RunConfig:
    return load_config(
        ROOT / "configs" / "smoke.yaml",
        [f"runs_dir={root}", f"schedule={schedule}", "name=it", "rounds=2", "rollout.workers=2",
         *overrides],
    )  # fmt: skip


def result(run: Path) -> dict[str, Any]:
    """All that a run measured and made, without what a clock measured."""

    def stable(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: stable(v) for k, v in value.items() if k not in CLOCKED}
        return [stable(v) for v in value] if isinstance(value, list) else value

    read = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    files = [*run.glob("heldout/*.json"), *run.glob("policy/*/*"), run / "state.json"]
    parts = sorted(p.relative_to(run).as_posix() for p in run.glob("rounds/*/*"))
    return {
        "metrics": stable(read),
        "summary": stable(json.loads((run / "summary.json").read_text())),
        "files": {p.relative_to(run).as_posix(): p.read_text() for p in sorted(files)},
        "parts": parts,
    }


@SCHEDULES
def test_a_run_killed_after_any_phase_ends_like_an_undisturbed_one(
    timed: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schedule: str
) -> None:
    whole = config(tmp_path / "whole", schedule)
    timed.play(whole, timed.TimedStack(whole))
    keys = [
        json.loads(line)["key"]
        for line in (tmp_path / "whole" / "it" / "journal.jsonl").read_text().splitlines()
    ]
    append = Journal._append
    left = 0

    def dying(journal: Journal, *args: Any) -> None:
        nonlocal left
        if journal.path is not None and journal.path.parent.name == "it":
            left -= 1
            if left < 0:
                raise Killed
        append(journal, *args)

    monkeypatch.setattr(Journal, "_append", dying)
    killed = config(tmp_path / "killed", schedule)
    for _ in range(len(keys)):  # each attempt keeps one phase more
        left = 1
        try:
            timed.play(killed, timed.TimedStack(killed))
        except* Killed:
            pass
    left = len(keys)
    timed.play(killed, timed.TimedStack(killed))
    assert result(tmp_path / "killed" / "it") == result(tmp_path / "whole" / "it")


def test_a_pipelined_rollout_is_of_the_pair_that_the_round_before_began_with(
    timed: ModuleType, tmp_path: Path
) -> None:
    settings = config(tmp_path, "pipelined", "mode=model", "rounds=4", "buffer.window=2")
    timed.play(settings, timed.TimedStack(settings))
    records = result(tmp_path / "it")["metrics"]
    assert [r["policy_version"] for r in records] == [0, 1, 2, 3]
    # 8 trajectories a round; the window's older half is a version older still; none is dropped.
    assert [r["staleness"]["histogram"] for r in records] == [
        {"0": 8}, {"1": 16}, {"1": 8, "2": 8}, {"1": 8, "2": 8},
    ]  # fmt: skip
    assert {r["staleness"]["dropped"] for r in records} == {0}
    assert all(r["train"]["probe_max_abs"] == 0 for r in records)


@SCHEDULES
def test_a_signal_stops_the_run_between_phases_and_it_goes_on_from_there(
    timed: ModuleType, tmp_path: Path, schedule: str
) -> None:
    whole = config(tmp_path / "whole", schedule)
    timed.play(whole, timed.TimedStack(whole))
    stopped = config(tmp_path / "stopped", schedule)

    class Stopping(timed.TimedTrainer):  # type: ignore[name-defined,misc]
        def train(self, batch: Any) -> Any:
            stop.STOP._on(signal.SIGUSR1, None)
            return super().train(batch)

    stack = timed.TimedStack(stopped)
    timed.TimedTrainer, plain = Stopping, timed.TimedTrainer
    try:
        with pytest.raises(StopRequested, match="SIGUSR1"):
            timed.play(stopped, stack)
    finally:
        timed.TimedTrainer = plain
    journal = (tmp_path / "stopped" / "it" / "journal.jsonl").read_text()
    assert '"0/train"' in journal  # what ran came to its end and was kept
    assert '"1/train"' not in journal
    stop.STOP._why = None
    timed.play(stopped, timed.TimedStack(stopped))
    assert result(tmp_path / "stopped" / "it") == result(tmp_path / "whole" / "it")


def test_a_harness_that_was_replaced_meanwhile_gives_evolution_nothing_to_read(
    tmp_path: Path,
) -> None:
    settings = config(tmp_path, "pipelined", "mode=harness")
    run: Any = RunDir(tmp_path)
    none: Any = None
    evolver = Evolver(run, settings, none, none, none, none, LiveTable(live=False))
    state = EvolutionState.start(load(settings.harness.bundle), 1)
    old = Episode("task", 0, "of-another-harness", "completed", False, 0.0, 1)
    found = asyncio.run(evolver.evolve(1, state, 1, [old]))
    assert found["summary"]["outcome"] == "off"
    assert state.incumbent.id[:12] in found["summary"]["reason"]
    assert found["state"]["round"] == 2
