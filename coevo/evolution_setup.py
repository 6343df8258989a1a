"""What a run gives to evolution, and whether its recipe can do with it: checked before any cost."""

from __future__ import annotations

import random

from coevo.config import RunConfig
from harness.evolve.llm.client import Chat
from harness.evolve.llm.roles import least_tokens
from harness.evolve.parts import NEEDS, Ask, GateEvidence
from harness.evolve.recipe import Parts, Recipe, check_needs, load_recipe
from harness.evolve.selectors.batch import Batch

AVAILABLE = frozenset(NEEDS) - {"llm", "embeddings"}
"""What every run gives to a recipe's parts; `llm` comes with `evolution.llm`."""


class EvolutionBudgetError(ValueError):
    """A budget that would not last for two rounds of evolution."""


def set_up(
    config: RunConfig, journal: str | None = None
) -> tuple[Recipe, Parts | None, Chat | None]:
    """The recipe with its parts, and the language model where a part needs one.

    journal: where answers of the model are kept (None: nowhere, for a check). Raises RecipeError
    for a recipe that cannot run, LLMSetupError for a missing key, and for budgets too small for two
    rounds EvolutionBudgetError or BudgetTooSmall.
    """
    recipe, parts = load_recipe(config.evolution.recipe if config.evolves else "none")
    settings = config.evolution
    check_needs(recipe, parts, AVAILABLE | ({"llm"} if settings.llm else set()))
    if parts is None:
        return recipe, None, None
    rounds = len(range(settings.start, config.rounds, settings.every))
    least = least_rollouts(parts, config.tasks.per_round)
    if settings.max_rollouts is not None and settings.max_rollouts < min(rounds, 2) * least:
        raise EvolutionBudgetError(
            f"evolution.max_rollouts is {settings.max_rollouts}; the select draw of one candidate "
            f"takes {least} rollouts and {min(rounds, 2)} rounds {min(rounds, 2) * least}. Raise it, "
            "or lower tasks.per_round"
        )
    if settings.llm is None or not any("llm" in part.needs for part in parts.all()):
        return recipe, parts, None
    rng = random.Random(f"{config.seed}/evolve/llm")
    chat = Chat.from_config(settings.llm, journal, rng)
    chat.check_budget(rounds, least_tokens(parts))
    return recipe, parts, chat


def least_rollouts(parts: Parts, per_round: int) -> int:
    """What a round that judges anything takes: one candidate's select draw, the incumbent's share
    included."""
    tasks = per_round
    if isinstance(parts.selector, Batch) and parts.selector.max_tasks is not None:
        tasks = min(tasks, parts.selector.max_tasks)
    first = parts.acceptor.step(GateEvidence("C-R0-01"))
    repeats = first.repeats if isinstance(first, Ask) else 0
    return 2 * tasks * repeats
