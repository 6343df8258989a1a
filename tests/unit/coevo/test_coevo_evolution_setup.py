"""What a run gives to evolution: refused before any cost where it does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coevo.config import ConfigError, RunConfig, parse_config
from coevo.evolution_setup import EvolutionBudgetError, least_rollouts, set_up
from coevo.preflight import preflight
from harness.evolve.llm.errors import BudgetTooSmall, LLMSetupError
from harness.evolve.recipe import RecipeError, load_recipe

ROOT = Path(__file__).resolve().parents[3]
LLM = {
    "endpoints": {"local": {"base_url": "http://localhost:1/v1", "model": "m"}},
    "roles": {"default": ["local"]},
}


def config(mode: str = "harness", rounds: int = 3, **evolution: Any) -> RunConfig:
    data = {
        "mode": mode,
        "rounds": rounds,
        "harness": {"bundle": str(ROOT / "configs" / "harness" / "household")},
        "policy": {"model": "somewhere"},
        "tasks": {"per_round": 10, "samples": 4},
        "evolution": {"recipe": "aegis_catalogue", **evolution},
    }
    return parse_config(data)


def test_a_mode_that_does_not_evolve_sets_nothing_up():
    recipe, parts, chat = set_up(config("frozen"))
    assert (recipe.name, parts, chat) == ("none", None, None)


def test_a_rollout_budget_too_small_for_two_rounds_is_refused_with_the_numbers():
    parts = load_recipe("aegis_catalogue")[1]
    assert parts is not None
    assert least_rollouts(parts, 10) == 40  # two harnesses, ten tasks, twice
    with pytest.raises(EvolutionBudgetError, match="2 rounds 80"):
        set_up(config(max_rollouts=79))
    set_up(config(max_rollouts=80))
    set_up(config(max_rollouts=40, every=3))  # one round only
    with pytest.raises(ConfigError, match="max_rollouts is 79"):
        preflight(config(max_rollouts=79))


def test_roles_of_language_models_need_a_model():
    with pytest.raises(RecipeError, match="director: LLMDirector needs llm"):
        set_up(config(recipe="aegis"))
    pytest.importorskip("openai")
    _, parts, chat = set_up(config(recipe="aegis", llm=LLM))
    assert chat is not None
    assert parts is not None
    assert set_up(config(llm=LLM))[2] is None  # the catalogue asks nobody


def test_a_key_or_a_token_budget_that_is_missing_is_said_first():
    pytest.importorskip("openai")
    endpoint = {**LLM["endpoints"]["local"], "api_key_env": "NO_SUCH_KEY_IS_SET"}  # type: ignore[index]
    keyed = {**LLM, "endpoints": {"local": endpoint}}
    with pytest.raises(LLMSetupError, match="NO_SUCH_KEY_IS_SET"):
        set_up(config(recipe="aegis", llm=keyed))
    with pytest.raises(BudgetTooSmall, match=r"budget.tokens is 100"):
        set_up(config(recipe="aegis", llm={**LLM, "budget": {"tokens": 100}}))
