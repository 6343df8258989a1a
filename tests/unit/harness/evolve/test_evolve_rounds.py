"""Many rounds: patience and its end, the rollout budget, drift and rollback, variants in conflict."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from itertools import pairwise

import pytest
from evolve_world import H0, MENU, World, helps

from harness.bundle import Bundle
from harness.edit import SetParam, apply
from harness.evolve.engine import evolve, neediest, sat_out
from harness.evolve.journal import Journal
from harness.evolve.meta import Memory
from harness.evolve.parts import Variant
from harness.evolve.recipe import RECIPES, load_recipe, parse_recipe
from harness.evolve.records import Episode, HistoryRecord, RecordError
from harness.evolve.state import EvolutionState


def go(world, recipe, state, episodes=None, journal=None, **more):
    episodes = world.history(state.incumbent) if episodes is None else episodes
    return asyncio.run(
        evolve(
            *recipe, state, episodes, world.evaluate, journal or Journal(), random.Random(7), **more
        )
    )


def catalogue(**settings):
    recipe, parts = load_recipe("aegis_catalogue")
    return recipe.model_copy(update={"drift_every": 0, **settings}), parts


def worthless(bundle: Bundle, task: str) -> float:
    """Every change hurts."""
    return 0.5 if bundle.id == H0.id else 0.05


# --- patience ---


def test_every_round_without_a_ship_uses_up_patience_and_a_frozen_policy_stays_stopped():
    world, state, outcomes = World(worthless), EvolutionState.start(H0), []
    for _ in range(9):
        result = go(world, catalogue(), state)
        state = result.state
        outcomes.append(result.outcome)
    assert set(outcomes[:3]) <= {"rejected", "no_op"}
    assert outcomes[3:] == ["stopped"] * 6


def test_a_new_policy_is_tried_again_after_some_rounds():
    world, state, outcomes = World(worthless), EvolutionState.start(H0), []
    for version in range(10):
        result = go(world, catalogue(patience=1, retry_after=2), state, policy_version=version)
        state = result.state
        outcomes.append(result.outcome == "stopped")
    assert outcomes == [False, True, True] * 3 + [False]


def test_sitting_out_names_the_patience_and_ends_with_a_new_policy_only():
    recipe, _ = catalogue(patience=2, retry_after=3)
    memory = Memory(idle=2, last_try=(5, 1))
    assert sat_out(replace(memory, idle=1), recipe, 6, 1) == ""
    assert "patience is 2" in sat_out(memory, recipe, 8, 2)
    assert sat_out(memory, recipe, 9, 2) == ""
    assert sat_out(memory, recipe, 9, 1)


# --- the rollout budget ---


def test_what_the_budget_does_not_allow_ends_the_round_with_the_numbers():
    world = World(helps("goal_filter"))
    result = go(world, catalogue(), EvolutionState.start(H0), max_rollouts=100)
    assert result.outcome == "no_op"
    assert "of the 100 that evolution may spend" in result.reason
    assert world.rollouts <= 100
    assert result.state.memory.rollouts == world.rollouts


def test_the_budget_is_one_of_the_whole_run_and_counts_journaled_rollouts(tmp_path):
    world = World(helps("goal_filter"))
    path = tmp_path / "journal.jsonl"
    state = EvolutionState.start(H0)
    first = go(world, catalogue(), state, journal=Journal(path), max_rollouts=800)
    again = go(world, catalogue(), state, journal=Journal(path), max_rollouts=800)
    assert again.to_json() == first.to_json()
    assert again.state == first.state
    second = go(world, catalogue(), first.state, max_rollouts=first.state.memory.rollouts + 3)
    assert second.outcome == "no_op"


# --- drift ---


def record(harness: Bundle, parent: Bundle, key: str, round: int) -> HistoryRecord:
    return HistoryRecord(
        round, f"C-R{round}-01", harness.id, parent.id, ("control_flow",), "why", key, "apply"
    )


def chain(world: World, n: int):
    """H0 and n bundles, each one edit from the one before."""
    made = [H0]
    for number in range(n):
        made.append(apply(made[-1], (SetParam(MENU.id, "max_items", 20 + number),)))
    return made


def drifted(rate, n=5, since=2):
    """A state after n accepted edits, with H0 the best before them."""
    world = World(rate)
    made = chain(world, n)
    records = [record(b, a, f"k{i}", i) for i, (a, b) in enumerate(pairwise(made))]
    memory = Memory(history=tuple(records), since_drift=since)
    memory = memory.observe(world.history(H0, 6)).observe(world.history(made[-1], 4))
    return world, made, EvolutionState(9, (Variant("main", made[-1], H0),), memory)


def loses(points: float):
    """Each edit of the chain takes so many points off every task."""

    def rate(bundle: Bundle, task: str) -> float:
        items = bundle.component("menu").params["max_items"]
        return 0.97 - points * max(0, items - 19)

    return rate


def test_losses_that_add_up_are_rolled_back_and_remembered():
    world, made, state = drifted(loses(0.05))
    result = go(world, catalogue(drift_every=3), state)
    assert result.outcome == "rolled_back"
    assert result.incumbent == H0
    assert [request.purpose for request in world.requests] == ["drift"]
    assert world.requests[0].bundles == (H0, made[-1])
    memory = result.state.memory
    lost = [r for r in memory.history if r.decision == "rolled_back"]
    assert [r.edit_key for r in lost] == ["k0", "k1", "k2", "k3", "k4"]
    assert memory.last_regressions() == lost[0].regressed != ()
    assert memory.spent("k3", 10)
    assert memory.reputation()["control_flow"] == pytest.approx((5 + 1) / (10 + 2))
    assert result.drift[0].decision == "roll_back"
    assert result.state.variants[0].best is None


def test_an_incumbent_that_holds_is_kept_and_the_round_goes_on():
    world, made, state = drifted(loses(0.0))
    result = go(world, catalogue(drift_every=3), state)
    assert result.outcome != "rolled_back"
    assert result.drift[0].decision == "keep"
    variant = result.state.variants[0]
    assert (variant.best, variant.drift.draws) == (H0, 1)
    assert result.state.memory.since_drift == 0
    kept = EvolutionState.from_json(result.state.to_json(), {b.id: b for b in made}.__getitem__)
    assert kept == result.state


def test_drift_is_tested_when_it_is_due_and_something_has_changed():
    world, _, state = drifted(loses(0.05), since=0)
    assert go(world, catalogue(drift_every=3), state).drift == ()
    unchanged = replace(state, variants=(Variant("main", H0),))
    unchanged = replace(unchanged, memory=replace(unchanged.memory, since_drift=2))
    assert go(world, catalogue(drift_every=3), unchanged).drift == ()


def test_a_stopped_evolution_still_guards_its_harness():
    world, _, state = drifted(loses(0.05))
    state = replace(state, memory=replace(state.memory, idle=3))
    assert go(world, catalogue(drift_every=3), state).outcome == "rolled_back"
    world, _, state = drifted(loses(0.0))
    state = replace(state, memory=replace(state.memory, idle=3))
    result = go(world, catalogue(drift_every=3), state)
    assert (result.outcome, len(result.drift)) == ("stopped", 1)
    assert result.state.memory.idle == 3


def test_a_killed_drift_test_is_not_paid_twice():
    world, _, state = drifted(loses(0.05))
    journal = Journal()
    first = go(world, catalogue(drift_every=3), state, journal=journal)
    assert go(world, catalogue(drift_every=3), state, journal=journal).state == first.state
    assert len(world.requests) == 1


# --- variants in conflict ---


class Conflict(World):
    """`goal_filter` makes `carry` tasks pass and breaks `light` tasks, which pass without it."""

    def __init__(self) -> None:
        super().__init__(self.rates)

    @staticmethod
    def kind(task: str) -> str:
        return "light" if int(task[-2:]) % 2 else "carry"

    def rates(self, bundle: Bundle, task: str) -> float:
        filtered = any(item.id == "goal_filter" for item in bundle.components)
        return {"carry": (0.2, 0.9), "light": (0.98, 0.0)}[self.kind(task)][filtered]

    def run(self, bundle: Bundle, task: str, seed: int) -> Episode:
        return replace(super().run(bundle, task, seed), features={"task_type": self.kind(task)})

    def routed(self, parts, state):
        """A round's rollouts, each task under the variant that its features lead to."""
        out = []
        for task in self.tasks:
            features = {"task_type": self.kind(task)}
            n = parts.router.route(state.variants, state.memory.routing, features)
            out += [self.run(state.variants[n].bundle, task, 900 + k) for k in range(4)]
        return out


