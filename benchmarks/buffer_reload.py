"""Seconds to reopen a replay buffer of 100,000 trajectories, and to read all its token data.

    python benchmarks/buffer_reload.py [--trajectories 100000] [--rounds 20] [--tokens 600]

Reopening reads and checks every record and no token; the ratio says what that saves.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from rollout.buffer import ReplayBuffer
from rollout.trajectory import Cost, Outcome, Segment, Trajectory


def make_round(number: int, count: int, tokens: int) -> list[Trajectory]:
    rng = np.random.default_rng(number)
    out = []
    for i in range(count):
        mask = rng.random(tokens) < 0.1
        segment = Segment(
            token_ids=rng.integers(0, 500, tokens).astype(np.int32),
            loss_mask=mask,
            logprobs=np.where(mask, -1.5, 0).astype(np.float32),
            versions=np.where(mask, number, -1).astype(np.int32),
            temperature=1.0,
        )
        out.append(
            Trajectory(
                id=f"{number:04d}/{i:06d}",
                task_id=f"household/evolve/{i // 8:06d}",
                round=number,
                role="incumbent",
                harness_id="0" * 64,
                policy_version=number,
                seed=i,
                outcome=Outcome("completed", "the environment ended the episode"),
                reward=float(i % 3 == 0),
                success=i % 3 == 0,
                steps=12,
                segments=(segment,),
                cost=Cost(tokens, int(mask.sum()), 12, 1.0),
                detail={"sub_goals": 3},
                features={"task_type": "heat", "room": "kitchen"},
            )
        )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trajectories", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=600, help="tokens a trajectory")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        buffer = ReplayBuffer(root, options.rounds, options.trajectories)
        each = options.trajectories // options.rounds
        started, spent = time.perf_counter(), 0.0
        for number in range(options.rounds):
            made = make_round(number, each, options.tokens)
            before = time.perf_counter()
            buffer.append(number, "incumbent", made)
            spent += time.perf_counter() - before
        size = sum(path.stat().st_size for path in Path(root).rglob("*") if path.is_file())
        print(f"written   {each * options.rounds} trajectories, {size / 1e6:.0f} MB: {spent:.1f} s")
        started = time.perf_counter()
        buffer = ReplayBuffer(root, options.rounds, options.trajectories)
        stats = buffer.stats(options.rounds - 1, options.rounds)
        reload_s = time.perf_counter() - started
        print(f"reload    {stats.trajectories} trajectories: {reload_s:.2f} s")
        started = time.perf_counter()
        view = buffer.select(options.rounds - 1)
        read_s = time.perf_counter() - started
        print(f"tokens    {len(view.token_ids)} tokens read and checked: {read_s:.2f} s")
        print(f"ratio     reading all token data takes {read_s / reload_s:.1f} times the reload")


if __name__ == "__main__":
    main()
