"""Lines over a socket of an asyncio loop: whole ones in, handed on as they come, and whole ones out.

A protocol and not a stream: a message is handled where it arrives, without a task that waits for it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import cast


class LineTooLong(ValueError):
    """The other side sent more bytes than a line may have."""


class Lines(asyncio.Protocol):
    """One end of a line-wise conversation.

    line: called with each line, without its end. ended: called once, when no more will come: with
    None where the other side hung up, with the error where it broke or where `line` raised.
    limit: bytes of a line; a longer one ends the conversation with LineTooLong.
    """

    def __init__(
        self,
        line: Callable[[bytes], None],
        ended: Callable[[Exception | None], None],
        limit: int,
    ) -> None:
        self._line = line
        self._ended = ended
        self._limit = limit
        self._parts: list[bytes] = []  # of the line that has not ended yet
        self._size = 0
        self._open = True
        self._transport: asyncio.Transport | None = None

    async def attach(self, sock: socket.socket) -> None:
        """Talk over `sock`, which is closed with this."""
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: self, sock=sock)

    def send(self, data: bytes) -> None:
        """Never waits; what the other side has not read yet is kept. Ignored once it is closed."""
        if self._transport is not None:
            self._transport.write(data)

    @property
    def unsent(self) -> int:
        """Bytes that are still to go out."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def close(self) -> None:
        """Hang up at once, without `ended`; what is unsent is lost."""
        self._open = False
        if self._transport is not None:
            self._transport.abort()

    # What the loop calls:

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not isinstance: a transport of uvloop, which Ray's actors run on, is one by its methods only.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        *whole, rest = data.split(b"\n")
        for line in whole:
            if self._parts:
                line = b"".join((*self._parts, line))
                self._parts.clear()
                self._size = 0
            if len(line) > self._limit:
                self._too_long()
            if not self._open:
                return
            self._line(line)
        if rest and self._open:
            self._parts.append(rest)
            self._size += len(rest)
            if self._size > self._limit:
                self._too_long()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._end(error)

    def _too_long(self) -> None:
        self._parts.clear()
        self._end(LineTooLong(f"a line has more than {self._limit} bytes"))
        self.close()

    def _end(self, error: Exception | None) -> None:
        if self._open:
            self._open = False
            self._ended(error)
