"""Routing by clusters: the estimate, who serves what, and what a verdict does to the variants."""

from __future__ import annotations

import numpy as np
import pytest
from evolve_world import H0, episode
from hypothesis import given
from hypothesis import strategies as st

from harness.bundle import Bundle, Component
from harness.edit import AddComponent, apply
from harness.evolve.parts import GateEvidence, Variant
from harness.evolve.records import Candidate, PairedResult, PairedTask
from harness.evolve.routers.isolated import Isolated, RoutingError
from harness.evolve.routers.single import Single
from harness.evolve.routing import Routing

A, B, C = ({"task_type": name, "room": "hall"} for name in "abc")


def bundle(name: str) -> Bundle:
    planning = Component(name, "control_flow", "harness.processors.planning:Planning")
    return apply(H0, (AddComponent(planning),))


def variants(*names: str) -> tuple[Variant, ...]:
    return tuple(Variant(name, bundle(name)) for name in names)


def routing(**counts: dict[str, tuple[float, float]]) -> Routing:
    """counts: variant -> cluster letter -> tally; ten tasks a cluster."""
    named = {v: {f"task_type={c}": t for c, t in own.items()} for v, own in counts.items()}
    letters = sorted({c for own in counts.values() for c in own})
    tasks = {f"{c}{n}": f"task_type={c}" for c in letters for n in range(10)}
    return Routing(named, tasks)


def draws(d: dict[str, float], noise: float = 0.0) -> GateEvidence:
    """d: cluster letter -> gain of its ten tasks in both draws."""

    def one(purpose) -> PairedResult:
        tasks = tuple(
            PairedTask(f"{c}{n}", 0.5 + x / 2, 0.5 - x / 2, 2)
            for c, x in sorted(d.items())
            for n in range(10)
        )
        return PairedResult(purpose, tasks)

    return GateEvidence("C-R4-01", one("select"), one("confirm"))


def runs(harness_id: str, rates: dict[str, float], n: int = 10):
    return [
        episode(
            f"{letter}{i}", i, harness_id, i < rate * n, features={"task_type": letter, "room": "x"}
        )
        for letter, rate in rates.items()
        for i in range(n)
    ]


def place(router, now, counts, rates, d, decision="fork", parent=0):
    made = bundle("made")
    candidate = Candidate("C-R4-01", now[parent].bundle.id, made, (), None)  # type: ignore[arg-type]
    return router.place(now, counts, parent, candidate, decision, draws(d), runs(made.id, rates))


def test_the_estimate_leans_on_the_variants_overall_rate():
    counts = routing(main={"a": (9, 10), "b": (1, 10)})
    assert counts.overall("main") == 0.5  # (10 + 1) / (20 + 2)
    assert counts.estimate("main", "task_type=a", 4) == pytest.approx((9 + 4 * 0.5) / 14)
    assert counts.estimate("main", "task_type=c", 4) == 0.5
    assert counts.estimate("unknown", "task_type=a", 4) == 0.5


@given(solved=st.integers(0, 50), failed=st.integers(0, 50), kappa=st.floats(0.1, 100))
def test_the_estimate_lies_between_the_clusters_rate_and_the_overall_one(solved, failed, kappa):
    n = solved + failed
    counts = routing(v={"a": (solved, n), "b": (3, 4)})
    own = solved / n if n else counts.overall("v")
    low, high = sorted((own, counts.overall("v")))
    assert low - 1e-9 <= counts.estimate("v", "task_type=a", kappa) <= high + 1e-9


def test_each_cluster_goes_to_its_best_variant_and_an_unseen_one_to_the_best_overall():
    now = variants("main", "other")
    counts = routing(main={"a": (9, 10), "b": (2, 10)}, other={"a": (1, 10), "b": (7, 10)})
    router = Isolated()
    assert router.route(now, counts, A) == 0
    assert router.route(now, counts, B) == 1
    assert router.route(now, counts, C) == 0  # 12/22 against 9/22
    assert router.serves(now, counts, "b3") == 1
    assert router.route(now, Routing(), A) == 0


def test_a_feature_that_tasks_lack_is_named():
    with pytest.raises(RoutingError, match=r"no feature \['colour'\].*\['room', 'task_type'\]"):
        Isolated(by=("colour",)).route(variants("main"), Routing(), A)


def test_observed_runs_count_for_the_variant_that_made_them_and_old_ones_fade():
    now = variants("main", "other")
    router = Isolated(window=20)
    counts = router.observe(now, Routing(), runs(now[1].bundle.id, {"a": 0.5}))
    assert counts.counts == {"main": {}, "other": {"task_type=a": (5, 10)}}
    for _ in range(9):
        counts = router.observe(now, counts, runs(now[1].bundle.id, {"a": 1.0}))
    solved, n = counts.counts["other"]["task_type=a"]
    assert n == 20
    assert solved / n > 0.99
    lost = [episode(harness=now[0].bundle.id, outcome="infra_error", features=A)]
    assert router.observe(now, counts, lost) == counts


