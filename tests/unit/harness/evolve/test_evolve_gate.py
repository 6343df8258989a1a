"""The acceptance gates: golden numbers, every verdict, purity."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from harness.evolve.acceptors.literal_seesaw import LiteralSeesaw
from harness.evolve.acceptors.paired import (
    Paired,
    bootstrap_bounds,
    combined_z,
    level_at,
    paired_gate,
    relative_cost,
)
from harness.evolve.parts import Ask, GateEvidence
from harness.evolve.records import PairedResult, PairedTask, Verdict


def result(purpose: str, d: dict[str, float], repeats: int = 2, tokens=(100.0, 100.0)):
    """Paired results with the given d; a loss is 1 − |d| against 1, a gain the reverse."""
    tasks = tuple(
        PairedTask(task, 1.0 if x >= 0 else 1 + x, 1 - x if x >= 0 else 1.0, repeats)
        for task, x in sorted(d.items())
    )
    return PairedResult(purpose, tasks, *tokens)


def spread(value: float, n: int = 20, **more: float) -> dict[str, float]:
    return {f"t{i:02d}": value if i % 2 else 0.0 for i in range(n)} | more


def gate(select, confirm=None, stable=(), room=0, rivals=1, **settings) -> Verdict:
    evidence = GateEvidence("C-R1-01", select, confirm, frozenset(stable), rivals=rivals, room=room)
    return paired_gate(evidence, Paired(**settings))


GOOD = result("select", spread(0.5)), result("confirm", spread(0.5))


def test_a_candidate_that_gains_in_both_draws_is_applied():
    verdict = gate(*GOOD)
    assert verdict.decision == "apply"
    assert verdict.numbers["confirm_d"] == 0.25
    assert len(verdict.improved) == 10


def test_the_select_draw_alone_decides_nothing_but_hopelessness():
    assert gate(GOOD[0]).decision == "undecided"
    assert gate(result("select", spread(0.0))).decision == "reject"


def test_a_select_draw_without_a_gain_saves_the_confirm_draw_unless_a_fork_is_open():
    select = result("select", spread(-0.5, a=1.0))
    assert gate(select).decision == "reject"
    assert gate(select, room=1).decision == "undecided"
    assert gate(select, evidence="confirm").decision == "undecided"


def test_a_gain_that_the_confirm_draw_does_not_repeat_is_rejected():
    assert gate(GOOD[0], result("confirm", spread(-0.5))).decision == "reject"


def test_a_broken_stable_task_rejects_and_forks_where_there_is_room():
    select = result("select", spread(0.5, broken=-1.0))
    confirm = result("confirm", spread(0.5, broken=-0.5))
    assert gate(select, confirm).decision == "apply"  # it was never stable
    rejected = gate(select, confirm, stable=["broken"])
    assert (rejected.decision, rejected.regressed) == ("reject", ("broken",))
    assert gate(select, confirm, stable=["broken"], room=1).decision == "fork"


def test_one_bad_draw_does_not_break_a_stable_task():
    select = result("select", spread(0.5, shaky=-1.0))
    confirm = result("confirm", spread(0.5, shaky=0.0))
    assert gate(select, confirm, stable=["shaky"]).decision == "apply"


def test_too_small_a_gain_asks_for_twice_the_repeats_then_gives_up():
    weak = spread(0.0, a=0.5, b=0.5, c=-0.5)
    config = Paired(repeats=2, repeats_max=4)
    evidence = GateEvidence("C-R1-01", result("select", weak))
    assert config.step(GateEvidence("C-R1-01")) == Ask("select", 2)
    assert config.step(evidence) == Ask("confirm", 2)
    first = GateEvidence("C-R1-01", result("select", weak), result("confirm", weak, 2))
    assert config.step(first) == Ask("confirm", 2)
    last = GateEvidence("C-R1-01", result("select", weak), result("confirm", weak, 4))
    verdict = config.step(last)
    assert isinstance(verdict, Verdict)
    assert verdict.decision == "reject"
    assert "not shown after 4 repeats" in verdict.reasons[0]


def test_no_worse_but_cheaper_is_applied_only_where_epsilon_allows_it():
    cheap = {"tokens": (80.0, 100.0)}
    d = spread(0.0, n=60, a=0.5)
    draws = result("select", d, **cheap), result("confirm", d, **cheap)
    assert relative_cost(draws[1]) == pytest.approx(-0.2)
    assert gate(*draws, repeats_max=2).decision == "reject"
    assert gate(*draws, repeats_max=2, epsilon=0.05).decision == "apply"


def test_a_handful_of_tasks_decides_nothing():
    d = {"a": 1.0, "b": 1.0}
    assert gate(result("select", d), result("confirm", d)).decision == "reject"


def test_more_rivals_need_more_evidence():
    one = combined_z(*GOOD, rivals=1)
    assert combined_z(*GOOD, rivals=4) < one
    # Golden: one rival, equal repeats: the two z over √2. z = 0.25 / (0.2565 / √20).
    z = 0.25 / (float(np.std([0, 0.5] * 10, ddof=1)) / math.sqrt(20))
    assert one == pytest.approx(2 * z / math.sqrt(2), rel=1e-6)


def test_bootstrap_bounds_have_golden_numbers_and_shrink_with_the_level():
    d = np.array([0.5, 0.0] * 20)
    low, high = bootstrap_bounds(d, 0.05, 20_000)
    # mean .25, standard error .25/√40 · √(40/39) = .0400; 1.645 of it each way.
    assert low == pytest.approx(0.25 - 1.645 * 0.0400, abs=0.007)
    assert high == pytest.approx(0.25 + 1.645 * 0.0400, abs=0.007)
    assert bootstrap_bounds(d, 0.01, 2000)[0] < low
    assert bootstrap_bounds(d[:1], 0.05, 2000) == (-1.0, 1.0)


def test_the_looks_together_spend_the_level_once():
    config = Paired(repeats=2, repeats_max=8, level=0.05)
    levels = [level_at(r, config) for r in (2, 4, 8)]
    assert sum(levels) == pytest.approx(0.05)
    assert all(level > 0 for level in levels)
    halved = Paired(repeats=2, repeats_max=2, level=0.05, max_confirm=2)
    assert level_at(2, halved) == pytest.approx(0.025)


def test_the_largest_draw_must_be_a_doubling():
    with pytest.raises(ValidationError, match="doubled"):
        Paired(repeats=2, repeats_max=6)


@given(
    st.dictionaries(
        st.sampled_from([f"t{i}" for i in range(12)]),
        st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0]),
        min_size=1,
    ),
    st.dictionaries(
        st.sampled_from([f"t{i}" for i in range(12)]),
        st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0]),
        min_size=1,
    ),
    st.integers(0, 1),
)
def test_the_gate_is_pure_and_obeys_its_own_sets(select, confirm, room):
    evidence = GateEvidence(
        "C-R1-01",
        result("select", select),
        result("confirm", confirm),
        frozenset({"t0", "t1", "t2"}),
        room=room,
    )
    before = copy.deepcopy(evidence)
    verdict = paired_gate(evidence, Paired(draws=200))
    assert evidence == before
    assert verdict == paired_gate(evidence, Paired(draws=200))
    if verdict.decision == "apply":
        assert verdict.improved
        assert not verdict.regressed
        assert evidence.confirm.mean_d > 0
    if verdict.decision == "fork":
        assert room
        assert verdict.improved
        assert verdict.regressed
    assert set(verdict.regressed) <= evidence.stable


def test_the_literal_seesaw_rejects_one_lost_task_and_accepts_none_lost():
    solved = frozenset({"a", "b"})
    kept = PairedResult("select", (PairedTask("a", 0.5, 1, 2), PairedTask("b", 1, 1, 2)))
    lost = PairedResult("select", (PairedTask("a", 0.0, 1, 2), PairedTask("b", 1, 1, 2)))
    part = LiteralSeesaw()
    assert part.step(GateEvidence("c")) == Ask("select", 2)
    assert part.step(GateEvidence("c", kept, solved=solved)).decision == "apply"
    verdict = part.step(GateEvidence("c", lost, solved=solved))
    assert (verdict.decision, verdict.regressed) == ("reject", ("a",))
