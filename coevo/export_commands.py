"""`coevo export dataset`: a data set directory with a card that says where each row is from."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import yaml

from coevo.errors import InputError
from coevo.rundir import RunDir
from coevo.runs import Run, load_run
from harness.atomic import replacing_directory
from harness.bundle import BundleError
from rollout.buffer import ReplayBuffer, ReplayError
from rollout.export import Decode, Exported, ExportError, Kind, export
from rollout.trajectory import Role

SCHEMA = 1
ROLES: tuple[Role, ...] = ("incumbent", "candidate")

USE: Mapping[str, str] = {
    "sft": """`input_ids` is a segment as the model read and wrote it; `labels` repeats the tokens that
the policy sampled and is −100 elsewhere. TRL takes both as they are:

    SFTTrainer(model, train_dataset=dataset, args=SFTConfig(...))
""",
    "preference": """Several episodes of one task met the same context (`prompt_ids`) and went on
differently. `chosen_ids` is what the one with the best reward sampled there, `rejected_ids` what the
one with the worst did. With the text columns TRL takes the data set as it is:

    DPOTrainer(model, train_dataset=dataset, args=DPOConfig(...), processing_class=tokenizer)

The token columns are those of TRL's preference collator.
""",
}


def dataset(arguments: argparse.Namespace) -> None:
    """`coevo export dataset`. Raises RunError or InputError for what a user can mend."""
    found = load_run(arguments.run)
    output: Path = arguments.output
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise InputError(f"{output} exists and is not an empty directory; choose another -o")
    roles = _roles(arguments.roles)
    bounds = _bounds(arguments.rounds)
    decode = _decoder(found, arguments.tokenizer)
    try:
        buffer = ReplayBuffer(arguments.run, 1, 1 << 62)
        chosen = [n for n in buffer.rounds() if bounds is None or n in bounds]
        if not chosen:
            there = ", ".join(map(str, buffer.rounds())) or "none"
            asked = f"rounds {arguments.rounds}" if bounds else "rounds"
            raise InputError(f"{arguments.run}: its buffer has no {asked}; rounds there: {there}")
        made = export(buffer, cast(Kind, arguments.kind), chosen, roles, decode)
    except (ExportError, ReplayError) as error:
        raise InputError(str(error)) from error
    lineage = describe(found, made, roles)
    write(made, lineage, output, arguments.format, arguments.license)
    print(
        f"{made.rows.num_rows} rows of {len(lineage['tasks'])} tasks, rounds {list(made.rounds)}, "
        f"{len(lineage['harnesses'])} harnesses: {output}"
    )
    if decode is None:
        print("without text: the run's tokenizer is not on this machine; --tokenizer gives one")
    if made.deleted:
        print(f"not exported: rounds {list(made.deleted)}, their token data was deleted")


def write(
    made: Exported, lineage: Mapping[str, Any], output: Path, form: str, license: str
) -> None:
    """The directory `output`, whole or not at all."""
    from datasets import Dataset, disable_progress_bars

    disable_progress_bars()
    rows = Dataset(made.rows)
    with replacing_directory(output) as beside:
        if form == "hf":
            rows.save_to_disk(beside)
        else:
            (beside / "data").mkdir(parents=True)
            file = beside / "data" / f"train.{form}"
            rows.to_parquet(file) if form == "parquet" else rows.to_json(file)
        (beside / "README.md").write_text(card(made, lineage, form, license), encoding="utf-8")
        (beside / "lineage.json").write_text(json.dumps(lineage, indent=1) + "\n")


def describe(found: Run, made: Exported, roles: tuple[Role, ...]) -> dict[str, Any]:
    """Where the rows are from: run, rounds, harnesses, policy versions, tasks."""
    prefixes = ("",) if made.kind == "sft" else ("chosen_", "rejected_")

    def values(name: str) -> list[Any]:
        columns = [made.rows.column(prefix + name) for prefix in prefixes]
        return sorted({value for column in columns for value in column.to_pylist()})

    return {
        "schema": SCHEMA,
        "kind": made.kind,
        "run": found.name,
        "mode": found.mode,
        "seed": found.seed,
        "environment": found.config.get("environment"),
        "policy": found.config.get("policy", {}).get("model") or "made by the run (warmstart)",
        "versions": dict(found.lock.get("versions", {})),
        "rounds": list(made.rounds),
        "rounds_deleted": list(made.deleted),
        "roles": list(roles),
        "harnesses": values("harness_id"),
        "policy_versions": values("policy_version"),
        "tasks": sorted(set(made.rows.column("task_id").to_pylist())),
        "rows": made.rows.num_rows,
    }


def card(made: Exported, lineage: Mapping[str, Any], form: str, license: str) -> str:
    """README.md of the data set, with the front matter that the hub reads."""
    head: dict[str, Any] = {
        "license": license,
        "tags": ["coevo", "agents", made.kind],
        "size_categories": [_size(made.rows.num_rows)],
    }
    if form != "hf":  # `load_from_disk` needs no such thing
        head["configs"] = [{"config_name": "default", "data_files": "data/*"}]
    columns = "\n".join(f"- `{field.name}`: {field.type}" for field in made.rows.schema)
    harnesses = "\n".join(f"- `{id}`" for id in lineage["harnesses"])
    return f"""---
{yaml.safe_dump(head, sort_keys=False)}---

