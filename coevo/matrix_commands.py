"""`coevo matrix`: every pair measured once, on one started machinery, kept in the run."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from coevo.base_policy import checked_base, model_fingerprint
from coevo.commands import base_model
from coevo.config import RunConfig
from coevo.errors import InputError
from coevo.eval_pairs import AtRound, PolicyFile, RunPairs, policies, task_count
from coevo.eval_session import run_measured
from coevo.live import LiveTable, points, short, with_interval
from coevo.matrix import (
    FILE,
    Decomposition,
    Matrix,
    MatrixCell,
    MatrixHarness,
    MatrixPolicy,
    PairFile,
    decompose,
    restricted,
)
from coevo.records import Evaluation, RecordError, Tokens
from coevo.rollouts import TaskSource
from coevo.sealed import SealedReads
from coevo.stop import STOP
from harness.atomic import write_json
from harness.bundle import Bundle
from harness.jsonvalue import canonical
from rollout.spec import derive_seed
from rollout.task import Split

if TYPE_CHECKING:
    from coevo.stack import Stack

KEPT = "matrix"
"""Directory of a run for the pairs that were measured for it."""
MEASURED_BY = ("environment", "rollout", "policy")
"""Sections of the configuration that decide what a pair measures."""


@dataclass(frozen=True)
class Plan:
    """What is to be measured. rows, columns: in the order of their first round."""

    pairs: RunPairs
    config: RunConfig
    split: Split
    n: int
    rows: tuple[MatrixHarness, ...]
    columns: tuple[MatrixPolicy, ...]
    bundles: Mapping[str, Bundle]
    files: Mapping[int, PolicyFile]
    notes: tuple[str, ...]

    def about(self, row: MatrixHarness, column: MatrixPolicy) -> dict[str, Any]:
        """All that the episodes of a cell depend on."""
        settings = self.config.model_dump(mode="json", include=set(MEASURED_BY))
        return {
            "harness": row.id,
            "policy": column.fingerprint,
            "split": self.split,
            "n": self.n,
            "seed": self.config.seed,
            "settings": settings,
        }

    def file(self, row: MatrixHarness, column: MatrixPolicy) -> Path:
        digest = hashlib.sha256(canonical(self.about(row, column)).encode()).hexdigest()
        return self.pairs.run.path / KEPT / f"{digest[:24]}.json"


def run(arguments: argparse.Namespace) -> None:
    """`coevo matrix`. Raises RunError, RunDirError or InputError for what a user can mend."""
    console = Console(highlight=False)
    pairs = RunPairs(arguments.run)
    with pairs.dir:  # nobody else goes on with the run meanwhile
        config = pairs.dir.config()
        plan = _plan(arguments, pairs, config, console)
        matrix = measure(plan, console)
        write_json(pairs.run.path / FILE, matrix.to_json())
    show(matrix, console if console.is_terminal else Console(width=110, highlight=False))
    console.print(f"matrix: {pairs.run.path / FILE}")


def _plan(
    arguments: argparse.Namespace, pairs: RunPairs, config: RunConfig, console: Console
) -> Plan:
    split: Split = arguments.split
    n = task_count(arguments.n, config)
    harness_rounds = pairs.several(arguments.rounds or arguments.harness)
    policy_rounds = pairs.several(arguments.rounds or arguments.policy)
    notes = []
    if not pairs.run.finished:
        notes.append(f"The run is not finished: its last round here is {max(pairs.rounds)}.")
    forked = [str(at.round) for at in harness_rounds if at.variants > 1]
    if forked:
        notes.append(
            f"Several harnesses served side by side in round {', '.join(forked)}: the main one is "
            "measured here, on all tasks."
        )
    base = pairs.base
    if base is None:
        base = _unrecorded_base(base_model(config, console), notes)
    files = policies(pairs, policy_rounds, base)
    rows = _rows(harness_rounds)
    return Plan(
        pairs, config, split, n, rows, _columns(policy_rounds, files),
        {row.id: pairs.bundle(row.id) for row in rows}, files, tuple(notes),
    )  # fmt: skip


def _unrecorded_base(model: Path | None, notes: list[str]) -> str:
    """Fingerprint of M_0 where the run recorded none; "" for a hosted model."""
    if model is None:
        return ""
    notes.append(f"The run does not say which model it began with; {model} is taken for it.")
    return model_fingerprint(model)


def _rows(rounds: Sequence[AtRound]) -> tuple[MatrixHarness, ...]:
    by_id: dict[str, list[int]] = {}
    for at in rounds:
        by_id.setdefault(at.harness_id, []).append(at.round)
    return tuple(MatrixHarness(id=id, rounds=tuple(found)) for id, found in by_id.items())


def _columns(
    rounds: Sequence[AtRound], files: Mapping[int, PolicyFile]
) -> tuple[MatrixPolicy, ...]:
    by_version: dict[int, list[int]] = {}
    for at in rounds:
        by_version.setdefault(at.policy_version, []).append(at.round)
    return tuple(
        MatrixPolicy(version=v, fingerprint=files[v].fingerprint, rounds=tuple(found))
        for v, found in by_version.items()
    )


# --- measuring ---


def measure(plan: Plan, console: Console) -> Matrix:
    """The matrix; engines are started only where a pair is left to measure."""
    found: dict[tuple[int, int], tuple[MatrixCell, Evaluation]] = {}
    for at in _places(plan):
        known = _known(plan, at)
        if known is not None:
            found[at] = known
    left = [at for at in _places(plan) if at not in found]
    console.print(
        f"{len(found)} of {len(_places(plan))} pairs are measured already; "
        f"{len(left)} to measure on {plan.n} tasks of split {plan.split}"
    )
    tokens = [0, 0]
    if left:
        tokens = _roll(plan, left, found, console)
    return _matrix(plan, found, tokens)


def _places(plan: Plan) -> list[tuple[int, int]]:
    """(row, column) of every cell, column by column: weights are loaded once each."""
    return [(row, column) for column in range(len(plan.columns)) for row in range(len(plan.rows))]


def _roll(
    plan: Plan,
    left: Sequence[tuple[int, int]],
    found: dict[tuple[int, int], tuple[MatrixCell, Evaluation]],
    console: Console,
) -> list[int]:
    run = plan.pairs.dir
    tasks = TaskSource(
        plan.config.environment, plan.config.seed, SealedReads(run.path / "sealed_reads.jsonl").add
    )
    try:
        tasks.check_size(plan.split, plan.n)
    except ValueError as error:
        raise InputError(f"-n {plan.n}: {error}") from error
    spent = [0, 0]

    async def work(stack: Stack) -> None:
        from coevo.eval_measure import PairMeasurer

        await stack.begin(plan.config)
        with LiveTable(console=console) as live:
            measurer = PairMeasurer(plan.config, stack, tasks, run.bundles, live, "matrix")
            for at in left:
                STOP.check(run.path)
                row, column = plan.rows[at[0]], plan.columns[at[1]]
                evaluation, tokens = await measurer.measure(
                    plan.bundles[row.id], plan.files[column.version], plan.split, plan.n, {}
                )
                spent[:] = [a + b for a, b in zip(spent, tokens, strict=True)]
                file = plan.file(row, column)
                write_json(
                    file, PairFile(about=plan.about(row, column), evaluation=evaluation).to_json()
                )
                found[at] = _cell(plan, at, evaluation, "matrix", file)
                live.note(
                    f"harness {short(row.id)} · policy v{column.version}: "
                    f"{with_interval(evaluation.result)} (n = {evaluation.result.n})"
                )

    model = base_model(plan.config, console)
    if model is not None:
        checked_base(run.path, model)
    run_measured(
        plan.config, model, console, work,
        "The pairs that are measured are kept; give the same command to go on.",
    )  # fmt: skip
    return spent


def _known(plan: Plan, at: tuple[int, int]) -> tuple[MatrixCell, Evaluation] | None:
    """A pair that this command or the run itself has measured."""
    row, column = plan.rows[at[0]], plan.columns[at[1]]
    file = plan.file(row, column)
    if file.is_file():
        try:
            kept = PairFile.from_json(json.loads(file.read_text()), str(file))
        except (ValueError, RecordError) as error:
            raise InputError(f"{file}: {error}; remove it to measure the pair again") from error
        return _cell(plan, at, kept.evaluation, "matrix", file)
    if not _as_begun(plan.pairs.run.path):
        return None
    for file in sorted((plan.pairs.run.path / plan.split).glob("*.json")):
        try:
            evaluation = Evaluation.from_json(json.loads(file.read_text()), str(file))
        except ValueError:
            continue  # named in `problems` of the run, and measured again here
        if evaluation.policy_version != column.version:
            continue
        seeds = {
            e.task_id: derive_seed(plan.config.seed, f"measure {plan.split}", e.task_id, 0)
            for e in evaluation.episodes
        }
        own = restricted(evaluation, row.id, plan.n, seeds)
        if own is not None:
            return _cell(plan, at, own, "run", file)
    return None


def _as_begun(run: Path) -> bool:
    """Whether what a pair measures was settled as it is now in all rounds of the run."""
    file = run / "config_changes.jsonl"
    if not file.exists():
        return True
    changed = [key for line in file.read_text().splitlines() for key in json.loads(line)["changed"]]
    return not any(key.split(".")[0] in MEASURED_BY for key in changed)


def _cell(
    plan: Plan, at: tuple[int, int], evaluation: Evaluation, source: Any, file: Path
) -> tuple[MatrixCell, Evaluation]:
    cell = MatrixCell(
        harness=at[0],
        policy=at[1],
        result=evaluation.result,
        source=source,
        file=str(file.relative_to(plan.pairs.run.path)),
    )
    return cell, evaluation


def _matrix(
    plan: Plan,
    found: Mapping[tuple[int, int], tuple[MatrixCell, Evaluation]],
    tokens: Sequence[int],
) -> Matrix:
    rows, columns = (0, len(plan.rows) - 1), (0, len(plan.columns) - 1)
    notes = list(plan.notes)
    if rows[1] == 0:
        notes.append("One harness: its part of the gain is 0 by construction.")
    if columns[1] == 0:
        notes.append("One policy: its part of the gain is 0 by construction.")
    return Matrix(
        run=plan.config.name,
        split=plan.split,
        n=plan.n,
        seed=plan.config.seed,
        harnesses=plan.rows,
        policies=plan.columns,
        cells=tuple(found[at][0] for at in sorted(found)),
        decomposition=decompose(
            {at: evaluation.episodes for at, (_, evaluation) in found.items()}, rows, columns
        ),
        tokens=Tokens(prompt=tokens[0], sampled=tokens[1]),
        notes=tuple(notes),
    )


# --- showing ---


def show(matrix: Matrix, console: Console) -> None:
    """Success of every pair, then the parts of the gain in points."""
    table = _table(
        f"Success on split {matrix.split}, n = {matrix.n}, 95%",
        "harness of round",
        *(f"policy v{p.version} (round {_rounds(p.rounds)})" for p in matrix.policies),
    )
    for row, harness in enumerate(matrix.harnesses):
        table.add_row(
            Text(f"{_rounds(harness.rounds)} ({short(harness.id)})"),
            *(
                Text(with_interval(matrix.cell(row, column).result))
                for column in range(len(matrix.policies))
            ),
        )
    console.print(table)
    if matrix.decomposition is not None:
        _show_parts(matrix.decomposition, console)
    for note in matrix.notes:
        console.print(Text(note, style="dim"))


PARTS = {
    "total": "total gain (= harness + model)",
    "harness": "harness, mean over both policies",
    "model": "model, mean over both harnesses",
    "interaction": "interaction",
    "harness_alone": "harness under the first policy",
    "model_alone": "model under the first harness",
}


def _show_parts(parts: Decomposition, console: Console) -> None:
    table = _table(
        f"Where the gain is from, points, paired over {parts.n_tasks} tasks", "part", "gain, 95%"
    )
    for name, label in PARTS.items():
        effect = getattr(parts, name)
        table.add_row(
            label, Text(f"{points(effect.mean)} [{points(effect.lo)}, {points(effect.hi)}]")
        )
    console.print(table)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in columns:
        table.add_column(name, no_wrap=True)
    return table


def _rounds(rounds: Sequence[int]) -> str:
    """'0', '1–3' or '0, 2'."""
    if len(rounds) > 1 and rounds[-1] - rounds[0] == len(rounds) - 1:
        return f"{rounds[0]}–{rounds[-1]}"
    return ", ".join(map(str, rounds))
