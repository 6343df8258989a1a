"""Stopping a run on request: USR1 or TERM, or a file STOP in its directory.

A request only sets a flag; the loop acts on it before the next phase, when all that was done is on
disk. Slurm's signals come this way: before the time limit, at preemption, at scancel.
"""

from __future__ import annotations

import signal
from pathlib import Path
from types import FrameType

STOP_FILE = "STOP"
SIGNALS = (signal.SIGUSR1, signal.SIGTERM)


class StopRequested(Exception):
    """The run was asked to stop and did, between two phases: resume it."""


class Stop:
    """The flag. A process has one, `STOP`: signals belong to the process."""

    def __init__(self) -> None:
        self._why: str | None = None

    def listen(self) -> None:
        """Take the signals. Main thread only, and again after `ray.init`, which takes SIGTERM."""
        for number in SIGNALS:
            signal.signal(number, self._on)

    def _on(self, number: int, _: FrameType | None) -> None:
        self._why = signal.Signals(number).name

    def check(self, directory: Path) -> None:
        """Raises StopRequested where a signal came, or a STOP file lies in the run's directory.

        The file is taken away: it stops one attempt.
        """
        file = directory / STOP_FILE
        if file.exists():
            self._why = self._why or f"the file {file}"
            file.unlink(missing_ok=True)
        if self._why is not None:
            raise StopRequested(f"stopped between two phases ({self._why})")


STOP = Stop()
