"""Log records of an actor's process, kept until its owner fetches them.

Ray's own log files stay on the actor's node and go with the session; the owner writes what it
fetches where it keeps its own log.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from typing import TypedDict

PACKAGES = ("harness", "rollout", "trainer", "coevo")
LIBRARIES = ("vllm", "DeepSpeed")
"""Loggers that keep their records from the root logger."""
KEPT = 1000


class Said(TypedDict):
    """One record: its logger, level, text, and the time in seconds since the epoch."""

    name: str
    levelno: int
    levelname: str
    msg: str
    created: float


class Kept(logging.Handler):
    """The newest records of this process: INFO of our packages, WARNING of everything else."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._records: deque[Said] = deque(maxlen=KEPT)
        self._last: logging.LogRecord | None = None

    @classmethod
    def install(cls) -> Kept:
        """On the loggers of this process."""
        kept = cls()
        logging.getLogger().addHandler(kept)
        for name in PACKAGES:
            logging.getLogger(name).setLevel(logging.INFO)
        for name in LIBRARIES:
            logging.getLogger(name).addHandler(kept)
        return kept

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.WARNING and record.name.split(".")[0] not in PACKAGES:
            return
        if record is self._last:  # from a library's logger and from the root's
            return
        self._last = record
        self._records.append(
            Said(
                name=record.name, levelno=record.levelno, levelname=record.levelname,
                msg=record.getMessage(), created=record.created,
            )
        )  # fmt: skip

    def fetch(self) -> list[Said]:
        """What was kept since the last call, oldest first."""
        found = []
        while self._records:
            found.append(self._records.popleft())
        return found


def replay(said: Iterable[Said], actor: str) -> None:
    """Give the records of `actor` to this process's handlers; `quiet`: none is for the screen."""
    for item in said:
        record = logging.makeLogRecord({**item, "actor": actor, "quiet": True})
        logging.getLogger(item["name"]).handle(record)
