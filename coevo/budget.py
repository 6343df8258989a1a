"""What a run spent to learn: tasks, episodes, tokens, wall time, GPU seconds; how arms differ in it.

Held-out measurements are counted apart: every arm is measured alike, and they teach nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from coevo.config import ConfigError, parse_config
from coevo.placement import gpus_needed
from coevo.runs import Run


@dataclass(frozen=True, slots=True)
class Budget:
    """Of one run, or the mean over an arm's. None: the records do not say.

    tasks: rolled out, each counted in every round. episodes: those of rounds, of evolution and of
    best_of_n's repeats. tokens: prompt and sampled ones of these episodes, and what language models
    of evolution took. measured_tokens: of held-out measurements. wall_s: of all phases. gpu_s: GPUs
    that the run holds times wall_s.
    """

    tasks: float
    episodes: float | None
    tokens: float | None
    measured_tokens: float | None
    wall_s: float
    gpu_s: float | None

    @classmethod
    def of(cls, run: Run) -> Budget:
        """What `run` spent so far."""
        gpus, measured = _gpus(run), run.measured_tokens
        models = [r.evolution.llm for r in run.rounds]
        return cls(
            tasks=float(_tasks(run)),
            episodes=_episodes(run),
            tokens=None
            if measured is None
            else float(run.tokens.total - measured.total)
            + sum(m.prompt_tokens + m.completion_tokens for m in models if m is not None),
            measured_tokens=None if measured is None else float(measured.total),
            wall_s=run.wall_s,
            gpu_s=None if gpus is None else gpus * run.wall_s,
        )

    @classmethod
    def mean(cls, budgets: Sequence[Budget]) -> Budget:
        """A run's share of several."""
        means: dict[str, Any] = {}
        for name in (f.name for f in fields(cls)):
            values = [getattr(budget, name) for budget in budgets]
            means[name] = None if None in values else sum(values) / len(values)
        return cls(**means)

    def over(self, other: Budget) -> dict[str, float | None]:
        """Relative difference to `other`, by quantity: 0.038 is 3.8% more; None where `other` has
        none of it or either is not known."""
        mine, theirs = asdict(self), asdict(other)
        return {
            name: (mine[name] - theirs[name]) / theirs[name]
            if mine[name] is not None and theirs[name]
            else None
            for name in mine
        }

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def _tasks(run: Run) -> int:
    if run.best_of_n is not None:
        return len(run.best_of_n.attempts())
    settings = run.config.get("tasks")
    per_round = settings.get("per_round", 0) if isinstance(settings, dict) else 0
    return per_round * len(run.rounds)


def _episodes(run: Run) -> float | None:
    if run.best_of_n is not None:
        return float(len(run.best_of_n.episodes) - len(run.best_of_n.attempts()))
    if not all(r.rollout.outcomes for r in run.rounds):
        return None
    return float(sum(sum(r.rollout.outcomes.values()) + r.evolution.rollouts for r in run.rounds))


def _gpus(run: Run) -> int | None:
    try:
        return gpus_needed(parse_config(run.config))
    except ConfigError:
        return None  # of another version, or damaged: shown as not known
