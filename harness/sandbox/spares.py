"""Harness processes forked ahead: confined, with the bundle loaded, waiting for an episode of it.

Forking, confining and importing takes several times as long as the rest of a short episode. A spare
serves one episode, as every harness process does; it only begins earlier.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import NamedTuple

from harness.sandbox.episode import Episode, EpisodeEnded
from harness.sandbox.limits import Limits
from harness.sandbox.process import ZygoteProcess

MAX_SPARES = 8
"""Spares of one sandbox at the same time, over all bundles; one takes a few megabytes."""

IDLE_S = 60.0
"""Seconds after which a spare that no episode wanted is ended."""


DELAY_S = 0.02
"""Seconds between the order of a spare and its fork."""


class Key(NamedTuple):
    """What a spare was made for; an episode takes one of its own key only."""

    bundle_id: str
    traced: bool
    limits: Limits


class Spares:
    """The spares of one zygote, `most` at once."""

    def __init__(self, zygote: ZygoteProcess, most: int) -> None:
        self._zygote = zygote
        self._most = most
        self._ready: dict[Episode, Key] = {}  # oldest first
        self._count = 0  # processes, those that begin and those that end included
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, key: Key) -> Episode | None:
        """A spare of that key, which is the caller's from now on; None where there is none."""
        for episode, of in list(self._ready.items()):
            if of == key:
                del self._ready[episode]
                if episode.waiting:
                    self._count -= 1
                    return episode
                self._end(episode)
        return None

    def order(self, key: Key, bundle_line: bytes) -> None:
        """Begin to make a spare; where there are too many, the oldest of another key goes instead."""
        if self._count < self._most:
            self._count += 1
            self._run(self._make(key, bundle_line))
            return
        for episode, of in self._ready.items():
            if of != key:
                del self._ready[episode]
                self._end(episode)
                return

    def close(self) -> None:
        """End all spares; where their loop is closed they are forgotten: the zygote's end is theirs."""
        if not self._zygote.loop.is_closed():
            for episode in self._ready:
                self._end(episode)
        self._ready.clear()

    async def _make(self, key: Key, bundle_line: bytes) -> None:
        # The episode that ordered it has just begun: first let it run.
        await asyncio.sleep(DELAY_S)
        episode = Episode(self._zygote, key.limits)
        try:
            await episode.begin()
        except EpisodeEnded:
            # Not lost on anyone: the next episode forks for itself, and reports what goes wrong.
            self._end(episode)
            return
        episode.load(bundle_line)
        self._ready[episode] = key
        self._zygote.loop.call_later(IDLE_S, self._expire, episode)

    def _expire(self, episode: Episode) -> None:
        if self._ready.pop(episode, None) is not None:
            self._end(episode)

    def _end(self, episode: Episode) -> None:
        async def end() -> None:
            await episode.finish()
            self._count -= 1

        self._run(end())

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task = self._zygote.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
