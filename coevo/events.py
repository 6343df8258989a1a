"""What happened to a run: attempts, resumptions, requeues, faults; `events.jsonl`, only appended to.

A record for people and for the report; nothing is decided by it. The file's modification time is the
run's last sign of life (`beat`), so that the work that a killed attempt lost can be told.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

SCHEMA = 1
FILE = "events.jsonl"
JOB_FILE = "attempts.jsonl"
"""Written by the job script, outside of Python: a line at each start and end of a Slurm attempt."""

Kind = Literal[
    "attempt_started",  # process, host, job (of Slurm, or None)
    "attempt_ended",  # code (exit code), reason, lost_s
    "resumed",  # key (last journal entry), phases (entries), killed, lost_s, down_s
    "phase",  # key, wall_s: one journal entry was written
    "worker_replaced",  # worker, episodes (issued again), reason
    "episodes_lost",  # count, reasons: ended in infrastructure errors after all retries
    "damaged",  # file, and what was used instead: state on disk that did not verify
    "job_started",  # job, nodes
    "job_ended",  # job, code, stopped, decision
    "requeued",  # as job_ended
]
KINDS: tuple[Kind, ...] = get_args(Kind)
FAULTS: tuple[Kind, ...] = ("worker_replaced", "episodes_lost", "damaged")


class EventError(ValueError):
    """An event of a kind that nobody reads."""


@dataclass(frozen=True, slots=True)
class Event:
    """time: seconds since the epoch. attempt: counted from 1; 0 before the first. fields: by kind."""

    time: float
    kind: Kind
    attempt: int
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def when(self) -> str:
        """The time as text, UTC."""
        return _text(self.time)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One process that worked on the run. ended, code: None while it runs, or where it was killed.

    phases: journal entries it wrote. lost_s: seconds of work since its last journal entry (since its
    start, where it wrote none); None while nobody knows.
    """

    number: int
    started: float
    ended: float | None
    code: int | None
    reason: str
    phases: int
    lost_s: float | None


def add(run: Path, kind: Kind, **fields: Any) -> None:
    """Append an event that happens now to the run in directory `run`."""
    if kind not in KINDS:
        raise EventError(f"event kind is {kind!r}; expected one of: {', '.join(KINDS)}")
    file = run / FILE
    content = file.read_bytes() if file.exists() else b""
    attempt = content.count(b'"kind": "attempt_started"') + (kind == "attempt_started")
    line = {"schema": SCHEMA, "time": _text(datetime.now(UTC).timestamp()), "kind": kind,
            "attempt": attempt, **fields}  # fmt: skip
    # A line torn by a kill must not swallow this one.
    torn = b"" if content.endswith(b"\n") or not content else b"\n"
    with file.open("ab") as out:
        out.write(torn + json.dumps(line, allow_nan=False).encode() + b"\n")


def beat(run: Path) -> None:
    """The run is alive now."""
    os.utime(run / FILE)


def begin(run: Path) -> None:
    """A process starts to work on the run."""
    job = os.environ.get("SLURM_JOB_ID")
    life = _life(run)
    add(run, "attempt_started", process=os.getpid(), host=socket.gethostname(), job=job,
        last_life=life)  # fmt: skip


def resumed(run: Path, keys: Sequence[str]) -> None:
    """The attempt goes on behind the journal entries `keys`; nothing is said of a first attempt."""
    found = events(run)
    tries = attempts(found)
    if len(tries) < 2:
        return
    before, now = tries[-2], tries[-1]
    killed = before.ended is None
    ended, lost = before.ended, before.lost_s
    if ended is None:
        start = next(e for e in found if e.kind == "attempt_started" and e.attempt == now.number)
        ended = start.fields.get("last_life") or before.started
        lost = max(0.0, ended - _last_progress(found, before.number))
    down = max(0.0, datetime.now(UTC).timestamp() - ended)
    add(run, "resumed", key=keys[-1] if keys else None, phases=len(keys), killed=killed,
        lost_s=_tenth(lost), down_s=_tenth(down))  # fmt: skip


def end(run: Path, code: int, reason: str) -> None:
    """The process ends its work on the run with this exit code."""
    found = events(run)
    attempt = attempts(found)[-1]
    now = datetime.now(UTC).timestamp()
    lost = 0.0 if code == 0 else max(0.0, now - _last_progress(found, attempt.number))
    add(run, "attempt_ended", code=code, reason=reason, lost_s=_tenth(lost))


