"""The critic's step: what the rules refuse, one revision at most, and whose order counts."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest
from evolve_world import H0, World, helps
from pydantic import PrivateAttr

from harness.evolve.critics.rules import RulesCritic, unaddressed
from harness.evolve.engine import evolve
from harness.evolve.journal import Journal
from harness.evolve.meta import Memory
from harness.evolve.parts import PartFailed, Situation
from harness.evolve.proposers.catalogue import CatalogueProposer
from harness.evolve.recipe import RECIPES, load_recipe
from harness.evolve.records import Digest, Evidence, Landscape, Review
from harness.evolve.state import EvolutionState

IDS = ("C-R1-01", "C-R1-02")
"""What the catalogue proposes in this world: goal_filter, holding_state."""


class Says(RulesCritic):
    """Answers with these reviews in turn."""

    reviews: tuple[Review, ...]
    _asked: list[tuple[str, ...]] = PrivateAttr(default_factory=list)

    async def review(self, at, digest, landscape, candidates):
        self._asked.append(tuple(item.candidate_id for item in candidates))
        return self.reviews[len(self._asked) - 1]


def with_critic(critic=None, proposer=None, **settings):
    recipe, parts = load_recipe("aegis_catalogue")
    assert parts is not None
    parts = replace(parts, critic=critic or parts.critic, proposer=proposer or parts.proposer)
    return recipe.model_copy(update=settings), parts


def round_of(world, recipe, journal=None, state=None):
    state = state or EvolutionState.start(H0, round=1)
    args = (state, world.history(H0), world.evaluate, journal or Journal(), random.Random(7))
    return asyncio.run(evolve(*recipe, *args))


def candidates(world=None):
    """The catalogue's candidates on this world, with the situation that they answer."""
    _, parts = load_recipe("aegis_catalogue")
    world = world or World(helps("goal_filter"))
    at = Situation(1, H0, tuple(world.history(H0)), Memory(), 1)

    async def go():
        digest = await parts.analyst.digest(at)
        landscape = await parts.director.plan(at, digest)
        return digest, landscape, await parts.proposer.propose(at, digest, landscape)

    return at, *asyncio.run(go())


def review(at, digest, landscape, found):
    return asyncio.run(RulesCritic().review(at, digest, landscape, found))


def test_a_kind_that_is_held_back_is_refused_by_the_diff_not_by_the_manifest():
    at, digest, landscape, found = candidates()
    first = found[0]
    lying = replace(first, manifest=replace(first.manifest, kinds=("prompt",), bucket="prompt"))
    held = replace(landscape, held_back=(first.manifest.bucket,))
    said = review(at, digest, held, (lying,))
    assert said.ranking == ()
    assert "held back" in said.rejected[first.candidate_id]


def test_every_task_that_the_last_ship_broke_must_be_addressed():
    at, digest, landscape, found = candidates()
    broken = replace(landscape, regressed=("task-77",))
    said = review(at, digest, broken, found[:1])
    assert "task-77" in said.revise[found[0].candidate_id]
    impact = replace(found[0].manifest.predicted_impact, at_risk=("task-77",))
    named = replace(found[0], manifest=replace(found[0].manifest, predicted_impact=impact))
    assert unaddressed(named, broken) == ()
    silent = replace(named, manifest=replace(named.manifest, why_at_risk_hold=" "))
    assert unaddressed(silent, broken) == ("task-77",)
    argued = replace(found[0].manifest, why_at_risk_hold="task-77 keeps its tool")
    assert unaddressed(replace(found[0], manifest=argued), broken) == ()


def test_the_ranking_is_predicted_impact_times_reputation():
    at, _, _, found = candidates()
    wide, narrow = found[0], found[1]
    tasks = ("task-00", "task-01")
    digest = Digest(tuple(Evidence(task, "", 4, 0, "failed", actionability=1.0) for task in tasks))

    def claims(item, *names):
        impact = replace(item.manifest.predicted_impact, will_unlock=names, will_stabilise=())
        return replace(item, manifest=replace(item.manifest, predicted_impact=impact))

    both = (claims(wide, *tasks), claims(narrow, "task-00", "elsewhere"))
    assert review(at, digest, Landscape(), both).ranking == (wide.candidate_id, narrow.candidate_id)
    doubted = Landscape(reputation={both[0].manifest.bucket: 0.2})
    assert review(at, digest, doubted, both).ranking == (narrow.candidate_id, wide.candidate_id)


