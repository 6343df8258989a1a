"""An asyncio event loop whose clock jumps to the next event: hours of waiting run in no time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Stuck(RuntimeError):
    """Everything waits and nothing is due: a dead lock in what is simulated."""


class _Selector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Stuck("every task waits for another one and no timer is set")
        self.now += max(0.0, timeout)
        return super().select(0)


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._virtual.now


def run(main: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run, on virtual time from 0. No threads or sockets: they would not be waited for.

    Raises Stuck where nothing can ever happen again.
    """
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(main)
