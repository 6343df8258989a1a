"""One round of evolution, end to end, on a small world; resume; every outcome."""

from __future__ import annotations

import asyncio
import json
import random

import pytest
from evolve_world import H0, World, episode, helps

from harness.evolve.engine import evolve
from harness.evolve.journal import Journal
from harness.evolve.meta import Memory
from harness.evolve.recipe import load_recipe, parse_recipe
from harness.evolve.state import (
    EvolutionState,
    candidate_from_json,
    candidate_to_json,
)


def round_of(world, state=None, journal=None, recipe="aegis_catalogue", deny=(), episodes=None):
    if isinstance(recipe, str):
        recipe = load_recipe(recipe)
    state = state or EvolutionState.start(H0, round=1)
    episodes = world.history(state.incumbent) if episodes is None else episodes
    journal = journal or Journal()
    return asyncio.run(
        evolve(*recipe, state, episodes, world.evaluate, journal, random.Random(7), deny)
    )


def test_an_edit_that_helps_ships_and_the_rest_say_why_not():
    result = round_of(World(helps("goal_filter")))
    assert result.outcome == "applied"
    assert result.shipped.source == "catalogue:goal_filter"
    assert [item.id for item in result.incumbent.components] == ["goal_filter", "menu", "window"]
    assert result.state.round == 2
    assert result.state.memory.idle == 0
    verdicts = {r.candidate.candidate_id: r.verdict for r in result.candidates}
    assert sorted(verdicts) == [f"C-R1-{n:02d}" for n in range(1, len(verdicts) + 1)]
    assert all(verdict.reasons for verdict in verdicts.values())
    json.dumps([result.summary(), result.to_json()], allow_nan=False)


def test_the_shipped_candidate_is_not_proposed_again():
    world = World(helps("goal_filter"))
    first = round_of(world)
    second = round_of(world, first.state)
    sources = [report.candidate.source for report in second.candidates]
    assert "catalogue:goal_filter" not in sources


def test_an_edit_that_hurts_is_rejected_and_not_proposed_unchanged_again():
    world = World(lambda bundle, task: 0.5 if bundle.id == H0.id else 0.05)
    result = round_of(world)
    assert result.outcome == "rejected"
    assert result.incumbent == H0
    again = round_of(world, result.state)
    before = {report.candidate.source for report in result.candidates}
    assert before.isdisjoint(report.candidate.source for report in again.candidates)
    assert again.state.memory.idle == 2


def test_an_edit_that_never_fires_has_no_effect():
    world = World(helps("goal_filter"))
    world.fires = False
    result = round_of(world)
    decisions = {r.candidate.source: r.verdict.decision for r in result.candidates}
    assert decisions["catalogue:goal_filter"] == "no_effect"
    assert result.outcome == "rejected"


def test_a_round_without_failures_is_a_no_op_and_costs_nothing():
    world = World(lambda bundle, task: 1.0)
    runs = [episode(task, n, success=True) for task in world.tasks for n in range(2)]
    result = round_of(world, episodes=runs)
    assert (result.outcome, world.rollouts) == ("no_op", 0)
    assert "actionability" in result.reason
    assert result.state.memory.idle == 1


def test_patience_stops_evolution_before_anything_is_spent():
    world = World(helps("goal_filter"))
    state = EvolutionState(1, EvolutionState.start(H0).variants, Memory(idle=3))
    result = round_of(world, state)
    assert (result.outcome, world.rollouts) == ("stopped", 0)


def test_the_recipe_none_is_off():
    world = World(helps("goal_filter"))
    result = round_of(world, recipe="none")
    assert (result.outcome, result.incumbent, world.rollouts) == ("off", H0, 0)


def test_the_literal_gate_rolls_out_once_and_decides():
    world = World(helps("goal_filter", low=0.0, high=0.9))
    result = round_of(world, recipe="paper_gate")
    assert result.outcome == "applied"
    assert {request.purpose for request in world.requests} == {"smoke", "select"}


