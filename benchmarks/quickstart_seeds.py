"""The quickstart's claim over several seeds: does co-evolution end above harness-only, and that
above frozen, on held-out scenes?

    python benchmarks/quickstart_seeds.py --seeds 0,1,2 [key=value …]

Runs (or resumes) all arms of configs/quickstart.yaml for each seed and prints, for each seed and
pooled over them, the held-out success of every arm with its 95% interval and the paired differences.
The policy M0 is the same for all seeds; a seed changes tasks, sampling and evolution.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from coevo.cli import main as coevo
from coevo.compare import compare
from coevo.config import load_config
from coevo.runs import load_run

CONFIG = Path(__file__).resolve().parents[1] / "configs" / "quickstart.yaml"
ARMS = ("frozen", "harness", "coevolve")
STEPS = (("harness", "frozen"), ("coevolve", "harness"), ("coevolve", "frozen"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_args()
    code = coevo(
        ["experiment", str(CONFIG), "--arms", ",".join(ARMS), "--seeds", arguments.seeds,
         *arguments.overrides]
    )  # fmt: skip
    if code:
        raise SystemExit(code)
    config = load_config(CONFIG, arguments.overrides)
    root = Path(config.runs_dir)
    held = 0
    seeds = arguments.seeds.split(",")
    for seed in seeds:
        runs = [load_run(root / f"{config.name}-{arm}-s{seed}") for arm in ARMS]
        final = {run.mode: run.summary.final.heldout for run in runs if run.summary}
        order = final["frozen"].success < final["harness"].success < final["coevolve"].success
        held += order
        line = " · ".join(
            f"{arm} {r.success:.1%} [{r.lo:.1%}, {r.hi:.1%}] (n={r.n})" for arm, r in final.items()
        )
        print(f"seed {seed}: {line} · order holds: {'yes' if order else 'no'}")
    pooled = compare(
        [load_run(root / f"{config.name}-{arm}-s{seed}") for seed in seeds for arm in ARMS]
    )
    for better, worse in STEPS:
        difference = pooled.difference(better, worse)
        assert difference is not None
        found = difference.interval
        print(
            f"{better} − {worse}, paired over tasks, {len(seeds)} seeds: {100 * found.mean:+.1f} "
            f"points [{100 * found.lo:+.1f}, {100 * found.hi:+.1f}]: {difference.conclusion}"
        )
    print(f"the order held for {held} of {len(seeds)} seeds")


if __name__ == "__main__":
    main()
