"""Times what a harness adds to an episode: processors, the trace, the sandbox.

Run it with `python benchmarks/harness_overhead.py`. The model and the environment answer at once,
so that only the harness is timed. Times are given as median (fastest): where the two are far apart
other programs had the processors, and the fastest is the nearer one. What two processes need to
pass a message at all is printed first, for comparison.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import pairwise
from statistics import median

from harness.bundle import Bundle
from harness.component import Component, File
from harness.events import TaskView
from harness.host import ModelReply, ModelRequest, ToolReply, ToolRequest
from harness.metered import Budgets
from harness.pipeline import Pipeline
from harness.processor import Processor
from harness.runloop import run
from harness.sandbox import Sandbox
from harness.sandbox.containment import SandboxUnavailable
from harness.trace import LEVELS, Level, Trace

HOOKS = ("step_start", "before_model", "after_model", "before_tool", "after_tool", "step_end")
SOURCE = "from harness.processor import Processor\nclass Own(Processor):\n" + "".join(
    f"    def {hook}(self, event, ctx):\n        yield event\n" for hook in HOOKS
)
COUNTS = (0, 5, 20)
US, MS = 1e-6, 1e-3
PAUSE_S = 0.05
"""Between two episodes: less than a real one takes."""

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


def bundle(count: int, variant: int = 0) -> Bundle:
    """`count` processors; another bundle for each `variant`."""
    parts = tuple(Component(f"own-{i:02}", "processor", "own.py:Own") for i in range(count))
    return Bundle(parts, {"own.py": File(f"{SOURCE}# {variant}".encode())})


def pipeline(count: int) -> Pipeline:
    namespace: dict[str, type[Processor]] = {}
    exec(SOURCE, namespace)  # type: ignore[arg-type]
    return Pipeline([Bound(f"own-{i:02}", namespace["Own"]()) for i in range(count)])


async def times(
    repeats: int,
    action: Callable[[], Awaitable[object]],
    clock: Callable[[], float] = time.perf_counter,
    pause: float = 0.0,
) -> list[float]:
    """Seconds by `clock` of each of `repeats`, `pause` seconds apart."""
    out = []
    for _ in range(repeats):
        await asyncio.sleep(pause)
        start = clock()
        await action()
        out.append(clock() - start)
    return out


def shown(seconds: list[float], unit: float, digits: int = 1) -> str:
    """median (fastest)"""
    return f"{median(seconds) / unit:.{digits}f} ({min(seconds) / unit:.{digits}f})"


async def in_process(pipes: Pipeline, steps: int, level: Level) -> None:
    trace = Trace("run", level)
    budgets = Budgets(max_steps=steps)
    await run(pipes, TASK, FIRST, Instant(), seed=1, budgets=budgets, trace=trace)


async def measure(repeats: int, steps: int, levels: list[str]) -> None:
    print(f"a message between two processes and back: {shown(ping(2000), US)} µs")
    print(f"in process, {steps} steps an episode, six hooks a processor, trace off, CPU time")
    plain: dict[int, float] = {}
    for count in COUNTS:
        took = await times(
            repeats, partial(in_process, pipeline(count), steps, "off"), time.process_time
        )
        plain[count] = min(took) / steps
        each = (plain[count] - plain[0]) / (count * len(HOOKS)) if count else 0.0
        extra = f", {each / US:.2f} µs a processor call" if count else ""
        print(f"  {count:2} processors: {shown([t / steps for t in took], US)} µs a step{extra}")
    await measure_trace(10 * repeats, steps // 2)
    for level in levels:
        await measure_sandbox(level, repeats, steps, plain)


async def measure_trace(repeats: int, steps: int) -> None:
    print("trace, 5 processors in process, as shares of the loop's own time: median of pairs")
    pipes = pipeline(5)
    # As the zygote does: what a harness process starts with is no garbage to look through.
    gc.collect()
    gc.freeze()
    took: dict[Level, list[float]] = {level: [] for level in LEVELS}
    for _ in range(repeats):
        for level, seen in took.items():
            gc.collect()
            seen += await times(1, partial(in_process, pipes, steps, level), time.process_time)
    gc.unfreeze()
    for name, one, other in (
        ("agent trace", "off", "agent"),
        ("harness trace", "agent", "full"),
        ("both", "off", "full"),
    ):
        more = [b - a for a, b in zip(took[one], took[other], strict=True)]  # type: ignore[index]
        share = median(m / off for m, off in zip(more, took["off"], strict=True))
        print(
            f"  {name:13}: {share:+.1%}, {median(more) / steps / US:+.1f} µs a step, "
            f"{median(more) / steps / (MODEL_S + median(took['off']) / steps):+.2%} of a step whose "
            f"model takes {MODEL_S * 1e3:.0f} ms"
        )


async def measure_sandbox(level: str, repeats: int, steps: int, plain: dict[int, float]) -> None:
    sandbox = Sandbox(level)  # type: ignore[arg-type]
    try:
        start = time.perf_counter()
        await sandbox.start()
    except SandboxUnavailable as error:
        print(f"sandbox {level}: not here: {error}")
        return
    print(f"sandbox {level}: zygote started in {time.perf_counter() - start:.2f} s")

    async def episode(parts: Bundle, count: int) -> list[float]:
        """Times at which the model was asked."""
        host = Instant()
        budgets = Budgets(max_steps=count)
        ran = await sandbox.run(
            parts, TASK, FIRST, host, seed=1, budgets=budgets, trace_level="off"
        )
        if ran.result.status != "truncated":
            raise SystemExit(f"the episode failed: {ran.result}")
        return host.asked

    for count in COUNTS:
        # Another bundle each time: no process is ready for it.
        first = [
            (await times(1, partial(episode, bundle(count, i), 1), pause=PAUSE_S))[0]
            for i in range(repeats)
        ]
        parts = bundle(count, 0)
        await episode(parts, 1)
        ready = await times(3 * repeats, partial(episode, parts, 1), pause=PAUSE_S)
        each = [b - a for a, b in pairwise(await episode(parts, steps))]
        print(
            f"  {count:2} processors: episode of one step {shown(ready, MS)} ms, the first of a "
            f"bundle {shown(first, MS)} ms; further step {shown(each, US, 0)} µs"
        )
        if not count:  # a step is the loop's own time and two messages with their answers
            trip = [(t - plain[count]) / 2 for t in each]
            print(f"                 a message and its answer {shown(trip, US, 0)} µs")
    parts = bundle(0)
    many = 8 * (os.cpu_count() or 1)
    took = await times(3, lambda: asyncio.gather(*(episode(parts, 1) for _ in range(many))))
    print(f"  {many} episodes of one step at once: {shown([t / many for t in took], MS)} ms each")
    await sandbox.close()


def ping(count: int) -> list[float]:
    """Seconds of each of `count` exchanges of a short message with a process that sends it back."""
    here, there = socket.socketpair()
    echo = "import socket, sys; s = socket.socket(fileno=int(sys.argv[1]))\n"
    echo += "while data := s.recv(4096): s.sendall(data)"
    command = [sys.executable, "-c", echo, str(there.fileno())]
    out = []
    with here, subprocess.Popen(command, pass_fds=(there.fileno(),)):
        there.close()
        for _ in range(count):
            start = time.perf_counter()
            here.sendall(b"x" * 300)
            here.recv(4096)
            out.append(time.perf_counter() - start)
        here.shutdown(socket.SHUT_RDWR)
    return out


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
