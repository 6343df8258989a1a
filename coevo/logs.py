"""The structured log of a run: one JSON line a record in `log.jsonl`, with round, phase and actor.

Records come from the driver's own loggers and from its actors (rollout.logs). One that carries an
`event` is a fault: it stands among the run's events too.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path

from coevo import events
from rollout.logs import PACKAGES

FILE = "log.jsonl"
_at: ContextVar[tuple[int | None, str | None]] = ContextVar("at", default=(None, None))


@contextmanager
def within(key: str) -> Iterator[None]:
    """What is logged meanwhile, here and in the tasks and threads started here, belongs to the
    phase of this journal key, for example "3/rollout"."""
    first, _, rest = key.partition("/")
    token = _at.set((int(first), rest) if first.isdecimal() else (None, key))
    try:
        yield
    finally:
        _at.reset(token)


@contextmanager
def logging_to(run: Path) -> Iterator[None]:
    """Write the log of the run in directory `run`; what the screen shows stays as it is."""
    root = logging.getLogger()
    lines = _Lines(run)
    # Without a handler of its own Python prints warnings; with one it no longer would.
    screen = None if root.handlers else _Screen()
    handlers = [handler for handler in (lines, screen) if handler is not None]
    levels = {name: logging.getLogger(name).level for name in PACKAGES}
    for handler in handlers:
        root.addHandler(handler)
    for name in PACKAGES:
        logging.getLogger(name).setLevel(logging.INFO)
    try:
        yield
    finally:
        for handler in handlers:
            root.removeHandler(handler)
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        lines.close()


class _Lines(logging.Handler):
    def __init__(self, run: Path) -> None:
        super().__init__(logging.INFO)
        self._run = run
        self._file = (run / FILE).open("a", encoding="utf-8")

    def emit(self, record: logging.LogRecord) -> None:
        round, phase = _at.get()
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "run": self._run.name,
            "round": round,
            "phase": phase,
            "actor": getattr(record, "actor", "driver"),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = logging.Formatter().formatException(record.exc_info)
        try:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
            if event := getattr(record, "event", None):
                events.add(self._run, event, **getattr(record, "fields", {}))
        except OSError:  # a full disk: logging must not end the run
            self.handleError(record)

    def close(self) -> None:
        self._file.close()
        super().close()


class _Screen(logging.StreamHandler):  # type: ignore[type-arg]
    """What Python prints by itself: the text of warnings, but those that are for the log alone."""

    def __init__(self) -> None:
        super().__init__()
        self.setLevel(logging.WARNING)

    def filter(self, record: logging.LogRecord) -> bool:
        return not getattr(record, "quiet", False)
