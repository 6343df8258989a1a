"""Reads the household world's sentences: what was picked up, put down, treated, seen and where.

The sentences are ALFWorld's; each function takes one observation's text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_ARRIVE = re.compile(r"^You arrive at (?P<place>[a-z]+ \d+)\.")
_OPEN = re.compile(r"^You open the (?P<place>[a-z]+ \d+)\.")
_SEEN = re.compile(r"(?:On the [a-z]+ \d+|In it), you see (?P<items>.+?)\.(?:\s|$)")
_TAKE = re.compile(r"^You pick up the (?P<item>[a-z]+ \d+) from the (?P<place>[a-z]+ \d+)")
_PUT = re.compile(r"^You move the (?P<item>[a-z]+ \d+) to the (?P<place>[a-z]+ \d+)")
_TREAT = re.compile(r"^You (?P<verb>clean|heat|cool) the (?P<item>[a-z]+ \d+)")
_TASK = re.compile(r"Your task is to: (?P<task>.*?)\.?\s*$", re.S)
_ITEM = re.compile(r"[a-z]+ \d+")
_TREATED = {"clean": "clean", "heat": "hot", "cool": "cool"}


@dataclass(frozen=True, slots=True)
class Facts:
    """What one observation says. `seen` is None where no contents are shown (a closed place)."""

    place: str | None = None
    seen: tuple[str, ...] | None = None
    taken: str | None = None
    put: str | None = None
    treated: tuple[str, str] | None = None  # (item, "clean" | "hot" | "cool")


def facts(text: str) -> Facts:
    """Facts of one observation; an unknown sentence gives an empty record."""
    at = _ARRIVE.match(text) or _OPEN.match(text)
    seen = _SEEN.search(text)
    take, put, treat = _TAKE.match(text), _PUT.match(text), _TREAT.match(text)
    return Facts(
        place=at["place"] if at else None,
        seen=tuple(_ITEM.findall(seen["items"])) if seen and at else None,
        taken=take["item"] if take else None,
        put=put["item"] if put else None,
        treated=(treat["item"], _TREATED[treat["verb"]]) if treat else None,
    )


def task_of(text: str) -> str | None:
    """The goal sentence of an opening observation, without its full stop; None if there is none."""
    found = _TASK.search(text)
    return found["task"].strip() if found else None


def noun(item: str) -> str:
    """`apple 2` -> `apple`."""
    return item.rsplit(" ", 1)[0]