def events(run: Path) -> list[Event]:
    """All events of a run and of its Slurm job, by time; [] where it has none.

    A line torn by a kill is left out; another one that is no event is a `damaged` event itself.
    """
    found = _parsed(run / FILE, _event)
    starts = [e for e in found if e.kind == "attempt_started"]
    found += _parsed(run / JOB_FILE, partial(_job_event, starts))
    return sorted(found, key=lambda event: event.time)


def attempts(found: Sequence[Event]) -> list[Attempt]:
    """The attempts that the events tell of."""
    out = []
    for start in found:
        if start.kind != "attempt_started":
            continue
        own = [e for e in found if e.attempt == start.attempt]
        last = next((e for e in own if e.kind == "attempt_ended"), None)
        after = next(
            (e for e in found if e.kind == "resumed" and e.attempt == start.attempt + 1), None
        )
        told = last or after
        out.append(
            Attempt(
                number=start.attempt,
                started=start.time,
                ended=last.time if last else None,
                code=last.fields["code"] if last else None,
                reason=last.fields["reason"] if last else "killed" if after else "",
                phases=sum(e.kind == "phase" for e in own),
                lost_s=told.fields["lost_s"] if told else None,
            )
        )
    return out


def lost_s(found: Sequence[Event]) -> float:
    """Seconds of work that all attempts lost, as far as is known."""
    return sum(attempt.lost_s or 0.0 for attempt in attempts(found))


def summary(found: Sequence[Event]) -> str:
    """One line: attempts, requeues, work lost, faults by kind."""
    tries = attempts(found)
    parts = [_count(len(tries), "attempt")]
    requeues = sum(e.kind == "requeued" for e in found)
    killed = sum(e.kind == "resumed" and e.fields["killed"] for e in found)
    parts += [_count(requeues, "requeue")] if requeues else []
    parts += [f"{killed} killed"] if killed else []
    if len(tries) > 1:
        parts.append(f"{lost_s(found):.0f} s of work lost")
    for kind in FAULTS:
        count = sum(e.kind == kind for e in found)
        parts += [f"{count} {kind.replace('_', ' ')}"] if count else []
    return ", ".join(parts)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _life(run: Path) -> float | None:
    file = run / FILE
    return file.stat().st_mtime if file.exists() else None


def _last_progress(found: Sequence[Event], attempt: int) -> float:
    """When the attempt wrote its last journal entry; else when it began."""
    return max(
        e.time for e in found if e.attempt == attempt and e.kind in ("attempt_started", "phase")
    )


def _tenth(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


def _text(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).isoformat(timespec="milliseconds")


def _parsed(file: Path, parse: Callable[[dict[str, Any]], Event]) -> list[Event]:
    found: list[Event] = []
    lines = file.read_bytes().split(b"\n") if file.exists() else []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            if value.pop("schema") != SCHEMA:
                raise ValueError(f"expected schema {SCHEMA}")
            found.append(parse(value))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if line.endswith(b"}"):
                before = found[-1] if found else Event(0.0, "damaged", 0)
                told = {
                    "file": f"{file} line {number}",
                    "reason": f"{type(error).__name__}: {error}",
                }
                found.append(Event(before.time, "damaged", before.attempt, told))
    return found


def _event(value: dict[str, Any]) -> Event:
    time = datetime.fromisoformat(value.pop("time")).timestamp()
    kind, attempt = value.pop("kind"), int(value.pop("attempt"))
    if kind not in KINDS:
        raise ValueError(f"kind {kind!r} is none of this version")
    return Event(time, kind, attempt, value)


def _job_event(starts: Sequence[Event], value: dict[str, Any]) -> Event:
    """Of the job script: whole seconds, and its own count of attempts. It starts before the run's
    process and ends after it."""
    fields = {"job": value["job"], "try": value["attempt"], "phases": value["progress"]}
    if value["event"] == "start":
        time = float(value["time"])
        attempt = next((s.attempt for s in starts if s.time >= time), len(starts))
        return Event(time, "job_started", attempt, fields | {"nodes": value["nodes"]})
    time = value["time"] + 0.999
    fields |= {k: value[k] for k in ("code", "stopped", "decision")}
    attempt = max((s.attempt for s in starts if s.time <= time), default=0)
    kind: Kind = "requeued" if value["decision"] == "requeue" else "job_ended"
    return Event(time, kind, attempt, fields)
