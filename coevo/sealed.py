"""The journal of sealed reads: one line each time that a run reads tasks which it measures on."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

from harness.atomic import fsync
from rollout.task import SealedRead

SCHEMA = 1


class SealedReads:
    """Append-only JSON lines at `path`, each synced before the tasks are given out.

    A log of what was read, not part of the run's result: a measurement that was killed and is done
    again stands there twice. A line that a kill tore is ended before the next one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, read: SealedRead) -> None:
        line = json.dumps({"schema": SCHEMA, **asdict(read)}, allow_nan=False) + "\n"
        new = not self.path.exists()
        with self.path.open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())
        if new:
            fsync(self.path.parent)
