"""Run directories with a real evolution in them: the engine over a small world, with traces."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import yaml
from evolve_world import H0, World, helps
from synthetic_runs import round_record

from coevo.metrics import MetricsLog
from coevo.records import EvolutionRecord
from harness.atomic import write_atomic, write_json
from harness.events import Message
from harness.evolve.engine import evolve
from harness.evolve.journal import Journal
from harness.evolve.recipe import load_recipe
from harness.evolve.records import Episode, encode
from harness.evolve.state import EvolutionState
from harness.host import ModelReply, ModelRequest, ToolReply, ToolRequest
from harness.store import Store
from harness.trace import Trace


def evolve_run(path: Path, rounds: int = 2) -> Path:
    """Give the run at `path` (made here where it is missing) rollouts, evolution and traces."""
    if not path.exists():
        path.mkdir(parents=True)
        config = {"name": path.name, "mode": "harness", "seed": 0}
        text = yaml.safe_dump({**config, "evolution": {"recipe": "quickstart"}})
        (path / "config.yaml").write_text(text)
    asyncio.run(_rounds(path, rounds))
    return path


async def _rounds(path: Path, rounds: int) -> None:
    recipe, parts = load_recipe("quickstart")
    world = World(helps("goal_filter", low=0.2, high=0.8), tasks=24)
    store = Store(path / "harness")
    store.put(H0)
    state = EvolutionState.start(H0)
    loop = Journal(path / "journal.jsonl")
    log = None if (path / "metrics.jsonl").exists() else MetricsLog(path / "metrics.jsonl")
    for number in range(rounds):
        harness = state.incumbent
        file = f"traces/{number:04d}/incumbent.jsonl.gz"
        episodes = [replace(e, ref=f"{file}#{e.task}/{e.seed}") for e in world.history(harness, 2)]
        write_traces(path / file, episodes)

        async def rolled(episodes: Sequence[Episode] = tuple(episodes)) -> dict[str, object]:
            return {"episodes": [encode(e) for e in episodes], "tokens": [7000, 100]}

        await loop.once(f"{number}/rollout", [number], rolled)
        directory = path / "evolution" / f"{number:04d}"
        result = await evolve(
            recipe,
            parts,
            state,
            episodes,
            world.evaluate,
            Journal(directory / "journal.jsonl"),
            random.Random(number),
        )
        for report in result.candidates:
            store.put(report.candidate.bundle)
        write_json(directory / "verdicts.json", result.to_json())
        state = result.state
        if log is not None:
            evolution = EvolutionRecord(**result.summary())
            log.append(round_record(number, harness_id=harness.id, evolution=evolution))
    if log is not None:
        log.close()


def write_traces(path: Path, episodes: Sequence[Episode]) -> None:
    """Both traces of each episode, made by the harness's own recorder."""
    lines = []
    for episode in episodes:
        name = episode.ref.partition("#")[2]
        trace = Trace(name, "full")
        history: tuple[Message, ...] = ()
        for step in episode.trace:
            trace.begin(step.step)
            if trace.record:
                for item in (("before_model", ("menu",)), 1000, ("menu", "transform", "", 2500)):
                    trace.record(item)
            trace.note("menu", f"<b>note</b> {step.step}")
            history += (Message("user", f"{episode.instruction} {step.observation}"),)
            reply = ModelReply(step.action, prompt_tokens=40, sampled_tokens=4)
            trace.model(ModelRequest(step.step, history), reply)
            history += (Message("assistant", step.action),)
            call = ToolRequest(step.step, "c", "act", {"command": step.action})
            trace.tool(call, ToolReply(step.observation, choices=("look", "help")))
        trace.end("completed", "the environment ended the episode", episode.steps)
        lines.append(json.dumps({"id": name, "trace": trace.to_json()}))
    write_atomic(path, gzip.compress(("\n".join(lines) + "\n").encode(), 1, mtime=0))
