"""The single agent's acceptor, and the screen of protected paths."""

from __future__ import annotations

import asyncio

import pytest
from evolve_world import H0, World, helps

from harness.bundle import File
from harness.edit import PutFile, apply
from harness.evolve.acceptors.revert import RevertOnLoss, scores
from harness.evolve.catalogue import load_catalogue
from harness.evolve.meta import Memory
from harness.evolve.parts import Ask, GateEvidence, Situation
from harness.evolve.proposers.catalogue import make_candidate
from harness.evolve.recipe import RECIPES
from harness.evolve.records import Digest, PairedResult, PairedTask
from harness.evolve.screens.protected import Protected


def paired(candidate, incumbent, tasks=10, repeats=2, tokens=(1000.0, 1000.0)):
    """Pass rates of all tasks, and mean tokens of the two."""
    items = [PairedTask(f"t{n:02d}", candidate, incumbent, repeats) for n in range(tasks)]
    return PairedResult("select", tuple(items), *tokens)


def decide(result, **params):
    return RevertOnLoss(**params).step(GateEvidence("C-R0-01", select=result))


def test_it_asks_for_a_select_draw_first():
    assert RevertOnLoss(repeats=3).step(GateEvidence("C-R0-01")) == Ask("select", 3)


def test_the_score_is_the_pass_rate_less_the_weighted_extra_cost():
    assert scores(paired(0.5, 0.4, tokens=(1500.0, 1000.0)), 0.1) == pytest.approx((0.45, 0.4, 2))
    # cheaper earns nothing
    assert scores(paired(0.5, 0.4, tokens=(500.0, 1000.0)), 0.1) == pytest.approx((0.5, 0.4, 2))


@pytest.mark.parametrize(
    ("result", "decision"),
    [
        (paired(0.5, 0.5), "apply"),
        (paired(0.6, 0.5), "apply"),
        (paired(0.48, 0.5, tasks=100), "apply"),  # 4 runs fewer, yet within the margin
        (paired(0.4, 0.5), "apply"),  # 0.1 below, but only 2 runs fewer
        (paired(0.3, 0.5), "reject"),  # 4 runs fewer
        (paired(0.5, 0.5, tokens=(2000.0, 1000.0)), "apply"),  # dearer, with no run more or less
        (paired(0.7, 0.5, tokens=(4000.0, 1000.0)), "reject"),  # 4 runs more, not worth the cost
    ],
)
def test_a_clear_loss_is_taken_back_and_nothing_else(result, decision):
    verdict = decide(result)
    assert verdict.decision == decision
    assert verdict.reasons
    assert verdict.numbers["best"] == pytest.approx(0.5)


WORLD = World(helps("goal_filter"), tasks=2)
AT = Situation(1, H0, tuple(WORLD.history(H0)), Memory(), 0)
ENTRY = load_catalogue(RECIPES / "catalogue" / "household.yaml")[0]


def screened(path, content=b"x", **params):
    item = make_candidate("C-R1-01", ENTRY, "x", (PutFile(path, File(content)),), AT, Digest(()))
    return asyncio.run(Protected(**params).check(item, AT, (), WORLD.evaluate))


@pytest.mark.parametrize(
    "path", ["scorer.py", "parts/Scorer.py", "rewards/a.md", "parts/.hidden/a", "lib/x.so"]
)
def test_a_protected_path_is_refused_by_name(path):
    found = screened(path)
    assert not found.ok
    assert repr(path) in found.note


@pytest.mark.parametrize("path", ["prompts/system.md", "parts/verify_answer.py", "skills/a.b.md"])
def test_parts_of_a_harness_are_let_through(path):
    assert screened(path).ok


def test_a_bundle_past_the_size_is_refused():
    assert "1 files and 901 bytes" not in screened("a.md", b"x" * 900).note
    assert "are the most" in screened("a.md", b"x" * 900, max_bytes=800).note
    assert "are the most" in screened("a.md", max_files=1).note
    assert screened("a.md", max_files=2).ok


def test_deleting_or_leaving_alone_a_protected_file_is_no_offence():
    base = apply(H0, (PutFile("scorer.md", File(b"old")),))
    at = Situation(1, base, AT.episodes, Memory(), 0)
    item = make_candidate("C-R1-01", ENTRY, "x", (PutFile("a.md", File(b"n")),), at, Digest(()))
    assert asyncio.run(Protected().check(item, at, (), WORLD.evaluate)).ok
