"""Runs an episode in this very process: for bundles of built-in parts only (demos, tests, timing)."""

from __future__ import annotations

import os
import uuid
from functools import lru_cache
from pathlib import Path

from harness.build import BoundProcessor, build, missing_tools
from harness.bundle import Bundle, load
from harness.events import TaskView
from harness.host import Host, ToolReply
from harness.metered import Budgets
from harness.pipeline import Pipeline
from harness.runloop import RunResult, run
from harness.sandbox.launcher import Ran
from harness.sandbox.limits import Limits
from harness.trace import Level, Trace

LEVEL = "in_process"


async def run_inprocess(
    bundle: Bundle | str | os.PathLike[str],
    task: TaskView,
    observation: ToolReply,
    host: Host,
    *,
    seed: int,
    budgets: Budgets,
    limits: Limits | None = None,
    trace_level: Level = "agent",
    run_id: str = "",
) -> Ran:
    """`Sandbox.run` without isolation; `limits` are not enforced here.

    Raises BuildError for a bundle with code of its own: that runs in the sandbox only.
    """
    if not isinstance(bundle, Bundle):
        bundle = load(Path(bundle))
    bound, pipeline = _pipeline(bundle)
    trace = Trace(run_id or uuid.uuid4().hex, trace_level)
    problems = missing_tools(bound, [tool.name for tool in task.tools])
    if problems:
        result = RunResult("harness_error", f"the bundle cannot run: {'; '.join(problems)}", 0, "")
        trace.end(result.status, result.reason, 0)
    else:
        result = await run(
            pipeline,
            task,
            observation,
            host,
            seed=seed,
            budgets=budgets,
            files=bundle.contents(),
            trace=trace,
        )
    return Ran(result, None if trace_level == "off" else trace.to_json(), LEVEL)


@lru_cache(maxsize=64)
def _pipeline(bundle: Bundle) -> tuple[list[BoundProcessor], Pipeline]:
    bound = build(bundle, allow_own_code=False)
    return bound, Pipeline(bound)
