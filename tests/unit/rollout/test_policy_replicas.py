"""Replicas as one engine: routing, equality after an update, and the one that died."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from rollout.policy.base import EngineDied, EngineError, Request, Sample, Sampling
from rollout.policy.replicas import ReplicaSet
from rollout.policy.scripted import ScriptedEngine
from rollout.policy.weights import fingerprint_file


class Mortal(ScriptedEngine):
    """Names itself in its samples; may die."""

    def __init__(self, number: int, logprob: float = -1.0) -> None:
        super().__init__(lambda ids: [number], logprob=logprob)
        self.number, self.dead = number, False

    async def generate(self, requests: Sequence[Request]) -> list[Sample]:
        if self.dead:
            raise EngineDied(f"process of {self.number} is gone")
        return await super().generate(requests)


def request(trajectory: str, prompt: int = 1) -> Request:
    return Request((prompt,), Sampling(), trajectory)


def homes(replicas: ReplicaSet, *trajectories: str) -> list[int]:
    samples = asyncio.run(replicas.generate([request(t) for t in trajectories]))
    return [sample.token_ids[0] for sample in samples]


def engines(count: int) -> list[Mortal]:
    return [Mortal(i) for i in range(count)]


def test_new_trajectories_are_spread_and_stay_where_they_are() -> None:
    replicas = ReplicaSet(engines(3))
    assert homes(replicas, *"abcdef") == [0, 1, 2, 0, 1, 2]
    assert homes(replicas, *"fedcba") == [2, 1, 0, 2, 1, 0]


def test_a_new_one_goes_where_the_fewest_requests_are_open() -> None:
    replicas = ReplicaSet(engines(2))
    homes(replicas, *"abcd")
    # b and d of replica 1 have ended: the two new ones take their place.
    assert homes(replicas, "x", "a", "y", "c") == [1, 0, 1, 0]


def test_requests_in_flight_count() -> None:
    slow = [Mortal(0), Mortal(1)]
    slow[0]._delay_s = 0.05

    async def run() -> list[list[Sample]]:
        replicas = ReplicaSet(slow)
        first = asyncio.create_task(replicas.generate([request("a")]))
        await asyncio.sleep(0)
        rest = [await replicas.generate([request(t)]) for t in "bcd"]
        return [await first, *rest]

    assert [part[0].token_ids[0] for part in asyncio.run(run())] == [0, 1, 1, 1]


@given(st.lists(st.sampled_from("abcdefgh"), max_size=30), st.integers(1, 4))
def test_answers_keep_the_order_of_the_requests(trajectories: list[str], count: int) -> None:
    replicas = ReplicaSet([ScriptedEngine(lambda ids: [ids[0] + 1]) for _ in range(count)])
    batch = [request(t, 10 * i) for i, t in enumerate(trajectories)]
    samples = asyncio.run(replicas.generate(batch))
    assert [s.token_ids for s in samples] == [(10 * i + 1,) for i in range(len(batch))]


def test_a_dead_replica_is_named_avoided_and_ends_the_next_update(tmp_path: Path) -> None:
    made = engines(3)
    replicas = ReplicaSet(made)
    assert homes(replicas, "a", "b", "c") == [0, 1, 2]
    made[1].dead = True
    with pytest.raises(EngineDied, match="replica 1 of 3: process of 1 is gone"):
        homes(replicas, "b")
    assert homes(replicas, "b", "d", "e") == [0, 2, 0]  # b was issued again
    path = tmp_path / "w.safetensors"
    save_file({"w": np.ones(2, dtype=np.float32)}, path)
    with pytest.raises(EngineError, match=r"version 1 cannot be published.*replica 1 of 3"):
        asyncio.run(replicas.update(str(path), 1, fingerprint_file(path)))
    made[0].dead = made[2].dead = True
    for _ in range(2):
        with pytest.raises(EngineDied):
            homes(replicas, "x")
    with pytest.raises(EngineDied, match="no replica is left"):
        homes(replicas, "y")


def test_an_update_reaches_all_and_their_fingerprints_are_compared(tmp_path: Path) -> None:
    made = engines(2)
    replicas = ReplicaSet(made)
    path = tmp_path / "w.safetensors"
    save_file({"w": np.ones(2, dtype=np.float32)}, path)
    asyncio.run(replicas.update(str(path), 4, fingerprint_file(path)))
    assert [engine.version for engine in made] == [4, 4]
    assert asyncio.run(replicas.fingerprint()) == fingerprint_file(path)
    made[1]._fingerprint = "other"
    with pytest.raises(EngineError, match="replica 1 serves weights other"):
        asyncio.run(replicas.fingerprint())
    with pytest.raises(EngineError, match=r"replica 0 of 2: .*expected 0000"):
        asyncio.run(replicas.update(str(path), 5, "0000"))


def test_a_replica_that_computes_otherwise_is_found_by_the_probe() -> None:
    replicas = ReplicaSet([Mortal(0), Mortal(1, logprob=-1.5)])
    with pytest.raises(EngineError, match=r"replica 1 differ by 0\.5 from those of replica 0"):
        asyncio.run(replicas.score([[1, 2, 3]]))
    assert asyncio.run(ReplicaSet(engines(2)).score([[1, 2, 3]])) == [[-1.0, -1.0]]