def conflict(router):
    spec = {
        "schema": 1,
        "name": "conflict",
        "selector": "batch",
        "analyst": {"rules": {"object_verbs": ["take"]}},
        "director": "catalogue",
        "proposer": {"catalogue": {"files": ["catalogue/household.yaml"], "k": 1}},
        "screens": ["manifest", "canonical", "build", "landed"],
        "acceptor": "paired",
        "router": router,
    }
    return parse_recipe(spec, RECIPES)


def evolved(router, rounds=4):
    world, state, outcomes = Conflict(), EvolutionState.start(H0), []
    recipe = conflict(router)
    for _ in range(rounds):
        result = go(world, recipe, state, world.routed(recipe[1], state))
        state = result.state
        outcomes.append(result.outcome)
    final = world.routed(recipe[1], state)
    return state, outcomes, sum(run.success for run in final) / len(final), world


def test_one_harness_stalls_where_edits_conflict_and_several_do_not():
    single, outcomes, success, _ = evolved("single")
    assert single.incumbent == H0
    assert "applied" not in outcomes
    assert success < 0.65
    state, outcomes, success, _ = evolved({"isolated": {"variants": 2}})
    assert "forked" in outcomes
    assert len(state.variants) == 2
    assert success > 0.9


def test_a_candidate_is_judged_on_the_tasks_of_its_parent_only():
    state, outcomes, _, world = evolved({"isolated": {"variants": 2}}, rounds=2)
    assert outcomes[0] == "forked"
    fork = state.variants[1]
    world.requests.clear()
    recipe = conflict({"isolated": {"variants": 2}})
    result = go(world, recipe, state, world.routed(recipe[1], state))
    chosen = {"main": "light", fork.name: "carry"}[result.variant]
    tasks = {task for request in world.requests for task in request.tasks}
    assert {world.kind(task) for task in tasks} <= {chosen}
    assert fork.name == "R0-01"