# {made.kind} data of run {lineage["run"]}

{made.rows.num_rows} rows of {len(lineage["tasks"])} tasks, from rollouts of rounds
{", ".join(map(str, made.rounds))} (roles: {", ".join(lineage["roles"])}). Held-out episodes are not
in a replay buffer and never exported.

{USE[made.kind]}
## Columns

{columns}

## Lineage

Run `{lineage["run"]}` (mode {lineage["mode"]}, seed {lineage["seed"]}), policy
{lineage["policy"]}, versions {", ".join(map(str, lineage["policy_versions"]))}. Harnesses, by the
sha256 of their bundles:

{harnesses}

`lineage.json` holds the same, with the versions of the software.
"""


def _size(rows: int) -> str:
    bounds = (
        (1_000, "n<1K"),
        (10_000, "1K<n<10K"),
        (100_000, "10K<n<100K"),
        (1_000_000, "100K<n<1M"),
    )
    return next((name for limit, name in bounds if rows < limit), "1M<n<10M")


def _roles(text: str) -> tuple[Role, ...]:
    roles = tuple(part.strip() for part in text.split(","))
    unknown = [role for role in roles if role not in ROLES]
    if unknown:
        raise InputError(
            f"--roles names {unknown[0]!r}; expected some of {', '.join(ROLES)}"
            + (" (held-out episodes are never exported)" if unknown[0] == "heldout" else "")
        )
    return cast(tuple[Role, ...], roles)


def _bounds(text: str | None) -> range | None:
    if text is None:
        return None
    first, sign, last = text.partition(":")
    if not sign or not all(part.isdigit() or not part for part in (first, last)):
        raise InputError(f"--rounds is {text!r}; expected A:B, for example 0:3, :3 or 2:")
    return range(int(first or 0), int(last) if last else 1 << 31)


def _decoder(found: Run, given: Path | None) -> Decode | None:
    """The tokenizer's decoding, special tokens kept; None where the run's model is not here."""
    directory = given or own_model(found)
    if directory is None:
        return None
    if not (directory / "tokenizer.json").is_file():
        raise InputError(
            f"{directory}: there is no tokenizer.json; give --tokenizer a model directory"
        )
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(directory)
    return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False))


def own_model(found: Run) -> Path | None:
    """The model directory that the run named, or the cached one that it made; None where neither
    is on this machine."""
    from coevo.seed_model import MARKER, cache_key, cache_root

    config = RunDir.open(found.path).config()
    if config.policy.warmstart is None:
        named = Path(config.policy.model or "")
        return named if (named / "tokenizer.json").is_file() else None
    try:
        key = cache_key(config.policy.warmstart, config.environment)
    except BundleError:  # the harness that it was taught with has moved
        return None
    made = cache_root() / "models" / key
    return made if (made / MARKER).is_file() else None
