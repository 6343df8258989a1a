"""Times what a harness adds to an episode: processors, the trace, the sandbox, a process a time.

Run it with `python benchmarks/harness_overhead.py`. The model and the environment answer at once,
so that only the harness is timed; every number is the smallest of several repeats.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import pairwise

from harness.bundle import Bundle
from harness.component import Component, File
from harness.events import TaskView
from harness.host import ModelReply, ModelRequest, ToolReply, ToolRequest
from harness.metered import Budgets
from harness.pipeline import Pipeline
from harness.processor import Processor
from harness.runloop import run
from harness.sandbox import Ran, Sandbox
from harness.sandbox.containment import SandboxUnavailable
from harness.trace import LEVELS, Level, Trace

HOOKS = ("step_start", "before_model", "after_model", "before_tool", "after_tool", "step_end")
SOURCE = "from harness.processor import Processor\nclass Own(Processor):\n" + "".join(
    f"    def {hook}(self, event, ctx):\n        yield event\n" for hook in HOOKS
)
MODEL_S = 0.005
"""A fast model call, for the share that a trace takes of a real episode."""

TASK = TaskView("find it", "world", action_tool="act")
FIRST = ToolReply("You are in a room.", choices=("look", "go north", "take the lamp"))


class Instant:
    """A host that answers at once, like a small text world with a small model."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    async def model(self, request: ModelRequest) -> ModelReply:
        self.asked.append(time.perf_counter())
        return ModelReply("look", prompt_tokens=80, sampled_tokens=2)

    async def tool(self, request: ToolRequest) -> ToolReply:
        return ToolReply("You see a lamp.", choices=FIRST.choices)


class Bound:
    def __init__(self, id: str, processor: Processor) -> None:
        self.id = id
        self.processor = processor


def bundle(count: int) -> Bundle:
    parts = tuple(Component(f"own-{i:02}", "processor", "own.py:Own") for i in range(count))
    return Bundle(parts, {"own.py": File(SOURCE.encode())} if count else {})


def pipeline(count: int) -> Pipeline:
    namespace: dict[str, type[Processor]] = {}
    exec(SOURCE, namespace)  # type: ignore[arg-type]
    return Pipeline([Bound(f"own-{i:02}", namespace["Own"]()) for i in range(count)])


async def best(
    repeats: int,
    action: Callable[[], Awaitable[object]],
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """The smallest time of `repeats` by `clock`, in seconds."""
    times = []
    for _ in range(repeats):
        start = clock()
        await action()
        times.append(clock() - start)
    return min(times)


async def in_process(pipes: Pipeline, steps: int, level: Level) -> None:
    trace = Trace("run", level)
    budgets = Budgets(max_steps=steps)
    await run(pipes, TASK, FIRST, Instant(), seed=1, budgets=budgets, trace=trace)


async def measure(repeats: int, steps: int, levels: list[str]) -> None:
    print(f"in process, {steps} steps an episode, six hooks a processor, trace off, CPU time")
    base = 0.0
    for count in (0, 5, 20):
        pipes = pipeline(count)
        took = await best(repeats, partial(in_process, pipes, steps, "off"), time.process_time)
        each = (took - base) / (steps * count * len(HOOKS)) if count else 0.0
        base = base or took
        extra = f", {each * 1e6:.2f} µs a processor call" if count else ""
        print(f"  {count:2} processors: {took / steps * 1e6:7.1f} µs a step{extra}")

    print("trace, 5 processors in process (alternating)")
    pipes = pipeline(5)
    # As the zygote does: what a harness process starts with is no garbage to look through.
    gc.collect()
    gc.freeze()
    times: dict[Level, list[float]] = {"off": [1e9], "agent": [1e9], "full": [1e9]}
    for _ in range(3 * repeats):
        for traced, seen in times.items():
            gc.collect()
            seen.append(await best(1, partial(in_process, pipes, steps, traced), time.process_time))
    gc.unfreeze()
    off = min(times["off"])
    alone = min(times["full"]) - min(times["agent"])
    print(f"  the harness trace alone: {alone / off:+.1%} of the loop's own time")
    for traced in LEVELS[1:]:
        more = min(times[traced]) - off
        print(
            f"  {traced:5}: {more / steps * 1e6:+.1f} µs a step, {more / off:+.1%} of the loop's own "
            f"time, {more / (off + steps * MODEL_S):+.2%} with a model that takes "
            f"{MODEL_S * 1e3:.0f} ms a call"
        )

    plain = await best(repeats, lambda: _subprocess([sys.executable, "-S", "-c", "pass"]))
    print(f"a bare interpreter process: {plain * 1e3:.1f} ms")
    for level in levels:
        await measure_sandbox(level, repeats, steps)


async def measure_sandbox(level: str, repeats: int, steps: int) -> None:
    sandbox = Sandbox(level)  # type: ignore[arg-type]
    try:
        start = time.perf_counter()
        await sandbox.start()
    except SandboxUnavailable as error:
        print(f"sandbox {level}: not here: {error}")
        return
    print(f"sandbox {level}: zygote started in {time.perf_counter() - start:.2f} s")

    fastest = 1e9

    async def episode(parts: Bundle, count: int) -> Ran:
        nonlocal fastest
        host = Instant()
        budgets = Budgets(max_steps=count)
        ran = await sandbox.run(
            parts, TASK, FIRST, host, seed=1, budgets=budgets, trace_level="off"
        )
        fastest = min([fastest, *(b - a for a, b in pairwise(host.asked))])
        if ran.result.status != "truncated":
            raise SystemExit(f"the episode failed: {ran.result}")
        return ran

    for count in (0, 5, 20):
        parts = bundle(count)
        fastest = 1e9
        one = await best(repeats, partial(episode, parts, 1))
        many = await best(repeats, partial(episode, parts, 1 + steps))
        print(
            f"  {count:2} processors: episode of one step {one * 1e3:6.1f} ms, "
            f"each further step {(many - one) / steps * 1e6:7.1f} µs (fastest {fastest * 1e6:.0f})"
        )
    parts = bundle(0)
    together = os.cpu_count() or 1
    many = await best(
        repeats, lambda: asyncio.gather(*(episode(parts, 1) for _ in range(4 * together)))
    )
    print(f"  {4 * together} episodes of one step at once: {many / 4 / together * 1e3:.1f} ms each")
    await sandbox.close()


async def _subprocess(command: list[str]) -> None:
    subprocess.run(command, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument(
        "--levels", nargs="*", default=["bubblewrap", "landlock", "unsafe_local"], metavar="LEVEL"
    )
    options = parser.parse_args()
    asyncio.run(measure(options.repeats, options.steps, options.levels))


if __name__ == "__main__":
    main()
