"""What a round and a run leave for their readers, from what the phases gave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from coevo.config import RunConfig
from coevo.records import (
    BufferStats,
    EvolutionRecord,
    EvolveResult,
    Measured,
    RepeatResult,
    RolloutRecord,
    RoundRecord,
    SplitResult,
    Staleness,
    Summary,
    Tokens,
    TrainRecord,
    VariantRecord,
    Wall,
)
from coevo.rollouts import Serving
from coevo.schedule import Played
from rollout import buffer
from rollout.trajectory import Trajectory


def round_record(
    config: RunConfig,
    number: int,
    serving: Serving,
    version: int,
    played: Played,
    published: Mapping[str, Any],
    stats: buffer.BufferStats,
) -> RoundRecord:
    """serving, version: what the round began with. stats: of the round's window."""
    measured, rolled = played.measured, played.rolled
    evolved, trained = played.evolved, played.trained
    return RoundRecord(
        round=number,
        mode=config.mode,
        harness_id=serving.main,
        policy_version=version,
        evolve=EvolveResult(**rolled["evolve"]),
        rollout=RolloutRecord(**rolled["rollout"]),
        tokens=Tokens(
            prompt=rolled["tokens"][0] + evolved["tokens"][0] + measured["tokens"][0],
            sampled=rolled["tokens"][1] + evolved["tokens"][1] + measured["tokens"][1],
        ),
        measured_tokens=_tokens(measured),
        staleness=Staleness(**trained["staleness"]),
        harness_mix=dict(stats.harness_mix),
        variants={name: VariantRecord(**item) for name, item in rolled["variants"].items()},
        buffer=BufferStats(
            rounds=stats.rounds,
            trajectories=stats.trajectories,
            segments=stats.segments,
            bytes=stats.bytes,
        ),
        evolution=EvolutionRecord(**evolved["summary"]),
        train=TrainRecord(**trained["metrics"], probe_max_abs=published.get("probe_max_abs"))
        if trained["metrics"]
        else None,
        wall=Wall(
            rollout=rolled["wall"],
            evolve=evolved["wall"],
            train=trained["wall"],
            publish=published["wall"],
            heldout=measured["wall"],
            total=played.wall + published["wall"],
        ),
        **{split: SplitResult(**value) for split, value in measured["splits"].items()},
    )


def run_summary(
    config: RunConfig, rounds: Sequence[RoundRecord], last: Mapping[str, Any]
) -> Summary:
    """Of a finished run. last: what its last measurement gave."""
    first = rounds[0]
    return Summary(
        name=config.name,
        arm=config.mode,
        mode=config.mode,
        seed=config.seed,
        rounds=len(rounds),
        initial=Measured(heldout=first.heldout, valid_seen=first.valid_seen, ood=first.ood),
        final=Measured(**{k: SplitResult(**v) for k, v in last["splits"].items()}),
        wall_s=sum(r.wall.total for r in rounds) + last["wall"],
        tokens=Tokens(
            prompt=sum(r.tokens.prompt for r in rounds) + last["tokens"][0],
            sampled=sum(r.tokens.sampled for r in rounds) + last["tokens"][1],
        ),
        measured_tokens=_sum(
            [*(r.measured_tokens for r in rounds if r.measured_tokens), _tokens(last)]
        ),
    )


def evolve_result(scored: Sequence[Trajectory]) -> EvolveResult:
    """Of the round's own episodes that were scored."""
    counts: Counter[tuple[str, bool]] = Counter((t.task_id, t.success) for t in scored)
    return EvolveResult(
        n=len(scored),
        success=_mean([t.success for t in scored]),
        reward=_mean([t.reward for t in scored]),
        repeats=RepeatResult.of(
            (counts[task, True] + counts[task, False], counts[task, True])
            for task in sorted({t.task_id for t in scored})
        ),
    )


def _tokens(phase: Mapping[str, Any]) -> Tokens:
    prompt, sampled = phase["tokens"]
    return Tokens(prompt=prompt, sampled=sampled)


def _sum(tokens: Sequence[Tokens]) -> Tokens:
    return Tokens(prompt=sum(t.prompt for t in tokens), sampled=sum(t.sampled for t in tokens))


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