def test_what_the_critic_rejects_is_archived_costs_no_rollout_and_may_come_again():
    world = World(helps("goal_filter"))
    critic = Says(reviews=(Review((), dict.fromkeys(IDS, "no")),))
    result = round_of(world, with_critic(critic))
    assert (result.outcome, world.rollouts) == ("no_op", 0)
    assert [r.verdict.reasons for r in result.candidates] == [("critic: no",)] * 2
    assert result.state.memory.refused == {}
    assert result.state.memory.idle == 1


def test_a_review_that_leaves_a_candidate_out_ends_the_round_as_a_no_op():
    world = World(helps("goal_filter"))
    result = round_of(world, with_critic(Says(reviews=(Review(("C-R1-01", "C-R9-99")),))))
    assert result.outcome == "no_op"
    assert "C-R9-99" in result.reason


def test_a_revision_that_nobody_can_make_is_a_rejection():
    critic = Says(reviews=(Review(IDS[1:], {}, {IDS[0]: "narrow it"}),))
    result = round_of(World(helps("goal_filter")), with_critic(critic))
    first = result.candidates[0].verdict
    assert first.decision == "reject"
    assert "narrow it" in first.reasons[0]
    assert len(critic._asked) == 1


class Revising(CatalogueProposer):
    """The catalogue, which can also revise: it argues for the tasks at risk."""

    _notes: list[str] = PrivateAttr(default_factory=list)

    async def revise(self, at, digest, landscape, candidate, note):
        self._notes.append(note)
        manifest = replace(candidate.manifest, why_at_risk_hold=f"revised: {note}")
        return replace(candidate, manifest=manifest)


def test_a_revision_is_asked_for_once_and_reviewed_again():
    proposer = Revising.model_validate(
        {"files": ["catalogue/household.yaml"]}, context={"base": RECIPES}
    )
    critic = Says(
        reviews=(
            Review((), {}, {IDS[0]: "say why", IDS[1]: "narrow it"}),
            Review(IDS[:1], {}, {IDS[1]: "narrow it more"}),
        )
    )
    journal = Journal()
    world = World(helps("goal_filter"))
    result = round_of(world, with_critic(critic, proposer), journal)
    reports = {r.candidate.candidate_id: r for r in result.candidates}
    assert proposer._notes == ["say why", "narrow it"]
    assert reports[IDS[0]].candidate.manifest.why_at_risk_hold == "revised: say why"
    assert reports[IDS[1]].verdict.reasons == ("critic: after its revision: narrow it more",)
    assert reports[IDS[0]].select is not None
    again = round_of(World(helps("goal_filter")), with_critic(critic, proposer), journal)
    assert again.to_json() == result.to_json()
    assert len(critic._asked) == 2  # answered from the journal
    assert len(proposer._notes) == 2


@pytest.mark.parametrize(("order", "first"), [("gain", IDS[0]), ("ranking", IDS[1])])
def test_a_measured_gain_goes_before_the_ranking_unless_the_recipe_says_otherwise(order, first):
    """The literal gate ships the first that it accepts: the paper's, in the critic's order."""
    recipe, parts = load_recipe("aegis_paper")
    _, catalogue = load_recipe("aegis_catalogue")
    assert catalogue is not None
    parts = replace(catalogue, acceptor=parts.acceptor, critic=Says(reviews=(Review(IDS[::-1]),)))
    world = World(helps("goal_filter", low=0.0, high=0.9))
    result = round_of(world, (recipe.model_copy(update={"order": order}), parts))
    assert result.shipped.candidate_id == first


def test_a_part_that_fails_ends_the_round_as_a_no_op_with_its_reason():
    class Fails(RulesCritic):
        async def review(self, at, digest, landscape, candidates):
            raise PartFailed("critic: 2 answers could not be used")

    result = round_of(World(helps("goal_filter")), with_critic(Fails()))
    assert (result.outcome, result.reason) == ("no_op", "critic: 2 answers could not be used")
    assert result.state.memory.idle == 1
