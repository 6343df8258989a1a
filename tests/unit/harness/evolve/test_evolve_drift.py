"""The drift test: golden numbers, what it finds, how often it errs."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from harness.evolve.drift import BETS, DriftEvidence, DriftTest, drift_test, standard_error
from harness.evolve.records import PairedResult, PairedTask, decode, encode


def draw(d: list[float], repeats: int = 4) -> PairedResult:
    tasks = tuple(
        PairedTask(f"t{n:02d}", 1 + min(x, 0), 1 - max(x, 0), repeats) for n, x in enumerate(d)
    )
    return PairedResult("drift", tasks)


def verdict(d, before=None, **settings):
    return drift_test("main", "b", "h", before or DriftEvidence(), draw(d), DriftTest(**settings))


def simulated(rng, incumbent, best, repeats=4) -> list[float]:
    return list((rng.binomial(repeats, incumbent) - rng.binomial(repeats, best)) / repeats)


def history(rng, incumbents, best, tests=10) -> str:
    """The first decision other than `keep` over a run of drift draws; incumbents: rates a draw."""
    evidence = DriftEvidence()
    for n in range(tests):
        rates = incumbents[min(n, len(incumbents) - 1)]
        report = verdict(simulated(rng, rates, best), evidence)
        if report.decision != "keep":
            return report.decision
        evidence = report.evidence
    return "keep"


def test_the_e_value_is_the_mean_over_bets_of_the_product():
    evidence = DriftEvidence().add(draw([-0.5, 0.25, 0.0]))
    worse = [(1 + 0.5 * bet) * (1 - 0.25 * bet) for bet in BETS]
    assert evidence.e_worse == pytest.approx(sum(worse) / len(BETS))
    assert evidence.e_worse == pytest.approx(1.0828125)
    better = [(1 - 0.5 * bet) * (1 + 0.25 * bet) for bet in BETS]
    assert evidence.e_better == pytest.approx(sum(better) / len(BETS))
    twice = evidence.add(draw([-0.5, 0.25, 0.0]))
    assert twice.e_worse == pytest.approx(sum(x * x for x in worse) / len(BETS))
    assert twice.draws == 2


def test_one_large_loss_falls_below_the_floor():
    report = verdict([-0.25] * 10 + [0.0] * 10)
    assert report.floor == pytest.approx(2.5 * standard_error([-0.25] * 10 + [0.0] * 10))
    assert report.result.mean_d == -0.125
    assert report.decision == "roll_back"


def test_the_floor_is_never_inside_the_noise_band():
    noisy = [-1.0, 1.0, -1.0, 0.5, 0.0]
    report = verdict(noisy)
    assert report.result.mean_d < -0.05
    assert report.floor > 0.05
    assert report.decision == "keep"


def test_losses_below_the_floor_add_up_over_draws():
    loss = [-0.25 if n % 8 == 0 else 0.0 for n in range(40)]  # 3 points a draw
    evidence, decisions = DriftEvidence(), []
    while not decisions or decisions[-1] == "keep":
        report = verdict(loss, evidence)
        evidence = report.evidence
        decisions.append(report.decision)
    assert decisions[0] == "keep"
    assert decisions[-1] == "roll_back"
    assert evidence.e_worse >= 20
    assert report.result.mean_d > -report.floor


def test_an_incumbent_shown_better_becomes_the_best():
    report = verdict([0.5] * 20)
    assert report.decision == "best"
    assert "of better" in report.reason


def test_evidence_survives_json_and_extreme_draws():
    evidence = DriftEvidence()
    for _ in range(60):
        evidence = evidence.add(draw([-1.0] * 40))
    assert math.isfinite(evidence.e_worse)
    report = verdict([-0.25] * 6, evidence)
    data = json.loads(json.dumps(encode(report), allow_nan=False))
    assert decode(type(report), data) == report


def test_five_accepted_losses_add_up_and_are_found():
    """Each edit takes 2.5 points off 40 tasks at .95: too little for a gate, 12.5 together."""
    rng = np.random.default_rng(0)
    best = np.full(40, 0.95)
    steps = [best - 0.025 * n for n in (2, 3, 5)]  # what a test every other round sees
    found = [history(rng, steps, best, tests=6) for _ in range(200)]
    assert found.count("roll_back") / len(found) > 0.95


def test_an_incumbent_as_good_as_the_best_is_seldom_rolled_back():
    rng = np.random.default_rng(1)
    for rates in (np.full(30, 0.95), np.full(8, 0.9), np.repeat([0.99, 0.7], 10)):
        lost = [history(rng, [rates], rates, tests=5) for _ in range(400)].count("roll_back")
        # The e-value errs at most 5 % of the time over all tests; the floor adds its own.
        assert lost / 400 <= 0.07


def test_gains_and_losses_of_equal_size_are_no_drift():
    """Rates that differ task by task but not on average keep the e-value's promise."""
    rng = np.random.default_rng(2)
    best = np.repeat([0.95, 0.75], 15)
    lost = [history(rng, [best[::-1]], best, tests=5) for _ in range(300)].count("roll_back")
    assert lost / 300 <= 0.07
