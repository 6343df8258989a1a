"""The operating curve of the acceptance gates: how often each accepts what, at what cost.

Simulated task set: 50 tasks at a pass rate of .95, 30 at .5, 23 at .05; a task counts as
stable-solved when 4 earlier incumbent runs passed. Rows are what an edit does; columns are gates:

    literal    the seesaw read literally, pass@2
    confirm    paired gate, one confirm draw, bound from the confirm draw alone
    both       the same rollouts, both draws combined
    adaptive   as `both`, the confirm repeats doubled up to 8 while undecided

Each cell: accepted %, and the rollouts a task and harness that it took. Run:
`python benchmarks/gate_power.py [--simulations 2000] [--seed 0]`.
"""

from __future__ import annotations

import argparse
import math

import numpy as np

from harness.evolve.acceptors.literal_seesaw import LiteralSeesaw
from harness.evolve.acceptors.paired import Paired
from harness.evolve.parts import Acceptor, Ask, GateEvidence
from harness.evolve.records import PairedResult, PairedTask, Purpose

BASE = np.repeat([0.95, 0.5, 0.05], [50, 30, 23])
SOLVED, OPEN, HARD = slice(0, 50), slice(50, 80), slice(80, 103)
BROKEN_TO = 0.2  # pass rate of a broken task: reproduces the published catch rates

# Under `both` the bootstrap only describes, so few resamples do.
GATES: dict[str, Acceptor] = {
    "literal": LiteralSeesaw(repeats=2),
    "confirm": Paired(repeats=2, repeats_max=2, evidence="confirm", draws=1000),
    "both": Paired(repeats=2, repeats_max=2, evidence="both", draws=200),
    "adaptive": Paired(repeats=2, repeats_max=8, evidence="both", draws=200),
}


def edit(broken: int = 0, open_to: float | None = None, hard_to: float | None = None) -> np.ndarray:
    """Pass rates [103] under an edit: `broken` solved tasks lost, the others moved."""
    p = BASE.copy()
    p[SOLVED][:broken] = BROKEN_TO
    if open_to is not None:
        p[OPEN] = open_to
    if hard_to is not None:
        p[HARD] = hard_to
    return p


EDITS: dict[str, np.ndarray] = {
    "no-op": edit(),
    "1 stable task broken": edit(broken=1),
    "3 stable tasks broken": edit(broken=3),
    "5 stable tasks broken": edit(broken=5),
    "+4.4 points (30 tasks .5 to .65)": edit(open_to=0.65),
    "+10 points (30 tasks .5 to .85)": edit(open_to=0.85),
    "+10 points (23 tasks .05 to .5)": edit(hard_to=0.5),
    "+10 points and 3 broken": edit(broken=3, open_to=0.85),
}


def draw(purpose: Purpose, counts: np.ndarray, repeats: int) -> PairedResult:
    """counts [2, tasks]: passes of the candidate and of the incumbent."""
    rates = counts / repeats
    tasks = tuple(
        PairedTask(f"{n:03d}", float(mine), float(theirs), repeats)
        for n, (mine, theirs) in enumerate(rates.T)
    )
    return PairedResult(purpose, tasks)


def simulate(
    gate: Acceptor,
    incumbent: np.ndarray,
    candidate: np.ndarray,
    simulations: int,
    seed: int,
) -> tuple[float, float, float]:
    """(share accepted, share in which R ≠ ∅, mean rollouts a task and harness)."""
    rng = np.random.default_rng(seed)
    rates = np.stack([candidate, incumbent])
    accepted = caught = rollouts = 0
    for _ in range(simulations):
        earlier = rng.random((4, len(incumbent))) < incumbent
        stable = frozenset(f"{n:03d}" for n in np.flatnonzero(earlier.all(axis=0)))
        solved = frozenset(f"{n:03d}" for n in np.flatnonzero(earlier[:2].any(axis=0)))
        evidence = GateEvidence("C-R0-01", stable=stable, solved=solved)
        have = np.zeros_like(rates)
        total = 0
        while isinstance(step := gate.step(evidence), Ask):
            fresh = rng.binomial(step.repeats, rates)
            rollouts += step.repeats
            if step.purpose == "select":
                select = draw("select", fresh, step.repeats)
                evidence = GateEvidence("C-R0-01", select, None, stable, solved)
            else:
                have, total = have + fresh, total + step.repeats
                confirm = draw("confirm", have, total)
                evidence = GateEvidence("C-R0-01", evidence.select, confirm, stable, solved)
        accepted += step.decision == "apply"
        caught += step.decision != "apply" and bool(step.regressed)
    return accepted / simulations, caught / simulations, rollouts / simulations


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--simulations", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    error = 100 * math.sqrt(0.05 * 0.95 / given.simulations)
    print(f"accepted % (rollouts a task and harness); {given.simulations} simulations, "
          f"standard error {error:.1f} points at 5 %")  # fmt: skip
    print(f"{'':34}" + "".join(f"{name:>15}" for name in GATES) + f"{'caught':>9}")
    for name, candidate in EDITS.items():
        cells, caught = [], 0.0
        for label, gate in GATES.items():
            share, found, cost = simulate(gate, BASE, candidate, given.simulations, given.seed)
            cells.append(f"{100 * share:8.1f} ({cost:4.1f})")
            caught = found if label == "confirm" else caught
        print(f"{name:34}" + "".join(cells) + f"{100 * caught:8.1f}")


if __name__ == "__main__":
    main()
