"""The task × round grid: what became of each task in every round that ran it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coevo.evidence import task_key
from coevo.records import Evaluation
from coevo.runs import Run
from harness.evolve.journal import read_entries
from harness.evolve.records import Episode, RecordError, decode

STATES = ("solved", "flipping", "regressed", "unsolved", "absent")
_CODES = {state: state[0] for state in STATES}
"""One letter a state: a row of the grid is a string."""


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """key: opaque (see coevo.evidence). name: for people. group: the kind of task, "" for none."""

    key: str
    name: str
    group: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """Scored runs of one task in one round, and those that passed."""

    passed: int
    n: int


@dataclass(frozen=True)
class Grid:
    """One split of one run. cells: task key -> round -> cell."""

    split: str
    rounds: tuple[int, ...]
    tasks: tuple[TaskInfo, ...]
    cells: Mapping[str, Mapping[int, Cell]]

    def states(self, key: str) -> list[str]:
        """The states of a task, one a round of `rounds`."""
        return states([self.cells[key].get(number) for number in self.rounds])

    def to_json(self, index: Mapping[str, int]) -> dict[str, Any]:
        """index: task key -> its place in the page's table of tasks. `states`, `passed` and `n`
        have a row a task, in the order of `tasks`, and a column a round."""
        rows = [
            [self.cells[t.key].get(number, Cell(0, 0)) for number in self.rounds]
            for t in self.tasks
        ]
        return {
            "split": self.split,
            "rounds": list(self.rounds),
            "tasks": [index[t.key] for t in self.tasks],
            "states": ["".join(_CODES[s] for s in self.states(t.key)) for t in self.tasks],
            "passed": [[cell.passed for cell in row] for row in rows],
            "n": [[cell.n for cell in row] for row in rows],
        }


def states(cells: Sequence[Cell | None]) -> list[str]:
    """One of STATES for each round of a task, oldest first; None or no scored run is `absent`.

    solved: all its runs passed. flipping: some did; or, where a round has one run a task, it passed
    again after it had been lost. regressed: none did, but some had in the round before that ran it.
    unsolved: none did then either.
    """
    out = []
    seen: list[Cell] = []
    for cell in cells:
        if cell is None or not cell.n:
            out.append("absent")
            continue
        last = seen[-1].passed if seen else 0
        again = cell.n == 1 and seen and not last and any(old.passed for old in seen)
        if cell.passed == cell.n:
            out.append("flipping" if again else "solved")
        elif cell.passed:
            out.append("flipping")
        else:
            out.append("regressed" if last else "unsolved")
        seen.append(cell)
    return out


def measured_grid(split: str, evaluations: Mapping[int, Evaluation]) -> Grid | None:
    """From the evaluations of a split, by round; None where there are none."""
    counts: dict[str, dict[int, list[bool]]] = {}
    tasks: dict[str, TaskInfo] = {}
    for number, evaluation in sorted(evaluations.items()):
        for episode in evaluation.episodes:
            key = task_key(episode.task_id)
            tasks.setdefault(
                key, TaskInfo(key, episode.task_id.rsplit("/", 1)[-1], _group(episode.features))
            )
            runs = counts.setdefault(key, {}).setdefault(number, [])
            if episode.scored:
                runs.append(episode.success)
    return _grid(split, tasks, counts)


def evolve_grid(episodes: Mapping[int, Sequence[Episode]]) -> Grid | None:
    """From the rounds' own rollouts; None where there are none. Each round has its own tasks."""
    counts: dict[str, dict[int, list[bool]]] = {}
    tasks: dict[str, TaskInfo] = {}
    for number, found in sorted(episodes.items()):
        for episode in found:
            tasks.setdefault(
                episode.task,
                TaskInfo(
                    episode.task, episode.instruction or episode.task, _group(episode.features)
                ),
            )
            runs = counts.setdefault(episode.task, {}).setdefault(number, [])
            if episode.scored:
                runs.append(episode.success)
    return _grid("evolve", tasks, counts)


@dataclass(frozen=True)
class JournalData:
    """What the page reads of a run's journal. episodes: round -> of its own rollouts. going: the
    phases of the round that is not committed yet, those that are done. problems: what is damaged."""

    episodes: Mapping[int, Sequence[Episode]]
    going: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def read_journal(run: Run) -> JournalData:
    """Safe beside the run's writer."""
    path = run.path / "journal.jsonl"
    if not path.exists():
        return JournalData({})
    found: dict[int, list[Episode]] = {}
    going = []
    after = run.rounds[-1].round if run.rounds else -1
    try:
        for entry in read_entries(path)[0]:
            number, _, phase = entry.key.partition("/")
            if not number.isdecimal():  # a repeat of best_of_n
                continue
            if phase == "rollout":
                found[int(number)] = [decode(Episode, e) for e in _list(path, entry.result)]
            if int(number) > after:
                going.append(phase)
    except (OSError, ValueError) as error:  # a JournalError or a RecordError is one
        text = str(error)
        text = text if str(path) in text else f"{path}: {text}"
        return JournalData(found, tuple(going), (text,))
    return JournalData(found, tuple(going))


def _list(path: Path, result: Any) -> list[Any]:
    episodes = result.get("episodes", []) if isinstance(result, Mapping) else None
    if not isinstance(episodes, list):
        raise RecordError(f"{path}: a rollout entry has no list of episodes")
    return episodes


def _grid(
    split: str, tasks: Mapping[str, TaskInfo], counts: Mapping[str, Mapping[int, list[bool]]]
) -> Grid | None:
    if not tasks:
        return None
    rounds = sorted({number for per_round in counts.values() for number in per_round})
    order = sorted(tasks.values(), key=lambda t: (t.group, t.name, t.key))
    cells = {
        key: {number: Cell(sum(runs), len(runs)) for number, runs in per_round.items()}
        for key, per_round in counts.items()
    }
    return Grid(split, tuple(rounds), tuple(order), cells)


def _group(features: Mapping[str, Any]) -> str:
    """What an environment calls the kind of a task, else its first feature."""
    for name in ("task_type", "type", "kind"):
        if name in features:
            return str(features[name])
    return str(next(iter(features.values()), ""))


def task_table(grids: Iterable[Grid]) -> list[TaskInfo]:
    """Every task of the grids once, those of equal key being the same."""
    found: dict[str, TaskInfo] = {}
    for grid in grids:
        for task in grid.tasks:
            found.setdefault(task.key, task)
    return list(found.values())
