"""The cards of what leaves a run: Markdown under a YAML header, facts from the run's records only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from coevo.eval_pairs import AtRound, RunPairs
from coevo.live import with_interval
from coevo.records import SPLITS, Evaluation
from harness.bundle import Bundle
from harness.change import describe
from harness.store import Record, Store

NOT_MEASURED = "This pair was not measured by its run; `coevo eval` measures it."


@dataclass(frozen=True)
class Facts:
    """Of a run at a round. results: by split, of the pair that served then."""

    pairs: RunPairs
    at: AtRound
    results: Mapping[str, Evaluation]

    @property
    def config(self) -> Mapping[str, Any]:
        return self.pairs.run.config


def facts(pairs: RunPairs, at: AtRound) -> Facts:
    """What the run measured of the pair of this round. Raises InputError for a damaged file."""
    results: dict[str, Evaluation] = {}
    for split in SPLITS:
        for found in pairs.evaluations(split):
            same = (found.harness_id, found.policy_version) == (at.harness_id, at.policy_version)
            if same and not found.variants:
                results[split] = found
    return Facts(pairs, at, results)


def harness_card(known: Facts, bundle: Bundle, license: str) -> str:
    """README.md beside an exported harness."""
    run, at = known.pairs.run, known.at
    header = {
        "license": license,
        "tags": ["coevo", "agent-harness"],
        "harness_id": bundle.id,
        "schema": 1,
        "run": run.name,
        "round": at.round,
        "environment": _environment(known),
        "results": _header_results(known),
    }
    store = Store(known.pairs.dir.store)
    steps = store.lineage(bundle.id)
    components = "\n".join(f"- `{c.id}` ({c.kind}): {c.entrypoint or c.path or 'no code'}"
                           for c in bundle.components)  # fmt: skip
    return f"""{_front(header)}
# Harness {bundle.id[:12]}

The main harness of run `{run.name}` (mode {run.mode}, seed {run.seed}), {_when(known)}. It was made
for environment `{_environment(known)}` and served policy version {at.policy_version}, which began as
{_policy(known)}.

## Components

{components}

## Lineage

{_lineage(steps)}

{_evolution(known, steps)}

## Results

{_results(known)}

## Use

The directory beside this file is the bundle; its id is the sha256 of its content:

    coevo harness show {directory_name(bundle)}
    coevo eval --harness {directory_name(bundle)} --policy MODEL --config CONFIG -o result.json

A harness may hold code that a language model wrote. coevo runs such code in its sandbox only; so
should you.
"""


def model_card(known: Facts, fingerprint: str, base: str, license: str) -> str:
    """README.md of an exported model directory."""
    run, at = known.pairs.run, known.at
    header: dict[str, Any] = {
        "license": license,
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["coevo", "agents", "reinforcement-learning"],
        "run": run.name,
        "round": at.round,
        "policy_version": at.policy_version,
        "fingerprint": fingerprint,
        "harness_id": at.harness_id,
        "environment": _environment(known),
        "results": _header_results(known),
    }
    return f"""{_front(header)}
# Policy version {at.policy_version} of run {run.name}

{_trained(known, base)}

sha256 of the tensors (coevo's fingerprint): `{fingerprint}`.

## Results

{_results(known)}

These hold under harness `{at.harness_id}`, which this model learned with: another harness may give
other figures. `coevo export harness` takes it out of the same run.

## Use

    AutoModelForCausalLM.from_pretrained(DIRECTORY)
    vllm serve DIRECTORY
    coevo eval --harness HARNESS --policy DIRECTORY --config CONFIG -o result.json
"""


def directory_name(bundle: Bundle) -> str:
    """Of an exported bundle: carries its id."""
    return f"harness-{bundle.id[:12]}"


# --- parts ---


def _front(header: Mapping[str, Any]) -> str:
    return f"---\n{yaml.safe_dump(dict(header), sort_keys=False, allow_unicode=True)}---\n"


def _environment(known: Facts) -> str:
    return str(known.config.get("environment", {}).get("name", "unknown"))


def _policy(known: Facts) -> str:
    policy = known.config.get("policy", {})
    if policy.get("api"):
        return str(policy["api"]["model"])
    return str(policy.get("model") or "a small model that the run made (policy.warmstart)")


def _when(known: Facts) -> str:
    last = max(known.pairs.rounds)
    state = "" if known.pairs.run.finished else "; the run is not finished"
    return f"at the start of round {known.at.round} of {last}{state}" if known.at.round < last else (
        f"as its round {last - 1} left it{state}" if last else f"as it began{state}"
    )  # fmt: skip


def _trained(known: Facts, base: str) -> str:
    run, version = known.pairs.run, known.at.policy_version
    if version == 0:
        return f"The model that the run began with, unchanged: {base}."
    steps = [r for r in run.rounds if r.train is not None and r.policy_version < version]
    trainer = known.config.get("trainer", {})
    count = sum(r.train.steps for r in steps if r.train is not None)
    segments = f"{len(steps)} rounds, {count} optimiser steps"
    return (
        f"Trained from {base} by run `{run.name}` (mode {run.mode}, seed {run.seed}): {segments} of "
        f"cross-harness GRPO (ratio {trainer.get('ratio', 'as by default')}, learning rate "
        f"{trainer.get('lr', 'as by default')}) on the run's own rollouts of split `evolve`. No "
        "held-out task was trained on."
    )


def _lineage(steps: Sequence[Record]) -> str:
    lines = []
    for record in steps:
        when = f"round {record.round}" if record.round is not None else "before the run"
        edits = "; ".join(describe(edit) for edit in record.edits) or record.note or "no edit"
        verdict = f", {record.verdict}" if record.verdict else ""
        lines.append(
            f"- `{record.id[:12]}` ({when}, {record.source or 'unknown'}{verdict}): {edits}"
        )
    return "\n".join(lines) or "No record of where it is from."


def _evolution(known: Facts, steps: Sequence[Record]) -> str:
    if not any(record.parents for record in steps):
        return "This is the harness that the run began with: nothing of it was evolved."
    recipe = known.config.get("evolution", {}).get("recipe", "unknown")
    return f"Evolved by recipe `{recipe}` on rollouts of split `evolve`."


def _header_results(known: Facts) -> list[dict[str, Any]]:
    return [
        {
            "split": split,
            "success": e.result.success,
            "interval_95": [round(e.result.lo, 4), round(e.result.hi, 4)],
            "episodes": e.result.n,
        }
        for split, e in known.results.items()
    ]


def _results(known: Facts) -> str:
    if not known.results:
        return NOT_MEASURED
    rows = "\n".join(
        f"| {split} | {with_interval(e.result)} | {e.result.n} |"
        for split, e in known.results.items()
    )
    return f"""| split | success in %, 95% Wilson interval | episodes |
|---|---|---|
{rows}

Of the pair that served then, measured by the run itself. Split `evolve` is what evolution and
training saw; `heldout`, `valid_seen` and `ood` are sealed: measured, never learned from."""
