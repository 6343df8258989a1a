"""`coevo evolve show`: a run's evolution in the terminal, or as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from coevo.evolution_read import (
    CandidateView,
    EvolutionView,
    RoundView,
    Spent,
    read_evolution,
)
from coevo.live import percent, quantity, short
from harness.change import describe
from harness.edit_json import to_json
from harness.evolve.ledger import Attribution, Concentration, Entry, Ledger
from harness.evolve.records import PairedResult, encode

SCHEMA = 1
_STYLE = {"apply": "green", "fork": "green", "applied": "green", "forked": "green",
          "reject": "yellow", "rejected": "yellow"}  # fmt: skip


def run(arguments: argparse.Namespace) -> None:
    """`coevo evolve show`. Raises RunError or InputError for what a user can mend."""
    view = read_evolution(arguments.run)
    rounds = view.rounds if arguments.round is None else (view.round(arguments.round),)
    if arguments.json:
        print(json.dumps(to_json_values(view, rounds), indent=1, allow_nan=False))
    else:
        show(view, rounds, Console(highlight=False))
    for problem in view.problems:
        print(f"problem: {problem}", file=sys.stderr)


# --- as text ---


def show(view: EvolutionView, rounds: Sequence[RoundView], console: Console) -> None:
    """Print the rounds, then the ledger of the whole run."""
    found = view.run
    recipe = found.config.get("evolution", {}).get("recipe", "?")
    state = "finished" if found.finished else f"{len(found.rounds)} rounds committed so far"
    console.print(
        Text(f"{found.name}: mode {found.mode}, seed {found.seed}, recipe {recipe}, {state}")
    )
    entries = {entry.candidate.candidate_id: entry for entry in view.ledger.entries}
    for item in rounds:
        _round(item, entries, console)
    console.print(Text("\nAttribution ledger", style="bold"))
    _ledger(view.ledger, console)
    console.print(
        Text(
            f"Evolution took {_spent(view.spent)}; {quantity(found.tokens.total)} tokens the whole run"
        )
    )


def _round(item: RoundView, entries: Mapping[str, Entry], console: Console) -> None:
    console.print()
    head = Text(f"Round {item.number}: ", style="bold")
    head.append(item.outcome, style=_STYLE.get(item.outcome, ""))
    console.print(head + Text(f" ({item.reason})" if item.reason else "", style=""))
    if item.incumbent is not None:
        runs, passed = item.incumbent
        console.print(
            Text(f"  incumbent  {passed} of {runs} runs passed ({percent(passed / runs)})")
        )
    if item.steps and item.outcome == "undecided":
        console.print(Text("  done so far  " + ", ".join(_times(item.steps))))
    if item.variant != "main":
        console.print(Text(f"  variant    {item.variant}"))
    for test in item.drift:
        console.print(
            Text(
                f"  drift      {test.variant} {short(test.harness_id)} against the best, "
                f"{short(test.best)}: {test.decision}, {test.reason}"
            )
        )
    if item.digest is not None:
        digest = item.digest
        verdicts = [task.verdict for task in digest.tasks]
        counts = {name: verdicts.count(name) for name in ("failed", "flaky", "fragile", "solid")}
        console.print(
            Text(
                f"  digest     {len(digest.tasks)} tasks: {_listed(counts)}; {digest.raw_tokens:,} "
                f"trace tokens in {digest.digest_tokens:,} ({digest.compression:.0f}×)"
            )
        )
    if item.landscape is not None and item.landscape.objectives:
        weights = [f"{o.category} {o.weight:.1f}" for o in item.landscape.objectives]
        console.print(Text("  weight of  " + ", ".join(weights)))
        if item.landscape.held_back:
            console.print(Text("  held back  " + ", ".join(item.landscape.held_back)))
    if item.spent.rollouts or item.spent.llm is not None:
        console.print(Text(f"  spent      {_spent(item.spent)}"))
    for candidate in item.candidates:
        _candidate(candidate, entries.get(candidate.judged.candidate_id), console)
    if not item.candidates and item.recorded is not None:
        # The round's line in metrics.jsonl stands in for verdicts that cannot be read.
        for brief in item.recorded.candidates:
            console.print(Text(f"\n  {brief.id}  {brief.verdict}: {'; '.join(brief.reasons)}"))
            console.print(Text("    edit       " + "; ".join(brief.edits)))


def _candidate(item: CandidateView, entry: Entry | None, console: Console) -> None:
    judged = item.judged
    verdict = judged.verdict
    head = Text(f"\n  {judged.candidate_id}  ", style="bold")
    head.append(verdict.decision, style=_STYLE.get(verdict.decision, ""))
    console.print(head + Text(f": {'; '.join(verdict.reasons)}", style="not bold"))

    def line(name: str, text: str) -> None:
        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=10, no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(Text(name, style="dim"), Text(text))
        console.print(Padding(grid, (0, 0, 0, 4), expand=False))

    impact = judged.manifest.predicted_impact
    line("source", f"{item.source}, {short(judged.parent)} → {short(judged.harness_id)}")
    line("edit", item.diff.rstrip("\n") or "; ".join(describe(edit) for edit in judged.edits))
    line("cause", judged.manifest.root_cause)
    line("fix", judged.manifest.fix)
    line(
        "predicts",
        f"{len(impact.will_unlock)} tasks unlocked, {len(impact.will_stabilise)} stabilised, "
        f"{len(impact.at_risk)} at risk",
    )
    passed = [name for name, result in item.screens.items() if result.ok and not result.note]
    said = [
        f"{name}{'' if result.ok else ' FAILED'}: {result.note}"
        for name, result in item.screens.items()
        if result.note or not result.ok
    ]
    line("screens", "; ".join(([f"{', '.join(passed)} passed"] if passed else []) + said))
    for draw in judged.draws:
        line(draw.purpose, _draw(draw))
    if judged.confirm is not None:
        line("gate", _gate(verdict.numbers))
    if entry is not None:
        line("came true", _came_true(entry.gate))
        if entry.later is not None:
            line("later", _came_true(entry.later))
        elif judged.shipped:
            line("later", "none of its tasks came again under it and under its parent")


def _draw(draw: PairedResult) -> str:
    repeats = max((task.repeats for task in draw.tasks), default=0)
    n = max(len(draw.tasks), 1)
    rates = [sum(getattr(t, side) for t in draw.tasks) / n for side in ("incumbent", "candidate")]
    cost = ""
    if draw.incumbent_tokens > 0:
        cost = f", tokens {100 * (draw.candidate_tokens / draw.incumbent_tokens - 1):+.0f}%"
    lost = f", {draw.lost} of {draw.asked} pairs lost" if draw.lost else ""
    return (
        f"{len(draw.tasks)} tasks × {repeats} pairs: {percent(rates[0])} → {percent(rates[1])}, "
        f"{100 * draw.mean_d:+.1f} points{cost}{lost}"
    )


def _gate(numbers: Mapping[str, float]) -> str:
    """The numbers that the draws do not show; whatever the acceptor recorded."""
    known = {"select_d", "select_n", "confirm_d", "confirm_n", "confirm_repeats", "cost"}
    return ", ".join(f"{name} {value:.3g}" for name, value in numbers.items() if name not in known)


def _came_true(found: Attribution) -> str:
    outcomes = found.outcomes
    rate = "" if found.hit_rate is None else f" ({found.hit_rate:.0%})"
    parts = [f"{len(found.hits)} of {found.predicted} predicted{rate}"]
    parts += [f"{len(outcomes.unlocked)} unlocked, {len(outcomes.stabilised)} stabilised"]
    if found.unpredicted:
        parts.append(f"{len(found.unpredicted)} of these unpredicted")
    if outcomes.regressed:
        parts.append(
            f"{len(outcomes.regressed)} regressed, {len(found.risk_met)} of these named at risk"
        )
    return "; ".join([*parts, f"{len(outcomes.unchanged)} unchanged"])


def _ledger(found: Ledger, console: Console) -> None:
    if not found.entries:
        console.print(Text("No candidate was measured yet."))
        return
    table = _table("candidate", "kind", "decision", "gain", "predicted", "true", "others", "worse")
    for entry in found.entries:
        candidate = entry.candidate
        table.add_row(
            candidate.candidate_id,
            ", ".join(candidate.manifest.kinds),
            candidate.verdict.decision,
            f"{100 * candidate.draws[-1].mean_d:+.1f}",
            str(entry.gate.predicted),
            str(len(entry.gate.hits)),
            str(len(entry.gate.unpredicted)),
            str(len(entry.gate.outcomes.regressed)),
        )
    console.print(table)
    console.print(
        Text(
            "predicted: tasks said to improve; true: those that did; others: improved unsaid; worse: "
            "passed less. Gain in points, of the last draw.",
            style="dim",
        )
    )
    table = _table("kind", "judged", "shipped", "hit rate", "reputation", "may ship")
    for row in found.kinds:
        table.add_row(
            row.kind,
            str(row.judged),
            str(row.shipped),
            "–" if row.hit_rate is None else f"{row.hit_rate:.2f} ({row.hits}/{row.predicted})",
            f"{row.reputation:.2f}",
            "held back" if row.held_back else "yes",
        )
    console.print(table)
    console.print(Text(f"Edits proposed: {_spread(found.proposed)}"))
    console.print(Text(f"Edits shipped: {_spread(found.shipped)}"))


def _spread(found: Concentration) -> str:
    if not found.shares:
        return "none"
    shares = ", ".join(f"{kind} {share:.0%}" for kind, share in found.shares.items())
    return f"{shares} (concentration {found.hhi:.2f}; 1 is a single kind)"


def _spent(found: Spent) -> str:
    rollouts, tokens = sum(found.rollouts.values()), sum(found.tokens.values())
    by = f" ({_listed(found.rollouts)})" if found.rollouts else ""
    text = f"{rollouts} rollouts{by}, {quantity(tokens)} policy tokens"
    if found.llm is not None:
        llm = found.llm
        tokens = llm.prompt_tokens + llm.completion_tokens
        failed = f" ({llm.failed} failed)" if llm.failed else ""
        text += (
            f", language models: {llm.calls} calls{failed}, {tokens:,} tokens, money {llm.money:g}"
        )
    return text


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def _times(steps: Mapping[str, int]) -> list[str]:
    return [name if count == 1 else f"{name} ×{count}" for name, count in steps.items()]


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in columns:
        table.add_column(name)
    return table


# --- as JSON ---


def to_json_values(view: EvolutionView, rounds: Sequence[RoundView]) -> dict[str, Any]:
    """Everything that is shown, with the task keys, as JSON values."""
    numbers = {item.number for item in rounds}
    return {
        "schema": SCHEMA,
        "run": view.run.name,
        "mode": view.run.mode,
        "seed": view.run.seed,
        "finished": view.run.finished,
        "rounds": [_round_json(item) for item in rounds],
        "ledger": {
            "entries": [
                _entry_json(entry)
                for entry in view.ledger.entries
                if entry.candidate.round in numbers
            ],
            "kinds": [asdict(row) for row in view.ledger.kinds],
            "proposed": asdict(view.ledger.proposed),
            "shipped": asdict(view.ledger.shipped),
        },
        "spent": _spent_json(view.spent),
        "problems": list(view.problems),
    }


def _round_json(item: RoundView) -> dict[str, Any]:
    return {
        "round": item.number,
        "outcome": item.outcome,
        "reason": item.reason,
        "incumbent": item.incumbent and {"runs": item.incumbent[0], "passed": item.incumbent[1]},
        "digest": encode(item.digest) | {"compression": item.digest.compression}
        if item.digest
        else None,
        "landscape": encode(item.landscape) if item.landscape else None,
        "variant": item.variant,
        "drift": [encode(test) for test in item.drift],
        "candidates": [_candidate_json(candidate) for candidate in item.candidates],
        "recorded": item.recorded.model_dump(mode="json") if item.recorded else None,
        "steps": dict(item.steps),
        "spent": _spent_json(item.spent),
    }


def _spent_json(found: Spent) -> dict[str, Any]:
    return {
        "rollouts": dict(found.rollouts),
        "tokens": dict(found.tokens),
        "llm": found.llm.model_dump() if found.llm is not None else None,
    }


def _candidate_json(item: CandidateView) -> dict[str, Any]:
    judged = item.judged
    return {
        "candidate_id": judged.candidate_id,
        "harness_id": judged.harness_id,
        "parent": judged.parent,
        "source": item.source,
        "edits": to_json(judged.edits),
        "diff": item.diff,
        "manifest": encode(judged.manifest),
        "screens": {name: {"ok": r.ok, "note": r.note} for name, r in item.screens.items()},
        "select": encode(judged.select) if judged.select else None,
        "confirm": encode(judged.confirm) if judged.confirm else None,
        "verdict": encode(judged.verdict),
    }


def _entry_json(entry: Entry) -> dict[str, Any]:
    return {
        "candidate_id": entry.candidate.candidate_id,
        "round": entry.candidate.round,
        "decision": entry.candidate.verdict.decision,
        "gate": _attribution_json(entry.gate),
        "later": _attribution_json(entry.later) if entry.later else None,
    }


def _attribution_json(found: Attribution) -> dict[str, Any]:
    return asdict(found) | {"predicted": found.predicted, "hit_rate": found.hit_rate}
