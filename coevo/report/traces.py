"""Traces inside the page: which episodes are worth one, read back, cut and packed.

An episode's trace stays on disk in full; the page holds a bounded number of shortened ones.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coevo.report.grid import Grid
from harness.evolve.records import Episode

MAX_TRACES = 400
"""Traces in one page, over all its runs."""

MAX_PACKED = 1_600_000
"""Characters that they may take in one page, packed."""

PER_CELL = 2
"""Of one task in one round: one that passed and one that did not, where there are both."""

MAX_TEXT = 1_500
"""Characters kept of one text."""

_REF = re.compile(r"(traces/\d{4,}/[\w.-]+\.jsonl\.gz)#(.+)", re.DOTALL)
_WORTH = {"regressed": 0, "flipping": 1, "unsolved": 2, "solved": 3}


@dataclass(frozen=True, slots=True)
class Wanted:
    """An episode whose trace is asked for. run: its place among the runs of the page."""

    run: int
    round: int
    episode: Episode


def wanted(
    run: int, grid: Grid, episodes: Mapping[int, Sequence[Episode]]
) -> list[tuple[int, Wanted]]:
    """The episodes of a run that show something, each with its rank (less is shown first):
    regressed and flipping tasks first, and of one worth those of late rounds."""
    last = max(grid.rounds)
    out = []
    for task in grid.tasks:
        for number, state in zip(grid.rounds, grid.states(task.key), strict=True):
            if state == "absent":
                continue
            runs = [e for e in episodes.get(number, ()) if e.task == task.key and e.scored]
            chosen = {e.success: e for e in reversed(runs)}  # the first of each
            for extra, success in enumerate(sorted(chosen)):
                rank = (_WORTH[state] * PER_CELL + extra) * (last + 1) + last - number
                out.append((rank, Wanted(run, number, chosen[success])))
    return out


def pack(
    asked: Iterable[tuple[int, Wanted]],
    paths: Sequence[Path],
    max_traces: int = MAX_TRACES,
    max_packed: int = MAX_PACKED,
) -> tuple[dict[str, Any], list[str]]:
    """(what the page holds of the traces, problems). asked: ranked episodes of all runs, of which
    the first `max_traces` are taken. paths: the run directories.

    `chunks`: one a run and round, its traces as gzipped JSON in base64; the least worth are left
    out where `max_packed` is passed. `asked` counts the episodes, `shown` those with a trace here.
    """
    everything = sorted(asked, key=lambda item: (item[0], item[1].run, item[1].episode.task))
    chosen = [item for _, item in everything[:max_traces]]
    traces, problems = _read(chosen, paths)
    found = [(item, trace) for item in chosen if (trace := traces.get(_key(item)))]
    chunks = _chunks(found)
    while found and sum(len(chunk["data"]) for chunk in chunks) > max_packed:
        found = found[: len(found) * 3 // 4]
        chunks = _chunks(found)
    return {"chunks": chunks, "asked": len(everything), "shown": len(found)}, problems


def of_cell(run: Path, episodes: Sequence[Episode]) -> tuple[list[dict[str, Any]], list[str]]:
    """(the traces of these episodes as the page shows them, problems): for a page that is served."""
    items = [Wanted(0, 0, episode) for episode in episodes]
    traces, problems = _read(items, [run])
    return [_entry(item, traces[_key(item)]) for item in items if _key(item) in traces], problems


def shorten(trace: Mapping[str, Any]) -> dict[str, Any]:
    """Both traces of an episode, aligned by step, texts cut to MAX_TEXT and choices left out."""
    steps: dict[int, dict[str, Any]] = {}

    def at(step: int) -> dict[str, Any]:
        return steps.setdefault(
            step, {"step": step, "agent": [], "harness": [], "functions": [], "notes": []}
        )

    for item in trace.get("agent", ()):
        at(item["step"])["agent"].append(_model(item) if item["kind"] == "model" else _tool(item))
    for name in ("harness", "functions", "notes"):
        for step, *record in trace.get(name, ()):
            at(step)[name].append([_cut(v) if isinstance(v, str) else v for v in record])
    return {
        "status": trace.get("status", ""),
        "reason": _cut(trace.get("reason", "")),
        "level": trace.get("level", ""),
        "dropped": trace.get("dropped", {}),
        "steps": [steps[step] for step in sorted(steps)],
    }


def _model(item: Mapping[str, Any]) -> dict[str, Any]:
    reply = item["reply"]
    return {
        "role": item["role"],
        "kept": item["kept"],
        "read": [[m["role"], _cut(m["content"])] for m in item["messages"]],
        "said": _cut(reply["content"]),
        "calls": [[c["name"], _cut(_text(c["input"]))] for c in reply["tool_calls"]],
        "finish": reply["finish_reason"],
        "tokens": [reply["prompt_tokens"], reply["sampled_tokens"]],
    }


def _tool(item: Mapping[str, Any]) -> dict[str, Any]:
    result = item["result"]
    return {
        "tool": item["name"],
        "input": _cut(_text(item["input"])),
        "result": _cut(result["content"]),
        "error": result["is_error"],
        "done": result["done"],
    }


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _cut(text: str) -> str:
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:MAX_TEXT]} … [{len(text) - MAX_TEXT} characters cut]"


def _key(item: Wanted) -> tuple[int, str]:
    return item.run, item.episode.ref


def _read(
    items: Sequence[Wanted], paths: Sequence[Path]
) -> tuple[dict[tuple[int, str], dict[str, Any]], list[str]]:
    """(run, ref) -> shortened trace. Each file is gone through once."""
    files: dict[tuple[int, str], dict[str, str]] = {}
    for item in items:
        if match := _REF.fullmatch(item.episode.ref):
            files.setdefault((item.run, match[1]), {})[match[2]] = item.episode.ref
    found: dict[tuple[int, str], dict[str, Any]] = {}
    problems = []
    for (run, name), ids in sorted(files.items()):
        path = paths[run] / name
        missing = set(ids)
        try:
            with gzip.open(path, "rt", encoding="utf-8") as lines:
                for line in lines:
                    record = json.loads(line)
                    if record["id"] not in missing:
                        continue
                    missing.remove(record["id"])
                    if record["trace"]:  # none where the run's trace level is off
                        found[run, ids[record["id"]]] = shorten(record["trace"])
        except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError) as error:
            problems.append(f"{path}: traces cannot be read ({type(error).__name__}: {error})")
        else:
            if missing:
                problems.append(f"{path}: {len(missing)} of {len(ids)} traces are not there")
    return found, problems


def _chunks(found: Sequence[tuple[Wanted, dict[str, Any]]]) -> list[dict[str, Any]]:
    groups: dict[tuple[int, int], list[tuple[Wanted, dict[str, Any]]]] = {}
    for item, trace in found:
        groups.setdefault((item.run, item.round), []).append((item, trace))
    return [
        {
            "run": run,
            "round": number,
            "tasks": sorted({item.episode.task for item, _ in group}),
            "data": _packed([_entry(item, trace) for item, trace in group]),
        }
        for (run, number), group in sorted(groups.items())
    ]


def _entry(item: Wanted, trace: Mapping[str, Any]) -> dict[str, Any]:
    e = item.episode
    return {
        "task": e.task,
        "ref": e.ref,
        "instruction": _cut(e.instruction),
        "success": e.success,
        "reward": e.reward,
        "outcome": e.outcome,
        "tokens": e.tokens,
        "harness_id": e.harness_id,
        "trace": trace,
    }


def _packed(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()
