"""How large an edit may be in a round: RRSI's cosine schedule."""

from __future__ import annotations

import math


def edit_budget(t: int, horizon: int, b_min: int, b_max: int) -> int:
    """b_t = ⌈b_min + (b_max − b_min)·½(1 + cos(πt/T))⌉ edits in round t of T = `horizon`.

    Rounded to 9 digits before the ceiling; rounds past the horizon keep b_min. Raises ValueError
    for b_min < 1, b_max < b_min, horizon < 1 or t < 0.
    """
    if not (1 <= b_min <= b_max and horizon >= 1 and t >= 0):
        raise ValueError(
            f"edit_budget(t={t}, horizon={horizon}, b_min={b_min}, b_max={b_max}): "
            "needs t >= 0, horizon >= 1 and 1 <= b_min <= b_max"
        )
    share = 0.5 * (1 + math.cos(math.pi * min(t, horizon) / horizon))
    return math.ceil(round(b_min + (b_max - b_min) * share, 9))
