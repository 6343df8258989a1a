"""Texts and lists brought within a size, with a mark that says what is missing."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any


def readable(text: str) -> str:
    """The same text; lone surrogates, which UTF-8 cannot hold, become `?`."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def head_and_tail(text: str, limit: int, tail: float = 0.5) -> str:
    """`text` within about `limit` characters: its two ends, and how much was cut between them.

    tail: the share of the end. The mark comes on top of the limit.
    """
    if len(text) <= limit:
        return text
    last = int(limit * tail)
    mark = f" … [{len(text) - limit} characters cut] … "
    return text[: limit - last] + mark + (text[-last:] if last else "")


def middle_out(entries: Iterable[Any], limit: int) -> tuple[list[Any], int]:
    """Entries within `limit` characters of JSON, the middle left out, and how many were."""
    listed = list(entries)
    sizes = [len(json.dumps(entry)) for entry in listed]
    if sum(sizes) <= limit:
        return listed, 0
    head, used = 0, 0
    while used + sizes[head] <= limit // 2:
        used += sizes[head]
        head += 1
    tail = len(listed)
    while tail > head and used + sizes[tail - 1] <= limit:
        tail -= 1
        used += sizes[tail]
    return listed[:head] + listed[tail:], tail - head
