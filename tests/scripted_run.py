"""A run without engines, as a process of its own: the real loop, journal, buffer and store over
episodes that a rule ends at once.

    python tests/scripted_run.py RUNS_DIR

Exit code and message as `coevo run` gives them.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from coevo.config import load_config
from coevo.live import LiveTable
from coevo.loop import Loop
from coevo.rundir import RunDir
from coevo.session import KNOWN, failure
from coevo.stack import Stack
from rollout.episode import EpisodeResult
from rollout.spec import EpisodeSpec
from rollout.trajectory import Cost, Outcome, Trajectory

ROOT = Path(__file__).resolve().parents[1]


class Pool:
    """Ends every episode by its seed and harness."""

    async def run(
        self,
        specs: Sequence[EpisodeSpec],
        bundles: Any,
        level: str,
        done: Callable[[Any], None],
        admission: Any = None,
    ) -> list[EpisodeResult]:
        return [EpisodeResult(_ended(spec)) for spec in specs]


def _ended(spec: EpisodeSpec) -> Trajectory:
    success = random.Random(f"{spec.seed} {spec.harness_id}").random() < 0.5
    return Trajectory(
        spec.id, spec.task.id, spec.round, spec.role, spec.harness_id, spec.policy_version,
        spec.seed, Outcome("completed"), float(success), success, 3, (), Cost(10, 2), {},
        dict(spec.task.features),
    )  # fmt: skip


def main(runs: Path) -> int:
    config = load_config(
        ROOT / "configs" / "smoke.yaml", [f"runs_dir={runs}", "name=it", "mode=harness", "rounds=1"]
    )
    stack = Stack(config, None, cast(Any, None), cast(Any, Pool()), "in_process", "")
    try:
        run = RunDir.create(runs / "it", config, {})
        with run:
            asyncio.run(Loop(run, config, stack, LiveTable(None)).go())
    except KNOWN as error:
        told = failure(error)
        if told is None:
            raise
        print(told[0], file=sys.stderr)
        return told[1]
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
