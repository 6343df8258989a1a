"""A driver without engines: journals `steps` phases, stops and ends as the real one does.

The job script starts it as it starts `coevo.launcher drive`; its settings stand where the run's
configuration would.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import yaml

from coevo.cli import EXIT_BUG, EXIT_STOPPED
from coevo.launcher import wait_for_head
from coevo.stop import STOP, StopRequested
from harness.evolve.journal import Journal


async def run(directory: Path) -> int:
    settings = yaml.safe_load((directory / "submitted.yaml").read_text())
    journal = Journal(directory / "journal.jsonl")
    began = time.time()

    async def phase() -> float:
        STOP.check(directory)
        await asyncio.sleep(settings.get("seconds", 0.3))
        return began

    head = Path(sys.argv[sys.argv.index("--address-file") + 1])
    if settings.get("ray"):
        import ray

        ray.init(wait_for_head(head, 200), log_to_driver=False)
        STOP.listen()
    for step in range(settings.get("steps", 3)):
        if step == settings.get("bug_at"):
            raise ZeroDivisionError("a bug")
        if step == settings.get("dies_at"):
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            await journal.once(str(step), [], phase)
        except StopRequested as stop:
            print(stop, flush=True)
            return EXIT_STOPPED
    if settings.get("ray"):
        assert [node["Alive"] for node in ray.nodes()] == [True]
    return 0


if __name__ == "__main__":
    STOP.listen()
    code = EXIT_BUG
    try:
        code = asyncio.run(run(Path(sys.argv[-1]).parent))
    except ZeroDivisionError as error:
        print(f"bug: {error}", flush=True)
    sys.exit(code)