def test_infrastructure_errors_give_no_verdict_and_leave_the_state():
    world = World(helps("goal_filter"))
    state = EvolutionState.start(H0, round=1)
    episodes = world.history(H0)
    world.infra = 0.5
    result = round_of(world, state, episodes=episodes)
    assert result.outcome == "aborted"
    assert "infra" in result.reason
    assert result.state == state
    journal = Journal()
    world.infra = 1.0
    assert round_of(world, state, journal, episodes=episodes).outcome == "aborted"
    world.infra = 0.0  # mended: what was lost is asked for anew
    assert round_of(world, state, journal, episodes=episodes).outcome == "applied"


def test_a_round_without_a_scored_run_of_the_incumbent_is_no_verdict():
    world = World(helps("goal_filter"))
    state = EvolutionState.start(H0, round=1)
    runs = [episode("a", 0, outcome="infra_error"), episode("a", 1, "another harness", True)]
    for episodes in ([], runs):
        result = round_of(world, state, episodes=episodes)
        assert (result.outcome, result.state, world.rollouts) == ("aborted", state, 0)


def test_a_killed_round_resumes_without_paying_twice(tmp_path):
    whole = World(helps("goal_filter"))
    expected = round_of(whole, journal=Journal(tmp_path / "whole.jsonl"))
    for kill_at in range(1, len(whole.requests) + 1):
        world = World(helps("goal_filter"))
        path = tmp_path / f"{kill_at}.jsonl"

        async def dies(request, world=world, kill_at=kill_at):
            if len(world.requests) == kill_at - 1:
                raise KeyboardInterrupt
            return await World.evaluate(world, request)

        real, world.evaluate = world.evaluate, dies
        with pytest.raises(KeyboardInterrupt):
            round_of(world, journal=Journal(path))
        world.evaluate = real
        result = round_of(world, journal=Journal(path))
        assert len(world.requests) == len(whole.requests)
        assert result.to_json() == expected.to_json()
        assert result.state == expected.state
    replayed = World(helps("goal_filter"))
    journal = Journal(tmp_path / "whole.jsonl")
    assert round_of(replayed, journal=journal).to_json() == expected.to_json()
    assert replayed.rollouts == 0


def test_candidates_share_the_incumbents_select_runs():
    world = World(helps("goal_filter"))
    round_of(world)
    selects = [request for request in world.requests if request.purpose == "select"]
    assert len(selects) == 1
    assert selects[0].bundles[0] == H0
    confirms = [request for request in world.requests if request.purpose == "confirm"]
    assert all(request.bundles[0] == H0 and len(request.bundles) == 2 for request in confirms)


def test_a_denied_term_is_leakage():
    result = round_of(World(helps("goal_filter")), deny=["goal_filter"])
    report = next(r for r in result.candidates if r.candidate.source == "catalogue:goal_filter")
    assert report.verdict.decision == "reject"
    assert "denied term" in report.verdict.reasons[0]


def test_state_and_candidates_survive_json():
    result = round_of(World(helps("goal_filter")))
    bundles = {result.incumbent.id: result.incumbent, H0.id: H0}
    data = json.loads(json.dumps(result.state.to_json()))
    assert EvolutionState.from_json(data, bundles.__getitem__) == result.state
    candidate = result.shipped
    data = json.loads(json.dumps(candidate_to_json(candidate)))
    assert candidate_from_json(data, H0) == candidate


def test_a_task_limit_is_a_seeded_sample(tmp_path):
    spec = {
        "schema": 1,
        "name": "few",
        "selector": {"batch": {"max_tasks": 10}},
        "analyst": {"rules": {"object_verbs": ["take"]}},
        "director": "catalogue",
        "proposer": {"catalogue": {"files": ["catalogue/household.yaml"]}},
        "acceptor": "paired",
        "router": "single",
    }
    base = load_recipe.__globals__["RECIPES"]
    worlds = [World(helps("goal_filter")) for _ in range(2)]
    for world in worlds:
        round_of(world, recipe=parse_recipe(spec, base))
    assert [r.tasks for r in worlds[0].requests] == [r.tasks for r in worlds[1].requests]
    assert len(worlds[0].requests[0].tasks) == 10
