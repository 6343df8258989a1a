"""The gates' operating curve, at fewer simulations than `benchmarks/gate_power.py` prints."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

PATH = Path(__file__).parents[4] / "benchmarks" / "gate_power.py"
SPEC = importlib.util.spec_from_file_location("gate_power", PATH)
assert SPEC is not None
assert SPEC.loader is not None
power = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(power)

N = 250


def accepted(gate: str, edit: str, n: int = N) -> float:
    return power.simulate(power.GATES[gate], power.BASE, power.EDITS[edit], n, seed=1)[0]


@pytest.mark.slow
def test_a_no_op_is_accepted_at_most_at_the_level():
    # Three standard errors of a 5 % share above the level.
    assert accepted("both", "no-op", 800) <= 0.05 + 3 * (0.05 * 0.95 / 800) ** 0.5
    assert accepted("adaptive", "no-op") <= 0.05 + 3 * (0.05 * 0.95 / N) ** 0.5
    assert accepted("literal", "no-op", 100) == 0


@pytest.mark.slow
def test_broken_stable_tasks_are_caught_at_the_published_rates():
    tasks = (("1 stable task", 0.47), ("3 stable tasks", 0.84), ("5 stable tasks", 0.95))
    for broken, published in tasks:
        rates = power.EDITS[f"{broken} broken"]
        _, caught, _ = power.simulate(power.GATES["confirm"], power.BASE, rates, N, seed=2)
        assert abs(caught - published) < 0.07


@pytest.mark.slow
@pytest.mark.parametrize(
    ("edit", "published"),
    [
        ("no-op", 0.046),
        ("1 stable task broken", 0.018),
        ("5 stable tasks broken", 0.0),
        ("+4.4 points (30 tasks .5 to .65)", 0.37),
        ("+10 points (30 tasks .5 to .85)", 0.94),
        ("+10 points (23 tasks .05 to .5)", 0.78),
        ("+10 points and 3 broken", 0.13),
    ],
)
def test_one_confirm_draw_accepts_at_the_published_rates(edit, published):
    error = (max(published * (1 - published), 0.01) / N) ** 0.5
    assert abs(accepted("confirm", edit) - published) < 3 * error + 0.01


@pytest.mark.slow
def test_both_draws_together_have_more_power_from_the_same_rollouts():
    weak = "+4.4 points (30 tasks .5 to .65)"
    assert accepted("both", weak) > accepted("confirm", weak) + 0.1
    assert accepted("confirm", "+10 points (30 tasks .5 to .85)", 200) > 0.88


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "tasks"), [(0.05, 16), (0.05, 32), (0.2, 16), (0.2, 48)])
def test_a_no_op_on_a_small_set_is_accepted_at_most_at_the_level(rate, tasks):
    p = np.full(tasks, rate)
    for gate in ("both", "adaptive"):
        share, _, _ = power.simulate(power.GATES[gate], p, p, N, seed=3)
        assert share <= 0.05 + 3 * (0.05 * 0.95 / N) ** 0.5
