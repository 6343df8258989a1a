"""What manifests predicted against what happened, on numbers small enough to count by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.edit import SetParam
from harness.evolve.ledger import (
    IncumbentRun,
    Judged,
    concentration,
    gate_outcomes,
    history_record,
    later_outcomes,
    ledger,
)
from harness.evolve.records import (
    Claim,
    Manifest,
    PairedResult,
    PairedTask,
    PredictedImpact,
    Signature,
    Verdict,
)


def draw(purpose, **rates):
    """task=(incumbent, candidate) pass rates over two pairs."""
    tasks = tuple(
        PairedTask(task, candidate=after, incumbent=before, repeats=2)
        for task, (before, after) in sorted(rates.items())
    )
    return PairedResult(purpose, tasks, 90.0, 100.0, asked=2 * len(tasks))


def judged(
    round,
    decision,
    kinds=("memory",),
    unlock=(),
    stabilise=(),
    risk=(),
    select=None,
    confirm=None,
    harness="child",
    parent="parent",
    number=1,
):
    manifest = Manifest(
        f"C-R{round}-{number:02d}",
        kinds[0],
        tuple(kinds),
        len(kinds),
        (Claim("instantiates", "c", "e"),),
        (),
        PredictedImpact(unlock, stabilise, risk),
        Signature("component", "x"),
        (),
        "cause",
        "fix",
        "why",
    )
    return Judged(
        round,
        manifest.candidate_id,
        harness,
        parent,
        (SetParam("menu", "max_items", 8),),
        manifest,
        Verdict(manifest.candidate_id, decision, ("because",)),
        select,
        confirm,
    )


SELECT = draw("select", a=(0, 1), b=(0.5, 1), c=(1, 0.5), d=(0, 0.5), e=(1, 1), f=(0, 0))
CONFIRM = draw("confirm", a=(0, 0.5), b=(0, 1), c=(1, 0), d=(0.5, 0.5), e=(1, 0.5), f=(0, 0.5))


def test_a_task_must_move_the_same_way_in_both_draws():
    both = gate_outcomes((SELECT, CONFIRM))
    assert (both.unlocked, both.stabilised, both.regressed) == (("a",), ("b",), ("c",))
    assert both.unchanged == ("d", "e", "f")
    alone = gate_outcomes((SELECT,))
    assert (alone.unlocked, alone.stabilised, alone.regressed) == (("a", "d"), ("b",), ("c",))


def test_predictions_are_held_against_the_draws():
    entry = ledger(
        [
            judged(
                0,
                "apply",
                unlock=("a", "f", "unseen"),
                stabilise=(),
                risk=("e",),
                select=SELECT,
                confirm=CONFIRM,
            )
        ],
        (),
    ).entries[0]
    gate = entry.gate
    assert (gate.hits, gate.missed, gate.unpredicted) == (("a",), ("f",), ("b",))
    assert (gate.risk_met, gate.surprises) == ((), ("c",))
    assert (gate.predicted, gate.hit_rate) == (2, 0.5)
    assert entry.later is None


def test_a_shipped_edit_is_followed_under_its_harness_and_what_grew_from_it():
    runs = [
        # Before: two runs a task under the parent, up to the round itself.
        *(IncumbentRun(0, task, "parent", ok) for task in "abcd" for ok in (task == "c", False)),
        IncumbentRun(0, "d", "other", True),  # under a third harness: not evidence
        IncumbentRun(1, "a", "child", True),
        IncumbentRun(1, "b", "child", False),
        IncumbentRun(2, "c", "grandchild", True),
        IncumbentRun(2, "c", "grandchild", True),
        IncumbentRun(3, "d", "other", True),
        IncumbentRun(3, "e", "child", True),  # never ran before
    ]
    found = ledger(
        [
            judged(0, "apply", unlock=("a", "b"), select=SELECT, confirm=CONFIRM),
            judged(1, "apply", select=SELECT, harness="grandchild", parent="child"),
            judged(2, "reject", select=SELECT, harness="other", parent="parent"),
        ],
        runs,
    )
    later = found.entries[0].later
    assert later is not None
    assert (later.outcomes.unlocked, later.outcomes.stabilised) == (("a",), ("c",))
    assert (later.outcomes.unchanged, later.outcomes.regressed) == (("b",), ())
    assert (later.hits, later.missed, later.unpredicted) == (("a",), ("b",), ("c",))
    assert found.entries[2].later is None  # not shipped
    lost = later_outcomes({"a": [True, True]}, {"a": [True, False]})
    assert lost.regressed == ("a",)


def test_bundles_that_lead_back_to_each_other_end_the_search():
    found = ledger(
        [
            judged(0, "apply", select=SELECT, harness="x", parent="y"),
            judged(1, "apply", select=SELECT, harness="y", parent="x"),
        ],
        [IncumbentRun(0, "a", "y", False), IncumbentRun(2, "a", "z", True)],
    )
    assert found.entries[0].later is None


def test_a_kind_that_ships_often_and_predicts_badly_is_held_back():
    bad = {"unlock": tuple("acdef"), "select": SELECT, "confirm": CONFIRM}  # 1 of 5 comes true
    good = {"unlock": ("a", "b"), "select": SELECT, "confirm": CONFIRM}
    found = ledger(
        [
            judged(0, "apply", **bad),
            judged(1, "apply", **bad),
            judged(1, "apply", ("prompt",), **good, number=2),
            judged(2, "apply", ("prompt",), **good),
            judged(2, "deferred", **bad, number=2),
        ],
        (),
    )
    rows = {row.kind: row for row in found.kinds}
    assert (rows["memory"].judged, rows["memory"].shipped) == (2, 2)
    assert (rows["memory"].predicted, rows["memory"].hits) == (10, 2)
    assert (rows["memory"].hit_rate, rows["memory"].held_back) == (0.2, True)
    assert rows["memory"].reputation == 0.75
    assert (rows["prompt"].hit_rate, rows["prompt"].held_back) == (1.0, False)


def test_what_evolution_remembers_counts_the_same_hits():
    item = judged(3, "apply", unlock=("a", "f"), select=SELECT, confirm=CONFIRM)
    record = history_record(item)
    assert (record.predicted, record.hits, record.delta_score) == (2, 1, CONFIRM.mean_d)
    assert record.delta_cost == pytest.approx(-0.1)
    # An edit that never fired cannot have made a prediction true.
    idle = history_record(judged(3, "no_effect", unlock=("a", "f"), select=SELECT))
    assert (idle.predicted, idle.hits) == (2, 0)


def test_candidates_that_no_draw_measured_count_as_proposed_only():
    found = ledger([judged(0, "reject", ("skill",)), judged(0, "apply", select=SELECT)], ())
    assert [entry.candidate.verdict.decision for entry in found.entries] == ["apply"]
    assert found.proposed.shares == {"memory": 0.5, "skill": 0.5}
    assert found.shipped.shares == {"memory": 1.0}


def test_concentration_is_the_sum_of_squared_shares():
    found = concentration([("memory",), ("memory",), ("prompt", "skill")])
    assert found.shares == {"memory": 2 / 3, "prompt": 1 / 6, "skill": 1 / 6}
    assert found.hhi == pytest.approx(0.5)
    assert (found.top, concentration([]).hhi, concentration([]).top) == ("memory", 0.0, "")


rates = st.sampled_from([0.0, 0.5, 1.0])


@given(
    tasks=st.dictionaries(st.sampled_from("abcdefgh"), st.tuples(rates, rates, rates, rates)),
    predicted=st.sets(st.sampled_from("abcdefgh")),
)
def test_every_observed_task_has_one_outcome_and_every_improvement_one_owner(tasks, predicted):
    select = draw("select", **{task: r[:2] for task, r in tasks.items()})
    confirm = draw("confirm", **{task: r[2:] for task, r in tasks.items()})
    item = judged(0, "apply", unlock=tuple(predicted), select=select, confirm=confirm)
    gate = ledger([item], ()).entries[0].gate
    assert list(gate.outcomes.tasks) == sorted(tasks)
    assert sorted((*gate.hits, *gate.unpredicted)) == list(gate.outcomes.improved)
    assert set(gate.hits) | set(gate.missed) == predicted & set(tasks)
    assert sorted((*gate.risk_met, *gate.surprises)) == list(gate.outcomes.regressed)
