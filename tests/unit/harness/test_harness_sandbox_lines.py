"""Lines over a socket: whole ones, in order, however the bytes arrive; a long one ends it."""

from __future__ import annotations

import asyncio
import socket

from hypothesis import given
from hypothesis import strategies as st

from harness.sandbox.lines import Lines, LineTooLong


class Ear:
    """Hears what comes, and how it ended."""

    def __init__(self, limit: int = 100) -> None:
        self.heard: list[bytes] = []
        self.ends: list[Exception | None] = []
        self.lines = Lines(self.heard.append, self.ends.append, limit)


@given(st.lists(st.binary(max_size=20).map(lambda b: b.replace(b"\n", b"."))), st.data())
def test_lines_arrive_whole_however_they_are_cut(lines: list[bytes], data: st.DataObject) -> None:
    sent = b"".join(line + b"\n" for line in lines) + b"rest"
    ear = Ear()
    while sent:
        size = data.draw(st.integers(1, len(sent)))
        ear.lines.data_received(sent[:size])
        sent = sent[size:]
    assert (ear.heard, ear.ends) == (lines, [])


def test_a_line_past_the_limit_ends_it_also_before_it_is_whole() -> None:
    for data in (b"x" * 101, b"x" * 101 + b"\nnext\n"):
        ear = Ear()
        ear.lines.data_received(b"fine\n" + data)
        assert ear.heard == [b"fine"]
        assert [type(end) for end in ear.ends] == [LineTooLong]
    ear = Ear()
    ear.lines.data_received(b"x" * 60)
    ear.lines.data_received(b"x" * 40 + b"\n")
    assert ear.heard == [b"x" * 100]


def test_two_ends_talk_until_one_hangs_up() -> None:
    async def talk() -> tuple[Ear, Ear]:
        one, two = Ear(), Ear()
        ours, theirs = socket.socketpair()
        await one.lines.attach(ours)
        await two.lines.attach(theirs)
        one.lines.send(b"a\nb\n")
        while len(two.heard) < 2:
            await asyncio.sleep(0)
        assert two.lines.unsent == 0
        two.lines.close()
        while not one.ends:
            await asyncio.sleep(0)
        one.lines.send(b"nobody hears this\n")
        return one, two

    one, two = asyncio.run(talk())
    assert two.heard == [b"a", b"b"]
    assert (one.ends, two.ends) == ([None], [])
