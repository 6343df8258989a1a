"""Recipes and catalogues: shipped ones load, wrong ones are refused with the nearest name."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from evolve_world import H0, MENU

from harness.bundle import Bundle, Component
from harness.edit import AddComponent, SetParam, apply
from harness.evolve.catalogue import CatalogueError, concrete, load_catalogue
from harness.evolve.parts import NEEDS
from harness.evolve.recipe import RECIPES, RecipeError, check_needs, load_recipe, parse_recipe

HOUSEHOLD = RECIPES / "catalogue" / "household.yaml"
GOOD = yaml.safe_load((RECIPES / "aegis_catalogue.yaml").read_text())


def problems(**changes) -> str:
    with pytest.raises(RecipeError) as caught:
        parse_recipe({**GOOD, **changes}, RECIPES)
    return str(caught.value)


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_recipe_loads(path: Path):
    recipe, parts = load_recipe(path)
    assert recipe.name == path.stem
    assert (parts is None) == recipe.off
    check_needs(recipe, parts, set(NEEDS) - {"embeddings"})


def test_a_misspelt_recipe_part_or_parameter_names_the_nearest():
    with pytest.raises(RecipeError, match="did you mean 'aegis_catalogue'"):
        load_recipe("aegis_catalog")
    assert "did you mean 'paired'" in problems(acceptor="pared")
    assert "did you mean 'repeats_max'" in problems(acceptor={"paired": {"repeat_max": 4}})
    assert "did you mean 'patience'" in problems(patients=3)
    assert "did you mean 'leakage'" in problems(screens=["leakge"])


def test_every_problem_is_named_at_once():
    text = problems(acceptor={"paired": {"level": 2}}, router=None, selector={"batch": {}, "b": {}})
    assert "acceptor.paired.level = 2" in text
    assert "router: missing" in text
    assert "must name one part" in text


def test_a_missing_catalogue_file_is_refused():
    text = problems(proposer={"catalogue": {"files": ["catalogue/houshold.yaml"]}})
    assert "did you mean 'household.yaml'" in text


def test_what_a_run_does_not_have_is_refused_before_anything_is_spent():
    recipe, parts = load_recipe("aegis_catalogue")
    with pytest.raises(RecipeError, match="acceptor: Paired needs labels"):
        check_needs(recipe, parts, {"repeats", "harness_trace"})
    with pytest.raises(RecipeError, match="Landed needs harness_trace"):
        check_needs(recipe, parts, {"labels", "repeats"})


def test_every_household_entry_applies_to_a_fitting_harness_and_builds():
    from harness.build import build

    for entry in load_catalogue(HOUSEHOLD):
        for _, edits in concrete(entry, H0):
            build(apply(H0, edits), allow_own_code=False)


def test_what_is_there_already_is_not_proposed():
    entries = {entry.name: entry for entry in load_catalogue(HOUSEHOLD)}
    ((_, (edit,)),) = concrete(entries["goal_filter"], H0)
    assert isinstance(edit, AddComponent)
    assert concrete(entries["goal_filter"], apply(H0, edit)) == []
    labels = [label for label, _ in concrete(entries["window_turns"], H0)]
    assert "window_turns=4" not in labels  # the class's default
    assert "window_turns=2" in labels
    renamed = Bundle((Component("choices", MENU.kind, MENU.entrypoint, {"max_items": 8}),))
    edits = [edits for _, edits in concrete(entries["menu_size"], renamed)]
    assert (SetParam("choices", "max_items", 8),) not in edits
    assert (SetParam("choices", "max_items", 16),) in edits
    assert concrete(entries["window_turns"], renamed) == []


def test_a_wrong_catalogue_entry_is_named(tmp_path):
    data = yaml.safe_load(HOUSEHOLD.read_text())
    data["entries"][0]["kind"] = "controlflow"
    data["entries"][1]["when"] = ["lop"]
    data["entries"][2]["values"] = []
    data["entries"][3]["edits"] = [{"op": "add_componnet"}]
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(CatalogueError) as caught:
        load_catalogue(path)
    for text in ("goal_filter: unknown kind", "'loop'", "loop_guard: `values`", "add_component"):
        assert text in str(caught.value)
