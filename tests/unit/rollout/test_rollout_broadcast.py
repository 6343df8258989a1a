"""Broadcast weights: buckets, byte-equal arrival over gloo, and what is said where it fails."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from rollout.policy.broadcast import ALIGNMENT, Broadcast, Bucket, plan_buckets
from rollout.policy.collective import BroadcastError, Sender, receive
from rollout.policy.weights import fingerprint_file

WEIGHTS = {
    "a": torch.arange(15.0).reshape(3, 5),
    "b": torch.linspace(-1, 1, 7).to(torch.bfloat16),
    "c": torch.tensor(3.5),
    "d": torch.arange(100, dtype=torch.float32).to(torch.float16).reshape(10, 10),
}


def cut(weights: dict[str, torch.Tensor], limit: int) -> tuple[Bucket, ...]:
    return plan_buckets(
        (
            (n, str(t.dtype).removeprefix("torch."), tuple(t.shape), t.numel() * t.element_size())
            for n, t in sorted(weights.items())
        ),
        limit,
    )


def plan(receivers: int = 1, timeout_s: float = 30.0, limit: int = 80) -> Broadcast:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    return Broadcast("127.0.0.1", port, receivers, "gloo", timeout_s, cut(WEIGHTS, limit))


def fingerprint(tmp_path: Path, weights: dict[str, torch.Tensor] = WEIGHTS) -> str:
    save_file(weights, str(tmp_path / "w.safetensors"))
    return fingerprint_file(tmp_path / "w.safetensors")


def send(where: Broadcast) -> str:
    sender = Sender(where, torch.device("cpu"))
    for name, tensor in sorted(WEIGHTS.items()):
        sender.add(name, tensor)
    return sender.finish()


@given(st.lists(st.integers(1, 300), max_size=30), st.integers(1, 400))
def test_buckets_hold_every_tensor_once_in_order_and_within_the_limit(
    sizes: list[int], limit: int
) -> None:
    buckets = plan_buckets(((str(i), "uint8", (n,), n) for i, n in enumerate(sizes)), limit)
    assert [t.name for b in buckets for t in b.tensors] == [str(i) for i in range(len(sizes))]
    for bucket in buckets:
        assert bucket.size <= limit or len(bucket.tensors) == 1
        end = 0
        for tensor in bucket.tensors:
            assert tensor.offset % ALIGNMENT == 0
            assert tensor.offset >= end
            end = tensor.offset + tensor.size
        assert end == bucket.size


RECEIVER = """
import sys
from safetensors.torch import save_file
from rollout.policy.broadcast import Broadcast
from rollout.policy.collective import receive
from test_rollout_broadcast import WEIGHTS, cut

port, fingerprint, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
where = Broadcast("127.0.0.1", port, 2, "gloo", 60.0, cut(WEIGHTS, 80))
got = dict(receive(where, out, "cpu", fingerprint))
save_file({name: tensor.clone() for name, tensor in got.items()}, out)
"""


def test_a_process_and_a_thread_receive_the_senders_bytes(tmp_path: Path) -> None:
    where = plan(receivers=2, timeout_s=60.0)
    expected = fingerprint(tmp_path)
    out = tmp_path / "received.safetensors"
    process = subprocess.Popen(
        [sys.executable, "-c", RECEIVER, str(where.port), expected, str(out)],
        cwd=Path(__file__).parent,
    )
    got: dict[str, torch.Tensor] = {}
    thread = threading.Thread(target=lambda: got.update(receive(where, "thread", "cpu", expected)))
    thread.start()
    assert send(where) == expected
    thread.join()
    assert process.wait(timeout=60) == 0
    assert out.read_bytes() == (tmp_path / "w.safetensors").read_bytes()
    assert all(torch.equal(got[name], tensor) for name, tensor in WEIGHTS.items())
    assert len(where.buckets) == 3


def test_other_bytes_than_the_published_are_refused(tmp_path: Path) -> None:
    where = plan()
    thread = threading.Thread(target=send, args=[where])
    thread.start()
    other = fingerprint(tmp_path, {**WEIGHTS, "c": torch.tensor(3.6)})
    with pytest.raises(BroadcastError, match=f"the trainer published {other}"):
        list(receive(where, "engine 0", "cpu", other))
    thread.join()


def test_an_engine_that_never_joins_ends_the_broadcast_and_those_that_did_are_named() -> None:
    where = plan(receivers=2, timeout_s=1.0)
    failed: list[BroadcastError] = []

    def engine() -> None:
        with pytest.raises(BroadcastError, match="engine 7 could not join"):
            list(receive(where, "engine 7", "cpu", ""))
        failed.append(BroadcastError())

    thread = threading.Thread(target=engine)
    thread.start()
    with pytest.raises(BroadcastError, match=r"1 of 2 receivers joined .* \(engine 7\)"):
        send(where)
    thread.join()
    assert failed


def test_a_tensor_that_the_plan_does_not_expect_is_refused() -> None:
    sender = Sender(plan(timeout_s=0.1), torch.device("cpu"))
    with pytest.raises(BroadcastError, match=r"'b' of shape .* which has a there"):
        sender.add("b", WEIGHTS["b"])
