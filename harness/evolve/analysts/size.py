"""How large a digest is, and how one is kept within its size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from harness.evolve.records import Evidence

MAX_DIGEST_TOKENS = 10_000
"""A digest's size at most: 500 times less than 5 million trace tokens (HarnessX §4: ~10M to ~10K)."""


def tokens(items: Iterable[Evidence]) -> int:
    """About four characters each, of what a reader of these items reads."""
    return sum(map(characters, items)) // 4


def characters(item: Evidence) -> int:
    return (
        len(item.task)
        + len(item.instruction)
        + len(item.finding)
        + sum(map(len, item.categories))
        + sum(map(len, item.components))
        + sum(len(excerpt.anchor) + len(excerpt.text) for excerpt in item.excerpts)
    )


def within(items: Sequence[Evidence], max_tokens: int) -> tuple[Evidence, ...]:
    """`items`, most actionable first, brought within `max_tokens`.

    Excerpts and findings are left out first, the least actionable tasks' before others'; then whole
    tasks, in the same order. The first task always stays.
    """
    kept = list(items)
    left = 4 * max_tokens
    used = sum(map(characters, kept))
    for at in range(len(kept) - 1, -1, -1):
        if used <= left:
            break
        bare = replace(kept[at], excerpts=(), finding="")
        used -= characters(kept[at]) - characters(bare)
        kept[at] = bare
    while used > left and len(kept) > 1:
        used -= characters(kept.pop())
    return tuple(kept)
