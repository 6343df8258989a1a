"""docs/evolution.md: its example part and recipe work, and its tables name all that there is."""

from __future__ import annotations

import asyncio
import re
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from evolve_world import H0, World, helps

from harness.component import Component
from harness.edit import AddComponent
from harness.evolve.catalogue import load_catalogue
from harness.evolve.meta import Memory
from harness.evolve.parts import Situation
from harness.evolve.proposers.catalogue import make_candidate
from harness.evolve.recipe import PARTS, RECIPES, parse_recipe
from harness.evolve.records import Digest

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "evolution.md").read_text()


def block(language: str) -> str:
    """The page's only code block of a language."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return found


def rows(heading: str) -> dict[str, str]:
    """First cell -> last cell of the first table under a heading."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    cells = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:3] == "| `"]
    return {row[0].strip("`"): row[-1] for row in cells}


@pytest.fixture
def one_kind(monkeypatch):
    module = types.ModuleType("one_kind")
    monkeypatch.setitem(sys.modules, "one_kind", module)
    monkeypatch.setitem(PARTS["screens"], "one_kind", "one_kind:OneKind")
    exec(block("python"), module.__dict__)
    return module.OneKind


def test_the_example_part_does_what_the_page_says(one_kind):
    world = World(helps("goal_filter"), tasks=2)
    at = Situation(1, H0, tuple(world.history(H0)), Memory(), 0)
    entry = load_catalogue(RECIPES / "catalogue" / "household.yaml")[0]
    filter_ = Component("goal_filter", "control_flow", "harness.processors.goal_filter:GoalFilter")
    one = make_candidate("C-R1-01", entry, "x", [AddComponent(filter_)], at, Digest(()))
    two = replace(one, manifest=replace(one.manifest, kinds=("control_flow", "memory")))

    def check(candidate):
        return asyncio.run(one_kind().check(candidate, at, (), world.evaluate))

    assert check(one).ok
    assert check(two).note == "touches 2 kinds: control_flow, memory"


def test_the_example_recipe_loads_with_the_example_part(one_kind):
    recipe, parts = parse_recipe(yaml.safe_load(block("yaml")), RECIPES)
    assert parts is not None
    assert [type(screen).__name__ for screen in parts.screens].count("OneKind") == 1
    assert recipe.drift_every == 3


def test_the_tables_name_every_recipe_and_every_part():
    assert set(rows("Recipes")) >= {path.stem for path in RECIPES.glob("*.yaml")}
    assert set(rows("Parts")) == set(PARTS)
    for slot, cell in rows("Parts").items():
        assert set(re.findall(r"`(\w+)`", cell)) == set(PARTS[slot]), slot
