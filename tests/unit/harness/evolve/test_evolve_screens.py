"""The screens, each on the smallest candidate that it must refuse."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from evolve_world import H0, World, episode, helps

from harness.bundle import Component, File
from harness.edit import AddComponent, PutFile, SetParam, apply
from harness.evolve.catalogue import load_catalogue
from harness.evolve.meta import Memory
from harness.evolve.parts import Situation
from harness.evolve.proposers.catalogue import make_candidate
from harness.evolve.recipe import RECIPES
from harness.evolve.records import Digest, Evidence, PredictedImpact, Signature
from harness.evolve.screens.dynamic import Landed, Smoke, SmokeLost
from harness.evolve.screens.leakage import Leakage
from harness.evolve.screens.static import (
    Build,
    CanonicalForm,
    EditBudget,
    Handbook,
    ManifestComplete,
)

WORLD = World(helps("goal_filter"), tasks=4)
AT = Situation(1, H0, tuple(WORLD.history(H0)), Memory(), 0, deny=("secret-answer",))
DIGEST = Digest((Evidence("task-00", "", 4, 0, "failed", "loop", ("loop",)),))
ENTRY = load_catalogue(RECIPES / "catalogue" / "household.yaml")[0]


def candidate(*edits, **changes):
    edits = edits or (
        AddComponent(
            Component("goal_filter", "control_flow", "harness.processors.goal_filter:GoalFilter")
        ),
    )
    return replace(make_candidate("C-R1-01", ENTRY, "x", edits, AT, DIGEST), **changes)


def check(screen, item, episodes=(), evaluate=WORLD.evaluate):
    return asyncio.run(screen.check(item, AT, episodes, evaluate))


@pytest.mark.parametrize(
    "screen", [ManifestComplete(), CanonicalForm(), EditBudget(), Build(), Handbook()]
)
def test_a_catalogue_candidate_passes(screen):
    assert check(screen, candidate()).ok


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"root_cause": " "}, "root_cause is empty"),
        ({"failure_evidence": ()}, "failure_evidence is empty"),
        ({"candidate_id": "C-R9-01"}, "C-R1-NN"),
        ({"predicted_impact": PredictedImpact()}, "no task that would improve"),
        ({"edits": 2}, "declares 2 edits"),
        ({"attribution_signature": Signature("tool", "x", 0)}, "at least 1"),
    ],
)
def test_an_incomplete_manifest_is_refused(change, said):
    item = candidate()
    found = check(ManifestComplete(), replace(item, manifest=replace(item.manifest, **change)))
    assert not found.ok
    assert said in found.note


def test_a_candidate_equal_to_the_incumbent_is_refused():
    assert "change nothing" in check(CanonicalForm(), candidate(bundle=H0)).note


def test_edits_that_lead_elsewhere_are_refused():
    other = apply(H0, SetParam("menu", "max_items", 3))
    assert "do not lead" in check(CanonicalForm(), candidate(bundle=other)).note


def test_more_changes_than_the_budget_are_refused():
    edits = [SetParam("menu", "max_items", 3), SetParam("window", "turns", 1)]
    assert "2 changes" in check(EditBudget(b_max=1), candidate(*edits)).note


def test_a_harness_that_does_not_build_is_refused_and_own_code_is_left_to_the_sandbox():
    assert not check(Build(), candidate(SetParam("menu", "max_itmes", 3))).ok
    own = candidate(
        PutFile("own.py", File(b"raise SystemExit")),
        AddComponent(Component("own", "memory", "own.py:Own")),
    )
    found = check(Build(), own)
    assert found.ok
    assert "smoke" in found.note


def test_a_handbook_that_does_not_fit_the_harness_is_refused():
    def described(function):
        text = (
            "schema: 1\nbehaviours: [{name: own, duty: d, trigger: t, exit: none, "
            f"functions: ['{function}']}}]\n"
        )
        return candidate(
            PutFile("own.py", File(b"raise SystemExit\nclass Own:\n    def line(self): ...\n")),
            AddComponent(Component("own", "memory", "own.py:Own")),
            PutFile("handbook.yaml", File(text.encode())),
            AddComponent(Component("book", "handbook", path="handbook.yaml")),
        )

    assert check(Handbook(), described("own.py:Own.line")).ok
    found = check(Handbook(), described("own.py:Own.lime"))
    assert not found.ok
    assert "own.py has no 'Own.lime'" in found.note


@pytest.mark.parametrize(
    "text", ["it is Secret-Answer!", "task-03", "Put an apple in the fridge, always."]
)
def test_task_knowledge_in_an_edit_is_leakage(text):
    item = candidate(PutFile("prompts/system.md", File(text.encode())))
    assert "leakage" in check(Leakage(), item).note
    clean = candidate(PutFile("prompts/system.md", File(b"Put things where they belong.")))
    assert check(Leakage(), clean).ok


def test_a_candidate_that_breaks_in_the_smoke_run_is_refused():
    async def broken(request):
        return [episode(request.tasks[0], 0, request.bundles[0].id, outcome="harness_error")]

    async def lost(request):
        return [episode(request.tasks[0], 0, request.bundles[0].id, outcome="infra_error")]

    assert "harness_error" in check(Smoke(), candidate(), evaluate=broken).note
    assert check(Smoke(), candidate()).ok
    with pytest.raises(SmokeLost, match="C-R1-01"):
        check(Smoke(), candidate(), evaluate=lost)


def test_a_signature_that_does_not_fire_has_not_landed():
    item = candidate()
    runs = [episode(harness=item.harness_id, fired={"goal_filter": 2})]
    assert "fired 2 times; 3 expected" in check(Landed(), item, runs).note
    assert check(Landed(), item, [*runs, replace(runs[0], seed=1)]).ok
