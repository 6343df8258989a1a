"""The driver's own CPU time a trajectory: received over Ray, appended, traced, made evidence.

    python benchmarks/driver_cost.py RUN [--trajectories 512]

The episodes of a run's newest round, with their tokens and traces, are streamed again by a Ray actor
and go through what a rollout phase does with them. CPU seconds of this process with all its threads:
what one driver can take is 1 over their sum. For `coevo simulate --driver-s`.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import gzip
import itertools
import json
import os
import pickle
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ray

from coevo.evidence import evidence, write_traces
from harness.evolve.records import encode
from rollout.buffer import ReplayBuffer
from rollout.episode import EpisodeResult

PART = "incumbent"


class Source:
    """A worker that has all episodes ready."""

    def __init__(self, results: list[EpisodeResult]) -> None:
        self._results = results

    async def run(self) -> Any:
        for number, result in enumerate(self._results):
            yield number, result


def episodes(run: Path, count: int) -> list[EpisodeResult]:
    """Of the newest round, again under new ids where it has fewer."""
    buffer = ReplayBuffer(run, 1, 10**9)
    number = max(buffer.rounds())
    trajectories = buffer.trajectories(number, PART, tokens=True)
    lines = gzip.decompress((run / "traces" / f"{number:04d}" / f"{PART}.jsonl.gz").read_bytes())
    traces = {item["id"]: item["trace"] for item in map(json.loads, lines.splitlines())}
    endless: Iterator[tuple[int, Any]] = enumerate(itertools.cycle(trajectories))
    return [
        EpisodeResult(dataclasses.replace(t, id=f"{t.id}/{n}"), traces[t.id])
        for n, t in itertools.islice(endless, count)
    ]


async def receive(source: Any) -> list[EpisodeResult]:
    return [
        (await reference)[1]
        async for reference in source.run.options(num_returns="streaming").remote()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--trajectories", type=int, default=512)
    options = parser.parse_args()
    results = episodes(options.run, options.trajectories)
    size = sum(len(s) for r in results for s in r.trajectory.segments) / len(results)
    steps = sum(r.trajectory.steps for r in results) / len(results)
    held = len(pickle.dumps(results)) / len(results)
    said = sum(len(json.dumps(encode(evidence(r, "", "")))) for r in results) / len(results)
    print(
        f"{len(results)} trajectories of {size:.0f} tokens and {steps:.1f} steps: each {held / 1e3:.1f} kB "
        f"in the driver's memory, {said / 1e3:.1f} kB in the journal"
    )
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    source = ray.remote(Source).options(num_cpus=0.5).remote(results)
    asyncio.run(receive(source))  # imports, connections
    spent = {}
    began = time.process_time()
    received = asyncio.run(receive(source))
    spent["received over Ray"] = time.process_time() - began
    with tempfile.TemporaryDirectory() as root:
        spent |= after(Path(root), received)
    ray.shutdown()
    for what, seconds in spent.items():
        print(f"{what:<24} {1e3 * seconds / len(results):6.2f} ms")
    print(f"{'all':<24} {1e3 * sum(spent.values()) / len(results):6.2f} ms")


def after(root: Path, results: Sequence[EpisodeResult]) -> dict[str, float]:
    """CPU seconds of what follows a rollout."""
    marks = [time.process_time()]
    trajectories = [r.trajectory for r in results]
    buffer = ReplayBuffer(root, 1, len(results))
    buffer.append(trajectories[0].round, PART, trajectories)
    marks.append(time.process_time())
    write_traces(root / "traces.jsonl.gz", results)
    marks.append(time.process_time())
    json.dumps([encode(evidence(r, "", "")) for r in results])
    marks.append(time.process_time())
    names = ("buffer", "traces on disk", "evidence and journal")
    return {name: b - a for name, (a, b) in zip(names, itertools.pairwise(marks), strict=True)}


if __name__ == "__main__":
    main()
