"""Admission of rollouts by staleness: nothing is generated that would be too old when it trains."""

from __future__ import annotations

import threading
from dataclasses import dataclass


class StalenessError(ValueError):
    """The counts do not add up: an episode ended that was never admitted."""


@dataclass(frozen=True, slots=True)
class AdmissionCounts:
    """Episodes that run now; accepted for training; rejected or filtered."""

    running: int
    accepted: int
    rejected: int


class StalenessManager:
    """How many further episodes may start, so that those that end in the order in which they started
    are at most `max_staleness` versions old when they train.

        capacity = (max_staleness + version + 1) · batch − (running + accepted)

    The trainer consumes `batch` episodes a version in the order in which they were accepted: the
    k-th (from 0) trains version ⌊k / batch⌋ into the next one, so it may start once the policy
    stands at ⌊k / batch⌋ − max_staleness. With max_staleness 0 rollout and training alternate.
    An episode that others overtook may be older: the buffer drops it at pull
    (`ReplayBuffer.select`), and it is released here.

    A rejected episode (an infrastructure error) and an accepted one that is filtered later (a group
    without advantage, a row too old at pull) give their room back; else a run whose groups are
    filtered would wait for ever. Safe to call from several threads.

    batch: episodes a version. accepted: those of the buffer that a resumed run continues.
    Source: AReaL's staleness control (arXiv 2505.24298, §5.1), with release of filtered groups.
    """

    def __init__(self, batch: int, max_staleness: int, accepted: int = 0) -> None:
        if batch < 1 or max_staleness < 0 or accepted < 0:
            raise ValueError(
                f"staleness: batch is {batch}, max_staleness {max_staleness} and accepted "
                f"{accepted}; expected at least 1, 0 and 0"
            )
        self.batch = batch
        self.max_staleness = max_staleness
        self._lock = threading.Lock()
        self._running, self._accepted, self._rejected = 0, accepted, 0

    def capacity(self, version: int) -> int:
        """Episodes that may start now under policy `version`; below 0 where too many run."""
        with self._lock:
            return self._capacity(version)

    def admit(self, version: int, wanted: int) -> int:
        """Start up to `wanted` episodes: how many, 0 where there is no room."""
        with self._lock:
            admitted = max(0, min(wanted, self._capacity(version)))
            self._running += admitted
            return admitted

    def accept(self, n: int = 1) -> None:
        """`n` running episodes ended and will train."""
        with self._lock:
            self._end(n, "accepted")
            self._accepted += n

    def reject(self, n: int = 1) -> None:
        """`n` running episodes ended and will not train."""
        with self._lock:
            self._end(n, "rejected")
            self._rejected += n

    def release(self, n: int) -> None:
        """`n` accepted episodes were filtered before they trained."""
        with self._lock:
            if n > self._accepted:
                raise StalenessError(
                    f"staleness: {n} accepted episodes are released, {self._accepted} are there; "
                    "an episode is accepted once and released at most once"
                )
            self._accepted -= n
            self._rejected += n

    @property
    def counts(self) -> AdmissionCounts:
        with self._lock:
            return AdmissionCounts(self._running, self._accepted, self._rejected)

    def _capacity(self, version: int) -> int:
        return (self.max_staleness + version + 1) * self.batch - self._running - self._accepted

    def _end(self, n: int, what: str) -> None:
        if n > self._running:
            raise StalenessError(
                f"staleness: {n} episodes are {what}, {self._running} are running; each admitted "
                "episode ends once"
            )
        self._running -= n