def test_an_applied_candidate_keeps_its_place_and_what_its_draws_did_not_touch():
    now = variants("main", "other")
    counts = routing(main={"a": (5, 10), "c": (8, 10)}, other={"b": (7, 10)})
    found = place(Isolated(), now, counts, {"a": 0.9}, {"a": 0.4}, "apply")
    assert [v.name for v in found.variants] == ["main", "other"]
    assert found.variants[0].bundle == bundle("made")
    assert found.variants[0].best == now[0].bundle
    assert found.routing.counts["main"] == {"task_type=a": (9, 10), "task_type=c": (8, 10)}


def test_a_fork_gets_a_place_of_its_own_and_the_clusters_that_it_solves_better():
    now, counts = variants("main"), routing(main={"a": (9, 10), "b": (2, 10)})
    router = Isolated(variants=2)
    found = place(router, now, counts, {"a": 0.0, "b": 0.8}, {"a": -0.9, "b": 0.6})
    assert found.refused == ""
    assert [v.name for v in found.variants] == ["main", "R4-01"]
    assert router.route(found.variants, found.routing, A) == 0
    assert router.route(found.variants, found.routing, B) == 1


def test_a_fork_without_a_gain_that_shows_is_refused():
    now, counts = variants("main"), routing(main={"a": (9, 10), "b": (2, 10)})
    found = place(Isolated(), now, counts, {"a": 0.0, "b": 0.2}, {"a": -0.9, "b": 0.0})
    assert found.variants == now
    assert "0 tasks of clusters that it would take" in found.refused


def test_when_full_the_fork_takes_the_place_that_the_set_misses_least():
    now = variants("main", "weak")
    counts = routing(main={"a": (9, 10), "b": (3, 10)}, weak={"a": (1, 10), "b": (4, 10)})
    router = Isolated(variants=2)
    assert router.room(now) == 1
    found = place(router, now, counts, {"a": 0.0, "b": 0.9}, {"a": -0.9, "b": 0.5})
    assert [v.name for v in found.variants] == ["main", "R4-01"]
    assert set(found.routing.counts) == {"main", "R4-01"}


def test_when_full_a_fork_that_the_set_does_not_gain_by_is_refused():
    now = variants("main", "good")
    counts = routing(main={"a": (9, 10), "b": (1, 10)}, good={"a": (1, 10), "b": (10, 10)})
    found = place(Isolated(variants=2), now, counts, {"a": 0.0, "b": 0.5}, {"a": -0.9, "b": 0.4})
    assert found.variants == now
    assert "all 2 places are taken" in found.refused


def test_a_specialist_of_hard_tasks_is_not_the_lowest():
    """Its rate is the lowest of all, and without it its cluster would be lost."""
    now = variants("main", "twin", "hard")
    counts = routing(
        main={"a": (9, 10), "b": (0, 10)},
        twin={"a": (8, 10), "b": (0, 10)},
        hard={"a": (0, 10), "b": (4, 10)},
    )
    found = place(
        Isolated(variants=3), now, counts,
        {"a": 1.0, "b": 0.0}, {"a": 0.3, "b": -0.1},
    )  # fmt: skip
    assert [v.name for v in found.variants] == ["main", "hard", "R4-01"]


def test_a_candidate_that_is_another_variant_already_is_refused():
    now = (*variants("main"), Variant("other", bundle("made")))
    counts = routing(main={"a": (1, 10)}, other={"a": (1, 10)})
    for decision in ("apply", "fork"):
        found = place(Isolated(), now, counts, {"a": 0.9}, {"a": 0.5}, decision)
        assert found.refused == "it is variant other already"


def test_the_single_router_has_no_room():
    now = variants("main")
    assert Single().room(now) == 0
    assert Isolated(variants=1).room(now) == 0
    assert place(Single(), now, Routing(), {}, {"a": 0.5}).refused
    applied = place(Single(), now, Routing(), {}, {"a": 0.5}, "apply")
    assert applied.variants[0].bundle == bundle("made")


def test_a_no_op_is_seldom_given_a_place():
    """Even where the gate would fork: the gain must show on clusters that were chosen before."""
    rng = np.random.default_rng(0)
    counts = routing(main=dict.fromkeys("abcdef", (5, 10)))
    names = sorted(counts.clusters)
    placed = 0
    for _ in range(400):
        rates = rng.choice([0.1, 0.5, 0.9], len(names))

        def one(purpose, rates=rates) -> PairedResult:
            made, old = rng.binomial(2, rates) / 2, rng.binomial(2, rates) / 2
            tasks = zip(names, made, old, strict=True)
            return PairedResult(purpose, tuple(PairedTask(t, m, o, 2) for t, m, o in tasks))

        evidence = GateEvidence("C-R4-01", one("select"), one("confirm"))
        placed += not Isolated()._unshown(counts, evidence)
    assert placed / 400 <= 0.05 + 3 * (0.05 * 0.95 / 400) ** 0.5
