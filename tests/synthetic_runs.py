"""Run directories with made-up numbers, in the shape that a real run leaves: for tests of readers."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from coevo.matrix import Matrix, MatrixCell, MatrixHarness, MatrixPolicy, decompose
from coevo.metrics import MetricsLog
from coevo.records import (
    BufferStats,
    CandidateRecord,
    EpisodeResult,
    Evaluation,
    EvolutionRecord,
    EvolveResult,
    Measured,
    PairedDraw,
    RoundRecord,
    SplitResult,
    Staleness,
    Summary,
    Tokens,
    TrainRecord,
    Wall,
)

FINAL = {"frozen": 0.41, "harness": 0.62, "model": 0.55, "coevolve": 0.74}
EDITS = (
    ("enable goal_filter", "tool"),
    ("set numbered_menu.max_items = 12", "config"),
    ("enable place_memory", "memory"),
    ("set history_window.turns = 4 </script><script>alert('x')</script>", "context_mgmt"),
    ("enable loop_guard", "control_flow"),
)


def harness_hash(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def round_record(number: int, **changes: Any) -> RoundRecord:
    """A small valid record; `changes` replaces fields."""
    fields: dict[str, Any] = {
        "round": number,
        "mode": "coevolve",
        "harness_id": harness_hash("H0"),
        "policy_version": number,
        "evolve": EvolveResult(n=64, success=0.5, reward=0.55),
    }
    return RoundRecord(**(fields | changes))


def _evolution(rng: np.random.Generator, number: int, applied: bool) -> EvolutionRecord:
    candidates = []
    for i in range(2):
        text, kind = EDITS[(number + i) % len(EDITS)]
        ships = applied and i == 0
        mean = 0.11 if ships else float(rng.normal(0, 0.03))
        candidates.append(
            CandidateRecord(
                id=f"C-R{number}-{i:02d}",
                harness_id=harness_hash(f"{number}-{i}"),
                edits=(text,),
                kind=kind,
                verdict="apply" if ships else ("no_effect" if i and number % 3 == 0 else "reject"),
                reasons=("improves 14 tasks, breaks none",)
                if ships
                else ("lower bound of the confirm draw is not above 0", "breaks 1 stable task"),
                select=PairedDraw(mean_d=mean + 0.02, n=60),
                confirm=PairedDraw(mean_d=mean, lo=mean - 0.05, n=60),
            )
        )
    return EvolutionRecord(
        outcome="applied" if applied else "rejected",
        candidates=tuple(candidates),
        reason="first in the ranking that passed" if applied else "no candidate passed the gate",
    )


def make_run(
    root: Path,
    arm: str,
    *,
    seed: int = 0,
    rounds: int = 6,
    tasks: int = 50,
    repeats: int = 4,
    final: float | None = None,
    finished: bool = True,
    name: str | None = None,
    split_seed: int = 7,
) -> Path:
    """Write runs/NAME of `arm`; held-out success rises from 0.41 to `final`. Its directory."""
    name = name or f"{arm}-{seed}"
    path = root / name
    (path / "heldout").mkdir(parents=True)
    rng = np.random.default_rng([seed, len(arm)])
    shared = np.random.default_rng(split_seed)
    luck = shared.random((tasks, repeats))
    end = FINAL[arm] if final is None else final
    evolves, trains = arm in ("harness", "coevolve"), arm in ("model", "coevolve")
    harness, versions = harness_hash("H0"), 0
    mix: dict[str, int] = {}
    total = Tokens()
    measured = []
    config = {
        "name": name,
        "seed": seed,
        "mode": arm,
        "environment": {"name": "household", "options": {"seed": split_seed}},
        "trainer": {"lr": 3e-4 if trains else 1e-5},
    }
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    lock = {"python": "3.11.9", "packages": {"coevo": "0.1.0", "torch": "2.13.0+cpu"}}
    (path / "lock.json").write_text(json.dumps(lock))
    with MetricsLog(path / "metrics.jsonl") as log:
        for t in range(rounds):
            rate = 0.41 + (end - 0.41) * min(1.0, 1.35 * t / max(1, rounds - 1))
            noise = rng.normal(0, 0.12, (tasks, repeats))
            solved = luck + noise < rate
            evaluation = Evaluation(
                round=t,
                harness_id=harness,
                policy_version=versions,
                episodes=tuple(
                    EpisodeResult(
                        task_id=f"task-{i:03d}",
                        seed=r,
                        success=bool(solved[i, r]),
                        reward=float(solved[i, r]),
                        steps=int(rng.integers(5, 30)),
                        outcome="completed",
                        features={"type": f"kind-{i % 6}"},
                    )
                    for i in range(tasks)
                    for r in range(repeats)
                ),
            )
            (path / "heldout" / f"{t:04d}.json").write_text(json.dumps(evaluation.to_json()))
            measured.append(evaluation.result)
            applied = evolves and t in (1, 2, 4)
            mix = {**mix, harness: 64}
            if len(mix) > 4:
                mix.pop(next(iter(mix)))
            ages = {str(a): 64 for a in range(min(t + 1, 4))} if trains else {}
            tokens = Tokens(prompt=int(rng.integers(90_000, 120_000)), sampled=4_200)
            total = Tokens(
                prompt=total.prompt + tokens.prompt, sampled=total.sampled + tokens.sampled
            )
            evolve = float(np.clip(rate + rng.normal(0, 0.05), 0, 1))
            log.append(
                RoundRecord(
                    round=t,
                    mode=arm,
                    harness_id=harness,
                    policy_version=versions,
                    evolve=EvolveResult(n=64, success=evolve, reward=evolve),
                    heldout=evaluation.result,
                    tokens=tokens,
                    staleness=Staleness(histogram=ages, max=max(map(int, ages), default=0)),
                    harness_mix=mix,
                    buffer=BufferStats(rounds=min(t + 1, 4), trajectories=64 * min(t + 1, 4)),
                    evolution=_evolution(rng, t, applied)
                    if evolves
                    else EvolutionRecord(outcome="off"),
                    train=TrainRecord(
                        steps=5,
                        loss=float(rng.normal(0, 0.01)),
                        grad_norm=float(0.8 + rng.random() / 2),
                        kl_mismatch=float(2e-4 * (1 + rng.random())),
                        abs_dlogp=float(3e-3 * (1 + rng.random())),
                        clip_fraction=float(0.03 + 0.02 * rng.random()),
                        kept_fraction=float(0.985 + 0.01 * rng.random()),
                        entropy=float(1.1 * 0.9**t),
                        tokens_per_s=5200.0,
                        probe_max_abs=2e-5,
                    )
                    if trains
                    else None,
                    wall=Wall(
                        rollout=11 + float(rng.random()),
                        evolve=9.0 * evolves,
                        train=14.0 * trains,
                        publish=0.6 * trains,
                        heldout=8.5,
                        total=20 + 9.0 * evolves + 14.6 * trains,
                    ),
                )
            )
            if applied:
                harness = harness_hash(f"{t}-0")
            versions += trains
    if finished:
        summary = Summary(
            name=name,
            arm=arm,
            mode=arm,
            seed=seed,
            rounds=rounds,
            final=Measured(heldout=measured[-1]),
            initial=Measured(heldout=measured[0]),
            wall_s=33.0 * rounds,
            tokens=total,
        )
        (path / "summary.json").write_text(json.dumps(summary.to_json()))
    return path


def add_matrix(path: Path, rounds: tuple[int, ...] = (0, 2, 5), tasks: int = 60) -> Path:
    """Give a run the matrix.json that `coevo matrix` would: success rises along both axes."""
    rng = np.random.default_rng(5)
    luck = rng.random(tasks)
    episodes: dict[tuple[int, int], list[EpisodeResult]] = {}
    cells = []
    for row in range(len(rounds)):
        for column in range(len(rounds)):
            rate = 0.3 + 0.12 * row + 0.06 * column + 0.02 * row * column
            own = [
                EpisodeResult(task_id=f"t{i:03}", seed=1, success=bool(luck[i] + rng.normal(0, 0.1) < rate),
                              reward=0.0, steps=3, outcome="completed")
                for i in range(tasks)
            ]  # fmt: skip
            episodes[row, column] = own
            result = SplitResult.of(sum(e.success for e in own), tasks)
            cells.append(MatrixCell(harness=row, policy=column, result=result,
                                    source="run" if row == column else "matrix", file="matrix/x.json"))  # fmt: skip
    last = len(rounds) - 1
    corners = {(r, c): episodes[r, c] for r in (0, last) for c in (0, last)}
    matrix = Matrix(
        run=path.name, split="heldout", n=tasks, seed=0,
        harnesses=tuple(MatrixHarness(id=harness_hash(f"M{r}"), rounds=(r,)) for r in rounds),
        policies=tuple(MatrixPolicy(version=r, fingerprint="", rounds=(r, r + 1)) for r in rounds),
        cells=tuple(cells), decomposition=decompose(corners, (0, last), (0, last)),
        notes=("The run is not finished: its last round here is 5.",),
    )  # fmt: skip
    (path / "matrix.json").write_text(json.dumps(matrix.to_json()))
    return path


def add_events(path: Path) -> Path:
    """Give a run the events of three attempts: killed with 12.5 s of work lost, requeued, done."""
    lines: list[dict[str, Any]] = [
        {"at": 0, "kind": "attempt_started", "attempt": 1, "process": 11, "host": "node-1", "job": "7"},
        {"at": 30, "kind": "phase", "attempt": 1, "key": "0/measure", "wall_s": 30.0},
        {"at": 40, "kind": "worker_replaced", "attempt": 1, "worker": 1, "episodes": 3, "reason": "<i>killed</i>"},
        {"at": 62, "kind": "attempt_started", "attempt": 2, "process": 12, "host": "node-1", "job": "7"},
        {"at": 63, "kind": "resumed", "attempt": 2, "key": "0/measure", "phases": 1, "killed": True,
         "lost_s": 12.5, "down_s": 20.5},
        {"at": 90, "kind": "phase", "attempt": 2, "key": "0/rollout", "wall_s": 27.0},
        {"at": 95, "kind": "attempt_ended", "attempt": 2, "code": 75, "reason": "stopped", "lost_s": 5.0},
        {"at": 120, "kind": "attempt_started", "attempt": 3, "process": 13, "host": "node-2", "job": "7"},
        {"at": 121, "kind": "resumed", "attempt": 3, "key": "0/rollout", "phases": 2, "killed": False,
         "lost_s": 5.0, "down_s": 26.0},
        {"at": 180, "kind": "attempt_ended", "attempt": 3, "code": 0, "reason": "done", "lost_s": 0.0},
    ]  # fmt: skip
    start = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    for line in lines:
        line["time"] = (start + timedelta(seconds=line.pop("at"))).isoformat()
    text = "".join(json.dumps({"schema": 1, **line}) + "\n" for line in lines)
    (path / "events.jsonl").write_text(text)
    return path
