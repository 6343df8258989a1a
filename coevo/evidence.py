"""From rollouts to what evolution may see of them: opaque task keys, digestible traces."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.atomic import write_atomic
from harness.evolve.records import Episode
from harness.evolve.traces import fired, trace_steps

if TYPE_CHECKING:  # readers of runs name tasks too, and need no engine
    from rollout.episode import EpisodeResult


def task_key(task_id: str) -> str:
    """The opaque key of a task: equal for runs of the same one, silent about which it is."""
    return hashlib.sha256(task_id.encode()).hexdigest()[:12]


def evidence(result: EpisodeResult, instruction: str, ref: str) -> Episode:
    """One rollout as evolution sees it. ref: root of excerpt anchors."""
    trajectory = result.trajectory
    return Episode(
        task=task_key(trajectory.task_id),
        seed=trajectory.seed,
        harness_id=trajectory.harness_id,
        outcome=trajectory.outcome.kind,
        success=trajectory.success,
        reward=trajectory.reward,
        steps=trajectory.steps,
        instruction=instruction,
        features=dict(trajectory.features),
        trace=trace_steps(result.trace) if result.trace else (),
        fired=fired(result.trace) if result.trace else {},
        tokens=trajectory.cost.prompt_tokens + trajectory.cost.sampled_tokens,
        ref=ref,
    )


def write_traces(path: Path, results: Sequence[EpisodeResult]) -> None:
    """Both traces of each episode, one JSON line each, gzipped; atomic."""
    lines = [
        json.dumps({"id": r.trajectory.id, "trace": r.trace}, separators=(",", ":"))
        for r in results
    ]
    # mtime 0: the same traces give the same bytes.
    write_atomic(path, gzip.compress(("\n".join(lines) + "\n").encode(), 1, mtime=0))