def test_the_forked_edit_is_not_proposed_to_its_parent_again():
    state, *_ = evolved({"isolated": {"variants": 2}}, rounds=1)
    fork = state.memory.history[-1]
    assert (fork.decision, fork.variant) == ("fork", "main")
    assert state.memory.of("main").spent(fork.edit_key, 1)
    assert not state.memory.of("R0-01").spent(fork.edit_key, 1)
    assert state.memory.of("main").last_regressions() == ()


def test_the_neediest_variant_is_worked_on_until_it_proves_hopeless():
    world = Conflict()
    two = (Variant("main", H0), Variant("other", chain(world, 1)[1]))
    runs = [replace(r, success=False) for r in world.history(two[1].bundle)][:40]
    runs += [replace(r, success=n % 2 == 0) for n, r in enumerate(world.history(H0)[:40])]
    assert neediest(two, runs, Memory()) == 1  # ten tasks at 1.0 against ten at 0.8
    assert neediest(two, runs, Memory(attempts={two[1].bundle.id: 1})) == 0
    assert neediest(two, runs[40:], Memory(attempts={H0.id: 9})) == 0


def test_a_state_of_another_schema_is_refused_by_name():
    data = EvolutionState.start(H0).to_json()
    assert EvolutionState.from_json(data, {H0.id: H0}.__getitem__) == EvolutionState.start(H0)
    with pytest.raises(RecordError, match=r"schema 1; this version reads schema 2"):
        EvolutionState.from_json({**data, "schema": 1}, {}.__getitem__)
