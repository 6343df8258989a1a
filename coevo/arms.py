"""The arms of an experiment: one configuration each, and the tokens that best_of_n is to match."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from coevo.config import BestOfNConfig, Mode, RunConfig, load_config
from coevo.errors import InputError
from coevo.metrics import MetricsError, read_metrics
from harness.component import nearest
from harness.evolve.journal import JournalError, read_entries

MATCHED = ("harness", "coevolve")
"""Arms whose tokens best_of_n matches, the first one present: with weights fixed, evolution's alone."""


def parse_seeds(text: str) -> list[int]:
    """Run seeds of `--seeds`: a bare number n is n seeds, 0 to n − 1; with a comma it is a list, "3,"
    the seed 3 alone. Raises InputError."""
    try:
        seeds = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        seeds = []
    listed = list(range(*seeds)) if "," not in text and len(seeds) == 1 else seeds
    if not listed or min(listed) < 0 or len(set(listed)) < len(listed):
        raise InputError(
            f"--seeds {text}: expected a number of seeds (3 means 0, 1 and 2) or a list of different "
            "seeds from 0 up (0,2; a single one is written 3,)"
        )
    return listed


def parse_arms(text: str) -> list[str]:
    """Modes of `--arms`, comma-separated. Raises InputError."""
    arms = [part.strip() for part in text.split(",") if part.strip()]
    unknown = [arm for arm in arms if arm not in get_args(Mode)]
    if unknown or not arms or len(set(arms)) < len(arms):
        raise InputError(
            f"--arms {text}: expected different ones of {', '.join(get_args(Mode))}"
            + "".join(f"; {arm!r} is none{nearest(arm, get_args(Mode))}" for arm in unknown)
        )
    return arms


def arm_configs(
    path: str | Path, overrides: Sequence[str], arms: Sequence[str], seeds: Sequence[int]
) -> list[RunConfig]:
    """One configuration an arm and seed, in the order in which they are to run.

    best_of_n comes after the others of its seed: unless the configuration sets `best_of_n.n` or
    `best_of_n.match`, it matches the tokens of the seed's arm that evolves. Raises ConfigError, and
    InputError where there is none.
    """
    base = load_config(path, [o for o in overrides if not o.startswith("mode=")])
    given = base.best_of_n != BestOfNConfig()
    matched = next((arm for arm in MATCHED if arm in arms), None)
    if "best_of_n" in arms and not given and matched is None:
        raise InputError(
            f"--arms {','.join(arms)}: best_of_n matches the tokens of an arm that evolves, and "
            f"there is none; add {' or '.join(MATCHED)}, or set best_of_n.n or best_of_n.match"
        )
    configs = []
    for seed in seeds:
        for arm in sorted(arms, key=lambda arm: arm == "best_of_n"):
            own = [*overrides, f"mode={arm}", f"seed={seed}", f"name={base.name}-{arm}-s{seed}"]
            if arm == "best_of_n" and not given:
                own.append(f"best_of_n.match={base.name}-{matched}-s{seed}")
            configs.append(load_config(path, own))
    return configs


def matched_run(config: RunConfig) -> Path | None:
    """Directory of the run that `config.best_of_n.match` names."""
    name = config.best_of_n.match
    if name is None:
        return None
    beside = Path(config.runs_dir) / name
    return beside if beside.is_dir() else Path(name)


def learning_tokens(run: Path) -> int:
    """Tokens that a finished run spent on its rollouts and its evolution: its held-out measurements
    are left out, and tokens of language models that served its evolution count like the policy's.

    Raises InputError where it is no finished run."""
    if not (run / "summary.json").is_file():
        raise InputError(
            f"best_of_n.match: {run} is no finished run (it has no summary.json); finish it first "
            "with `coevo resume`, or set best_of_n.n"
        )
    try:
        entries, _ = read_entries(run / "journal.jsonl")
        rounds, _ = read_metrics(run / "metrics.jsonl")
    except (OSError, JournalError, MetricsError) as error:
        raise InputError(f"best_of_n.match: {run}: {error}; or set best_of_n.n") from error
    spent: dict[str, int] = {}
    for entry in entries:
        if entry.key.endswith(("/rollout", "/evolve")):
            # A phase that was done again under other inputs was paid again.
            spent[f"{entry.key} {entry.inputs}"] = sum(entry.result["tokens"])
    models = [record.evolution.llm for record in rounds]
    return sum(spent.values()) + sum(
        llm.prompt_tokens + llm.completion_tokens for llm in models if llm is not None
    )


def another(spent: int, repeats: int, budget: int) -> bool:
    """Whether one more repeat brings the tokens nearer to the budget. repeats: those that `spent`
    paid; the first is always made, for its cost is not known yet."""
    return repeats == 0 or spent + spent / repeats / 2 <= budget
