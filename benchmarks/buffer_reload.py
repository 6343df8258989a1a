"""Replay buffer of 100,000 trajectories: append and reload against what the disk does.

    python benchmarks/buffer_reload.py [--trajectories 100000] [--rounds 20] [--tokens 600]

The same bytes are written plainly (one file a round, fsync) and read plainly, in the same run, round
by round in turn, so that both meet the same disk. Reading is measured from the page cache and, where
the kernel lets a file's pages go (`posix_fadvise`), from the disk.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Self

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
    parser.add_argument("--dir", help="on the disk to measure (default: where temporary files go)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as name:
        measure(Path(name), options.rounds, options.trajectories // options.rounds, options.tokens)


def measure(root: Path, rounds: int, each: int, tokens: int) -> None:
    ReplayBuffer(root / "warm", 1, each).append(0, "incumbent", make_round(0, 8, tokens))  # imports
    buffer = ReplayBuffer(root / "buffer", rounds, rounds * each)
    appends, writes = [], []
    size = 0
    for number in range(rounds):
        made = make_round(number, each, tokens)
        with Timer() as timer:
            buffer.append(number, "incumbent", made)
        appends.append(timer.s)
        content = b"".join(
            p.read_bytes() for p in files(root / "buffer" / "rounds" / f"{number:04d}")
        )
        size += len(content)
        with Timer() as timer:
            write_plainly(root / f"plain-{number}", content)
        writes.append(timer.s)
    plain = [root / f"plain-{number}" for number in range(rounds)]
    print(f"{rounds * each} trajectories of {tokens} tokens, {size / 1e6:.0f} MB, {rounds} rounds")
    compare("append", size, sum(appends), sum(writes), "plain write and fsync")
    ratios = [plain_s / append_s for append_s, plain_s in zip(appends, writes, strict=True)]
    print(f"append: median of the rounds' ratios {statistics.median(ratios):.2f}")
    records = sum(p.stat().st_size for p in files(root / "buffer") if p.suffix == ".parquet")
    with Timer() as reload:
        buffer = ReplayBuffer(root / "buffer", rounds, rounds * each)
        stats = buffer.stats(rounds - 1, rounds)
    print(
        f"reload  {stats.trajectories} records ({records / 1e6:.1f} MB), no token: {reload.s:.2f} s"
    )
    for where in ("page cache", "disk"):
        if where == "disk":
            let_go([*plain, *files(root / "buffer")])
        with Timer() as read:
            buffer.select(rounds - 1)
        with Timer() as plainly:
            for path in plain:
                path.read_bytes()
        compare(f"tokens from the {where}", size, read.s, plainly.s, "plain read")


class Timer:
    def __enter__(self) -> Self:
        self._began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.s = time.perf_counter() - self._began


def compare(what: str, size: int, ours: float, plain: float, name: str) -> None:
    print(
        f"{what}: {size / 1e6 / ours:.0f} MB/s in {ours:.2f} s; {name} {size / 1e6 / plain:.0f} MB/s "
        f"in {plain:.2f} s; ratio {plain / ours:.2f}"
    )


def files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def write_plainly(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def let_go(paths: list[Path]) -> None:
    """Ask the kernel to drop the files' pages, so that the next read comes from the disk."""
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


if __name__ == "__main__":
    main()
