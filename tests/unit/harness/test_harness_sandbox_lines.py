"""Lines over a socket, on the event loops that a worker may run on."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from harness.sandbox.lines import Lines


async def echo() -> list[bytes]:
    """Two lines that one end sends, as the other end gets them."""
    got: list[bytes] = []
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    ours, theirs = socket.socketpair()
    here = Lines(got.append, lambda _: over.set_result(None), 100)
    there = Lines(lambda _: None, lambda _: None, 100)
    await here.attach(ours)
    await there.attach(theirs)
    there.send(b"one\ntw")
    there.send(b"o\n")
    await asyncio.sleep(0.05)
    there.close()
    await asyncio.wait_for(over, 20)
    return got


def uvloop_run(main: Coroutine[Any, Any, list[bytes]]) -> list[bytes]:
    """As Ray's actors do where uvloop is installed."""
    uvloop = pytest.importorskip("uvloop")
    return uvloop.run(main)


@pytest.mark.parametrize("run", [asyncio.run, uvloop_run])
def test_whole_lines_arrive(run: Callable[[Any], list[bytes]]) -> None:
    assert run(echo()) == [b"one", b"two"]
