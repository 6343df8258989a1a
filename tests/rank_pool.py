"""Trainer ranks without Ray: processes in one gloo group that run the cases sent to them."""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

DONE = "case-list done"


class RankPool:
    """`world_size` processes that keep their group over many lists of cases.

    A case: config (fields of TrainerConfig), out (weights file; metrics beside it); optional: model,
    batch (arguments of random_batch), two_turns (split, for two_turn_batch), load, convert, rounds (1), save, more, adapter, broadcast
    (port of the store; one receiver).
    """

    def __init__(self, model: Path, world_size: int) -> None:
        self._model, self._world_size = model, world_size
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        self._ranks = [
            subprocess.Popen(
                [sys.executable, __file__],
                env={
                    **os.environ,
                    "RANK": str(rank),
                    "WORLD_SIZE": str(world_size),
                    "LOCAL_RANK": "0",
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "OMP_NUM_THREADS": "1",
                    "HF_HUB_OFFLINE": "1",
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(world_size)
        ]

    def run(self, *cases: dict[str, Any]) -> None:
        """Run the cases one after another; fails with the output of a rank that died."""
        for case in cases:
            case["config"]["world_size"] = self._world_size
            case.setdefault("model", str(self._model))
        line = json.dumps(cases, default=str)
        for rank in self._ranks:
            assert rank.stdin is not None
            rank.stdin.write(line + "\n")
            rank.stdin.flush()
        for number, rank in enumerate(self._ranks):
            assert rank.stdout is not None
            said: list[str] = []
            for text in rank.stdout:
                if text.strip() == DONE:
                    break
                said.append(text)
            else:
                raise AssertionError(f"rank {number}:\n{''.join(said)[-3000:]}")

    def close(self) -> None:
        for rank in self._ranks:
            assert rank.stdin is not None
            rank.stdin.close()
        for rank in self._ranks:
            rank.wait(timeout=60)

    def kill(self) -> None:
        for rank in self._ranks:
            rank.kill()
            rank.wait()


def metrics(out: Path) -> list[dict[str, float]]:
    """The metrics of the case that wrote `out`."""
    found: list[dict[str, float]] = json.loads(out.with_suffix(".metrics").read_text())
    return found


def _run_case(case: dict[str, Any]) -> None:
    import torch.distributed as dist
    from tiny_trainer import random_batch, two_turn_batch

    from rollout.policy.broadcast import Broadcast
    from trainer.checkpoint import layout_of, seal, staging, verify
    from trainer.config import TrainerConfig
    from trainer.engine import TrainerEngine
    from trainer.publish import broadcast, buckets, publish, publish_adapter
    from trainer.universal import to_universal

    config = TrainerConfig.model_validate(case["config"])
    engine = TrainerEngine(config, case["model"])
    first = engine.rank == 0
    out = Path(case["out"])
    batch = (
        two_turn_batch(case["two_turns"])
        if "two_turns" in case
        else random_batch(**case.get("batch", {}))
    )
    if "load" in case:
        source = Path(case["load"])
        verify(source, layout_of(config))
        if case.get("convert"):
            beside = source.with_name(f"{source.name}.{out.name}")
            if first:
                to_universal(source, beside)
            dist.barrier()
            source = beside
        engine.load_shards(source, bool(case.get("convert")))
    measured = []
    for _ in range(case.get("rounds", 1)):
        measured += engine.train(batch)
    publish(engine.named_weights(), out, write=first)
    if "broadcast" in case:
        plan = Broadcast("127.0.0.1", case["broadcast"], 1, "gloo", 60.0, buckets(engine))
        if first:
            out.with_suffix(".plan").write_bytes(pickle.dumps(plan))
        broadcast(engine, plan)
    if "adapter" in case:
        publish_adapter(engine, Path(case["adapter"]), Path(case["model"]), write=first)
    if "save" in case:
        target = Path(case["save"])
        beside = staging(target) if first else target.with_name(target.name + ".tmp")
        dist.barrier()
        engine.save_shards(beside, {})
        dist.barrier()
        if first:
            seal(beside, target, layout_of(config), engine.step)
    for _ in range(case.get("more", 0)):
        measured += engine.train(batch)
    if first:
        out.with_suffix(".metrics").write_text(json.dumps(measured))
    dist.barrier()


def _main() -> None:
    import torch.distributed as dist

    for line in sys.stdin:
        for case in json.loads(line):
            _run_case(case)
        print(f"\n{DONE}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    _main()
