"""Runs read back from disk: one directory into one record, damaged files named and the rest kept."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from coevo.metrics import MetricsError, read_metrics
from coevo.records import (
    SPLITS,
    BestOfN,
    Evaluation,
    RecordError,
    RoundRecord,
    Summary,
    Tokens,
)


class RunError(RuntimeError):
    """A directory is not a run that can be read."""


@dataclass(frozen=True)
class Run:
    """One run as it stands on disk. `problems`: files that could not be read, with the reason.
    evaluations: of the held-out split, by round; others: of further splits that were measured."""

    name: str
    path: Path
    arm: str
    mode: str
    seed: int | None
    config: Mapping[str, Any]
    lock: Mapping[str, Any]
    rounds: tuple[RoundRecord, ...]
    evaluations: Mapping[int, Evaluation]
    summary: Summary | None
    problems: tuple[str, ...] = ()
    best_of_n: BestOfN | None = None
    others: Mapping[str, Mapping[int, Evaluation]] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        return self.summary is not None

    @property
    def first(self) -> Evaluation | None:
        """Its earliest held-out evaluation: H0 under M0."""
        return self.evaluations[min(self.evaluations)] if self.evaluations else None

    @property
    def last(self) -> Evaluation | None:
        return self.evaluations[max(self.evaluations)] if self.evaluations else None

    @property
    def tokens(self) -> Tokens:
        if self.summary is not None:
            return self.summary.tokens
        return Tokens(
            prompt=sum(r.tokens.prompt for r in self.rounds),
            sampled=sum(r.tokens.sampled for r in self.rounds),
        )

    @property
    def measured_tokens(self) -> Tokens | None:
        """Those of `tokens` that held-out measurements took; None where a record lacks it."""
        if self.summary is not None:
            return self.summary.measured_tokens
        parts = [r.measured_tokens for r in self.rounds]
        known = [p for p in parts if p is not None]
        if len(known) < len(parts):
            return None
        return Tokens(prompt=sum(p.prompt for p in known), sampled=sum(p.sampled for p in known))

    @property
    def wall_s(self) -> float:
        if self.summary is not None:
            return self.summary.wall_s
        return sum(r.wall.total for r in self.rounds)


def load_run(path: Path | str) -> Run:
    """Read a run directory. A damaged file is named in `problems` and the rest is kept.

    Raises RunError when there is no run at `path` (the nearest name beside it is given).
    """
    path = Path(path)
    if not path.is_dir():
        raise RunError(_no_run(path))
    problems: list[str] = []

    def read(name: str, parse: Callable[[str], Any]) -> Any:
        file = path / name
        try:
            return parse(file.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, yaml.YAMLError, RecordError) as error:
            problems.append(f"{file}: {error}" if str(file) not in str(error) else str(error))
            return None

    config = read("config.yaml", yaml.safe_load)
    lock = read("lock.json", json.loads)
    summary = read(
        "summary.json", lambda text: Summary.from_json(json.loads(text), str(path / "summary.json"))
    )
    if config is None and not (path / "metrics.jsonl").exists() and not problems:
        raise RunError(
            f"{path} is not a run directory: it has neither config.yaml nor metrics.jsonl. "
            "Give the directory that `coevo run` printed, such as runs/NAME"
        )
    rounds: tuple[RoundRecord, ...] = ()
    try:
        rounds, torn = read_metrics(path / "metrics.jsonl")
        if torn:
            problems.append(torn)
    except FileNotFoundError:
        problems.append(f"{path / 'metrics.jsonl'}: missing, no round is committed yet")
    except (OSError, MetricsError) as error:
        problems.append(str(error))
    splits: dict[str, dict[int, Evaluation]] = {split: {} for split in SPLITS}
    for split, of_split in splits.items():
        for file in sorted((path / split).glob("*.json")):
            evaluation = read(f"{split}/{file.name}", partial(_evaluation, file))
            if evaluation is not None:
                of_split[evaluation.round] = evaluation
    evaluations = splits.pop("heldout")
    best = read(
        "best_of_n.json",
        lambda text: BestOfN.from_json(json.loads(text), str(path / "best_of_n.json")),
    )
    if best is not None:
        evaluations[best.round] = best.best()
    config = config if isinstance(config, dict) else {}
    mode = _first(summary and summary.mode, config.get("mode"), rounds[-1].mode if rounds else "?")
    return Run(
        name=_first(summary and summary.name, config.get("name"), path.name),
        path=path,
        arm=_first(summary and summary.arm, config.get("arm"), mode),
        mode=mode,
        seed=_first(summary.seed if summary else None, config.get("seed")),
        config=config,
        lock=lock if isinstance(lock, dict) else {},
        rounds=rounds,
        evaluations=evaluations,
        summary=summary,
        problems=tuple(problems),
        best_of_n=best,
        others={split: found for split, found in splits.items() if found},
    )


def _first(*values: Any) -> Any:
    return next((v for v in values if v is not None), None)


def _no_run(path: Path) -> str:
    beside = path.parent
    names = [p.name for p in beside.iterdir() if p.is_dir()] if beside.is_dir() else []
    near = difflib.get_close_matches(path.name, names, n=1)
    hint = f"Did you mean {beside / near[0]}?" if near else "Give a directory such as runs/NAME"
    return f"{path}: there is no such run directory. {hint}"


def _evaluation(file: Path, text: str) -> Evaluation:
    evaluation = Evaluation.from_json(json.loads(text), str(file))
    seen: set[tuple[str, int]] = set()
    for episode in evaluation.episodes:
        key = (episode.task_id, episode.seed)
        if key in seen:
            raise RecordError(
                f"{file}: task {key[0]} with seed {key[1]} stands there twice; expected once, "
                "so that runs can be paired"
            )
        seen.add(key)
    return evaluation
