"""Kill a run at random points and resume it: does it always end in the state of one left alone?

    python benchmarks/kill_test.py --kills 100 --seed 0 --dir /tmp/kills --log kills.jsonl [key=value …]

One undisturbed run is made first. Then run after run gets a few kills (SIGKILL): the driver, a rollout
worker, the policy engine, a trainer rank or the host of the harness processes, at a random time of a
random phase or of the start. A run whose driver ends by it is resumed. When a run has ended, its
metrics without wall times, held-out episodes, state, weights' bytes, journal and the trajectory ids of
its buffer must be those of the undisturbed run, and nothing that was journaled at a kill may have
been done again: so a kill costs at most the phase under way (two, where evolution and training run
side by side). Every kill and verdict is a line of the log; with the same arguments an interrupted
test goes on after it. Exit code 1 where a run differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from harness.evolve.journal import read_entries
from rollout.buffer import ReplayBuffer

ROOT = Path(__file__).resolve().parents[1]
QUICKSTART = ROOT / "configs" / "quickstart.yaml"
SMALL = (
    "rounds=2",
    "rollout.concurrency=16",
    "tasks={per_round: 6, samples: 2}",
    "trainer.steps_per_round=2",
    "evolution.every=1",
    "evaluation.episodes=8",
)
"""The quickstart with its own model and world, on few tasks."""

TARGETS = ("driver", "worker", "engine", "rank", "harness")
ACTORS = {
    "worker": "ray::RolloutWorker",
    "harness": "ray::RolloutWorker",
    "engine": "ray::VLLMActor",
    "rank": "ray::RankWorker",
}
"""How their processes call themselves; a harness's is a child of its worker's."""

READY = "harness isolation:"
"""The line by which a driver says that its engines run."""

VOLATILE = ("wall", "tokens_per_s", "mfu", "wall_s", "length_bias")
"""Keys of records that a clock decides."""

STAGES = {"measure": 0, "rollout": 1, "evolve": 2, "train": 2, "publish": 3}
"""Phases of a round in their order."""

NEXT = 3
"""A kill comes in one of as many phases ahead, so that a run gets many before it ends."""

POLL_S = 0.1

KNOWN_ENDS = (0, 75, -signal.SIGKILL)


# --- what a run is compared by ---


def timeless(value: object) -> object:
    """A record without what a clock measured."""
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if k not in VOLATILE}
    if isinstance(value, list):
        return [timeless(v) for v in value]
    return value


def final_state(run: Path) -> dict[str, object]:
    """All that a run measured and made, without times and its name."""
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for record in metrics:
        # Sizes of files may differ by a compressor's choice; everything they hold is compared.
        record["buffer"].pop("bytes")
    summary = json.loads((run / "summary.json").read_text())
    buffer = ReplayBuffer(run, 1, 1 << 62)
    entries, _ = read_entries(run / "journal.jsonl")
    return {
        "metrics": timeless(metrics),
        "summary": timeless(summary | {"name": ""}),
        "heldout": {p.name: json.loads(p.read_text()) for p in (run / "heldout").glob("*.json")},
        "state": json.loads((run / "state.json").read_text()),
        "weights": {
            p.parent.name: p.read_bytes() for p in (run / "policy").glob("*/model.safetensors")
        },
        # As lists: a trajectory that is counted twice differs too.
        "trajectories": {
            f"{round}/{part}": [t.id for t in buffer.trajectories(round, part)]
            for round in buffer.rounds()
            for part in buffer.parts(round)
        },
        # Evolution and training end in either order.
        "journal": sorted((e.key, e.inputs) for e in entries),
        "harnesses": sorted(p.name for p in (run / "harness" / "objects").iterdir()),
    }


def journaled(run: Path) -> list[str]:
    """Keys of the phases that the journal holds whole."""
    file = run / "journal.jsonl"
    return [entry.key for entry in read_entries(file)[0]] if file.exists() else []


# --- processes ---


def start(*arguments: str, log: Path) -> subprocess.Popen[bytes]:
    """A `coevo` command in a session of its own, so that one signal can reach only the driver."""
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "coevo.cli", *arguments],
            cwd=ROOT,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


@contextmanager
def started(*arguments: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """As `start`; the driver does not outlive the block."""
    process = start(*arguments, log=log)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def processes(driver: int, target: str) -> list[psutil.Process]:
    """The processes of that kind under the driver."""
    if target == "driver":
        return [psutil.Process(driver)]
    found = []
    for process in psutil.Process(driver).children(recursive=True):
        try:
            if " ".join(process.cmdline()).startswith(ACTORS[target]):
                # The host that forks a process an episode is the worker's only child.
                found += process.children() if target == "harness" else [process]
        except psutil.NoSuchProcess:
            continue
    return found


def kill_one(driver: int, dice: random.Random) -> tuple[str, int] | None:
    """Kill a process of a random kind that is there: (kind, pid); None where the driver is gone."""
    for target in dice.sample(TARGETS, len(TARGETS)):
        try:
            found = processes(driver, target)
            if found:
                victim = dice.choice(found)
                victim.kill()
                return target, victim.pid
        except psutil.NoSuchProcess:
            continue
    return None


# --- the test ---


@dataclass
class Log:
    """JSON lines, those of an earlier test included; `clock` since this process started."""

    path: Path
    records: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.path.exists():
            whole = self.path.read_text().rpartition("\n")[0]
            self.records = [json.loads(line) for line in whole.splitlines()]

    def add(self, said: str, **record: Any) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        self.records.append(record)
        print(said, flush=True)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [r for r in self.records if r["kind"] == kind]


@dataclass(frozen=True)
class Reference:
    """The undisturbed run: its state, the seconds of its phases and of its start."""

    state: Mapping[str, object]
    phases: Mapping[str, float]
    start_s: float


class Hung(RuntimeError):
    """A driver that neither ended nor came forward."""


@dataclass
class Attempt:
    """One driver from its start to its end. known: what the journal held at its start."""

    process: subprocess.Popen[bytes]
    run: Path
    log: Path
    limit_s: float
    log_at: int
    began: float = field(default_factory=time.monotonic)
    ready: float | None = None
    _seen: tuple[int, list[str]] = (-1, [])

    def keys(self) -> list[str]:
        """As `journaled`; the file is read only where it has grown."""
        file = self.run / "journal.jsonl"
        size = file.stat().st_size if file.exists() else 0
        if size != self._seen[0]:
            self._seen = size, journaled(self.run)
        return self._seen[1]

    def look(self) -> bool:
        """Whether the driver lives; notes when its engines came up."""
        if self.ready is None and READY in self.log.read_text(errors="replace")[self.log_at :]:
            self.ready = time.monotonic()
        if time.monotonic() - self.began > self.limit_s:
            raise Hung(f"{self.run}: the driver has not ended after {self.limit_s:g} s")
        return self.process.poll() is None

    def wait_for(self, phase: str, before: Sequence[str]) -> bool:
        """Until `phase` ("start" or a key) runs: all of `before` are journaled and the engines up.
        False where the driver ended first."""
        while self.look():
            keys = self.keys()
            if phase == "start" or (self.ready and all(key in keys for key in before)):
                return True
            time.sleep(POLL_S)
        return False


def before_of(phase: str, order: Sequence[str]) -> list[str]:
    """Keys that are journaled when `phase` begins; evolution and training begin together."""

    def place(key: str) -> tuple[int, int]:
        number, name = key.split("/")
        return int(number), STAGES[name]

    return [] if phase == "start" else [key for key in order if place(key) < place(phase)]


def reference(directory: Path, config: Sequence[str], log: Log) -> Reference:
    run, said = directory / "undisturbed", directory / "undisturbed.log"
    if not (run / "summary.json").exists():
        began = time.monotonic()
        with started(
            "run", *config, f"runs_dir={directory}", "name=undisturbed", log=said
        ) as process:
            attempt = Attempt(
                process, run, said, 3600.0, said.stat().st_size if said.exists() else 0
            )
            while attempt.look():
                time.sleep(0.1)
        if process.returncode:
            raise SystemExit(f"the undisturbed run ended with {process.returncode}: see {said}")
        ready = (attempt.ready or began) - began
        log.add(
            f"undisturbed run: {time.monotonic() - began:.0f} s, of which {ready:.0f} s to start",
            kind="undisturbed", seconds=time.monotonic() - began, start_s=ready,
        )  # fmt: skip
    entries, _ = read_entries(run / "journal.jsonl")
    begun = log.of("undisturbed")
    return Reference(
        final_state(run),
        {entry.key: entry.result["wall"] for entry in entries},
        begun[-1]["start_s"] if begun else 20.0,
    )


@dataclass
class Test:
    directory: Path
    log: Log
    reference: Reference
    seed: int
    kills: int
    a_run: int
    config: Sequence[str]
    limit_s: float

    def go(self) -> int:
        """Runs until `kills` kills are done; how many runs differ."""
        number = 0
        while True:
            verdict = [r for r in self.log.of("verdict") if r["run"] == number]
            left = self.kills - len(self.log.of("kill"))
            mine = len([r for r in self.log.of("kill") if r["run"] == number])
            if not verdict:
                if left <= 0 and not mine:
                    break
                self.one(number, min(self.a_run, mine + max(left, 0)))
            number += 1
        return sum(bool(r["differs"]) for r in self.log.of("verdict"))

    def one(self, number: int, kills: int) -> None:
        """One run with `kills` kills (some may be in the log already), and its verdict."""
        name = f"run-{number:04d}"
        run, said = self.directory / name, self.directory / f"{name}.log"
        problems: list[str] = []
        held: list[bytes] = []
        died: float | None = None
        try:
            while not (run / "summary.json").exists():
                at = said.stat().st_size if said.exists() else 0
                with started(
                    "run", *self.config, f"runs_dir={self.directory}", f"name={name}", log=said
                ) as process:  # fmt: skip
                    attempt = Attempt(process, run, said, self.limit_s, at)
                    while attempt.look() and self.done(number) < kills:
                        self.strike(number, attempt, held)
                    while attempt.look():
                        time.sleep(POLL_S)
                if died is not None and attempt.ready is not None:
                    self.log.add(
                        f"  resumed: engines up {attempt.ready - died:.1f} s after the death",
                        kind="resumed", run=number, resume_s=attempt.ready - died,
                    )  # fmt: skip
                died = time.monotonic()
                if process.returncode not in KNOWN_ENDS:
                    problems.append(f"exit code {process.returncode}")
                    if process.returncode in (2, 70):
                        break
        except Hung as error:
            problems.append(str(error))
        if (run / "summary.json").exists():
            problems += self.differences(run, held)
        else:
            problems.append("the run did not end")
        self.log.add(
            f"{name}: {'DIFFERS: ' + '; '.join(problems) if problems else 'identical'} "
            f"after {self.done(number)} kills; {len(self.log.of('kill'))} of {self.kills} kills done",
            kind="verdict", run=number, kills=self.done(number), differs=problems,
        )  # fmt: skip

    def done(self, number: int) -> int:
        return len([r for r in self.log.of("kill") if r["run"] == number])

    def strike(self, number: int, attempt: Attempt, held: list[bytes]) -> None:
        """One kill at a random time of a random one of the next phases, or of the start."""
        dice = random.Random(f"{self.seed}/{number}/{self.done(number)}")
        order = list(self.reference.phases)
        keys = attempt.keys()
        ahead = [key for key in order if key not in keys]
        choices = [*(["start"] if attempt.ready is None else []), *ahead[:NEXT]]
        phase = dice.choice(choices or order[-1:])
        took = self.reference.start_s if phase == "start" else self.reference.phases[phase]
        delay = dice.uniform(0, took)
        if not attempt.wait_for(phase, before_of(phase, order)):
            return
        end = time.monotonic() + delay
        while time.monotonic() < end and attempt.look():
            time.sleep(min(POLL_S, max(0.0, end - time.monotonic())))
        struck = kill_one(attempt.process.pid, dice)
        if struck is None:
            return
        target, pid = struck
        at = time.time()
        journal = attempt.run / "journal.jsonl"
        keys = journaled(attempt.run)
        held.append(journal.read_bytes().rpartition(b"\n")[0] if keys else b"")
        # What is lost began at the last entry, or when the engines were up.
        lost = 0.0
        if attempt.ready is not None:
            lost = min(
                time.monotonic() - attempt.ready,
                at - journal.stat().st_mtime if keys else float("inf"),
            )
        deadline = time.monotonic() + self.limit_s
        # The next kill waits until this one has been got over, or has ended the driver.
        while attempt.look() and attempt.keys() == keys and time.monotonic() < deadline:
            time.sleep(POLL_S)
        code = attempt.process.poll()
        total = len(self.log.of("kill")) + 1
        running = [key for key in order if key not in keys][:1]
        self.log.add(
            f"kill {total}: {target} {pid} in run {number}, {delay:.1f} s into {phase} "
            f"({len(keys)} of {len(order)} phases journaled, then {running[0] if running else 'the end'}); "
            f"{'the driver ended with ' + str(code) if code is not None else 'the driver went on'}; "
            f"{lost:.1f} s of work under way",
            kind="kill", run=number, target=target, pid=pid, phase=phase, delay_s=round(delay, 2),
            journaled=len(keys), exit=code, lost_s=round(lost, 2),
        )  # fmt: skip

    def differences(self, run: Path, held: Sequence[bytes]) -> list[str]:
        """What of the run is not as it should be."""
        found = final_state(run)
        out = [
            f"{part} differ"
            for part, wanted in self.reference.state.items()
            if found[part] != wanted
        ]
        whole = (run / "journal.jsonl").read_bytes()
        if not all(whole.startswith(part) for part in held):
            out.append("work that was journaled at a kill was lost")
        keys = journaled(run)
        out += [f"phase {key} was done twice" for key, n in Counter(keys).items() if n > 1]
        return out


def summary(log: Log) -> str:
    kills, verdicts = log.of("kill"), log.of("verdict")
    targets = Counter(r["target"] for r in kills)
    went_on = sum(r["exit"] is None for r in kills)
    differ = [r for r in verdicts if r["differs"]]
    lost = sorted(r["lost_s"] for r in kills)
    resumed = sorted(r["resume_s"] for r in log.of("resumed"))
    lines = [
        f"{len(kills)} kills ({', '.join(f'{n} {t}' for t, n in sorted(targets.items()))}) in "
        f"{len(verdicts)} runs; {went_on} were got over without a restart",
        f"{len(verdicts) - len(differ)} of {len(verdicts)} runs identical with the undisturbed one",
    ]
    if lost:
        lines.append(
            f"work under way at a kill: median {lost[len(lost) // 2]:.1f} s, most {lost[-1]:.1f} s"
        )
    if resumed:
        lines.append(
            f"from a driver's death to engines up again: median {resumed[len(resumed) // 2]:.1f} s, "
            f"most {resumed[-1]:.1f} s"
        )
    return "\n".join(lines + [f"run {r['run']} DIFFERS: {'; '.join(r['differs'])}" for r in differ])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dir", type=Path, required=True, help="of the runs; kept")
    parser.add_argument("--log", type=Path, required=True, help="JSON lines; appended to")
    parser.add_argument("--kills-per-run", type=int, default=12)
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds a driver may take")
    parser.add_argument(
        "--config", type=Path, default=QUICKSTART, help="default: a small quickstart"
    )
    parser.add_argument("overrides", nargs="*", help="key=value of the configuration")
    arguments = parser.parse_args()
    os.environ.setdefault("PYTHONPATH", str(ROOT))
    directory = arguments.dir.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    log = Log(arguments.log)
    small = SMALL if arguments.config == QUICKSTART else ()
    config = (str(arguments.config), *small, *arguments.overrides)
    # Ended by a signal, it does not leave its driver behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    found = reference(directory, config, log)
    test = Test(
        directory, log, found, arguments.seed, arguments.kills, arguments.kills_per_run, config,
        arguments.limit,
    )  # fmt: skip
    differ = test.go()
    print(summary(log))
    if differ:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
