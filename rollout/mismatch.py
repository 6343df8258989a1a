"""How far the engine's log-probs are from the trainer's on the same tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Mismatch:
    """|engine − trainer| log-prob of `tokens` sampled tokens, both under the version that sampled
    them: mean, 99th percentile, greatest; in nats."""

    tokens: int
    mean: float
    p99: float
    max: float

    @classmethod
    def of(cls, engine: np.ndarray, trainer: np.ndarray) -> Mismatch | None:
        """engine, trainer: float32 [n] of the same tokens; None for none."""
        if not len(engine):
            return None
        apart = np.abs(engine.astype(np.float64) - trainer)
        return cls(
            len(apart), float(apart.mean()), float(np.quantile(apart, 0.99)), float(apart.max())
        )
