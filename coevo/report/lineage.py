"""A run's harness lineage for the page: every candidate's diff, prediction, verdict and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coevo.evolution_read import CandidateView, EvolutionView, RoundView
from harness.change import describe
from harness.evolve.ledger import Attribution, Entry
from harness.evolve.records import Manifest, PairedResult

MAX_DIFF = 20_000
"""Characters kept of one diff."""


def lineage(view: EvolutionView) -> dict[str, Any]:
    """The rounds in which something was proposed or decided, and the record of each kind of edit."""
    entries = {entry.candidate.candidate_id: entry for entry in view.ledger.entries}
    harnesses = {record.round: record.harness_id for record in view.run.rounds}
    return {
        "rounds": [
            _round(item, entries, harnesses) for item in view.rounds if item.outcome != "off"
        ],
        "kinds": [
            {
                "kind": row.kind,
                "judged": row.judged,
                "shipped": row.shipped,
                "predicted": row.predicted,
                "hits": row.hits,
                "reputation": row.reputation,
                "held_back": row.held_back,
            }
            for row in view.ledger.kinds
        ],
    }


def _round(
    item: RoundView, entries: Mapping[str, Entry], harnesses: Mapping[int, str]
) -> dict[str, Any]:
    candidates = [_candidate(c, entries.get(c.judged.candidate_id)) for c in item.candidates]
    if not candidates and item.recorded is not None:
        # The round's line in metrics.jsonl stands in for verdicts that cannot be read.
        candidates = [c.model_dump() for c in item.recorded.candidates]
    objectives = item.landscape.objectives if item.landscape else ()
    return {
        "round": item.number,
        "outcome": item.outcome,
        "reason": item.reason,
        "harness_id": harnesses.get(item.number),
        "variant": item.variant,
        "incumbent": item.incumbent and {"runs": item.incumbent[0], "passed": item.incumbent[1]},
        "objectives": [
            {"category": o.category, "tasks": len(o.tasks), "weight": o.weight}
            for o in objectives[:6]
        ],
        "rollouts": sum(item.spent.rollouts.values()),
        "tokens": sum(item.spent.tokens.values()),
        "llm": item.spent.llm.model_dump() if item.spent.llm is not None else None,
        "drift": [test.model_dump() for test in item.recorded.drift] if item.recorded else [],
        "candidates": candidates,
    }


def _candidate(item: CandidateView, entry: Entry | None) -> dict[str, Any]:
    judged = item.judged
    verdict = judged.verdict
    return {
        "id": judged.candidate_id,
        "harness_id": judged.harness_id,
        "parent": judged.parent,
        "edits": [describe(edit) for edit in judged.edits],
        "kind": judged.manifest.bucket,
        "source": item.source,
        "verdict": verdict.decision,
        "reasons": list(verdict.reasons),
        "numbers": dict(verdict.numbers),
        "diff": _cut(item.diff),
        "prediction": _prediction(judged.manifest),
        "screens": [
            {"name": name, "ok": result.ok, "note": result.note}
            for name, result in item.screens.items()
        ],
        "select": _draw(judged.select),
        "confirm": _draw(judged.confirm, verdict.numbers),
        "gate": _attribution(entry.gate) if entry else None,
        "later": _attribution(entry.later) if entry and entry.later else None,
    }


def _prediction(manifest: Manifest) -> dict[str, Any]:
    impact, signature = manifest.predicted_impact, manifest.attribution_signature
    return {
        "cause": manifest.root_cause,
        "fix": manifest.fix,
        "unlock": len(impact.will_unlock),
        "stabilise": len(impact.will_stabilise),
        "at_risk": len(impact.at_risk),
        "why_at_risk_hold": manifest.why_at_risk_hold,
        "claims": [claim.claim for claim in manifest.capability_evidence],
        "signature": f"{signature.type} {signature.name!r}, at least {signature.expected_min_calls}",
        "evidence": len(manifest.failure_evidence),
    }


def _draw(
    draw: PairedResult | None, numbers: Mapping[str, float] | None = None
) -> dict[str, Any] | None:
    """A paired draw; lo and hi where the acceptor recorded an interval of it."""
    if draw is None:
        return None
    n = max(len(draw.tasks), 1)
    cost = draw.candidate_tokens / draw.incumbent_tokens - 1 if draw.incumbent_tokens > 0 else None
    return {
        "mean_d": draw.mean_d if draw.tasks else None,
        "n": len(draw.tasks),
        "lo": (numbers or {}).get("lower"),
        "hi": (numbers or {}).get("upper"),
        "repeats": max((task.repeats for task in draw.tasks), default=0),
        "incumbent": sum(task.incumbent for task in draw.tasks) / n,
        "candidate": sum(task.candidate for task in draw.tasks) / n,
        "cost": cost,
        "lost": draw.lost,
        "asked": draw.asked,
    }


def _attribution(found: Attribution) -> dict[str, Any]:
    outcomes = found.outcomes
    return {
        "predicted": found.predicted,
        "hits": len(found.hits),
        "unpredicted": len(found.unpredicted),
        "unlocked": len(outcomes.unlocked),
        "stabilised": len(outcomes.stabilised),
        "regressed": len(outcomes.regressed),
        "risk_met": len(found.risk_met),
        "unchanged": len(outcomes.unchanged),
    }


def _cut(text: str) -> str:
    if len(text) <= MAX_DIFF:
        return text
    return f"{text[:MAX_DIFF]}\n… {len(text) - MAX_DIFF} characters cut"
