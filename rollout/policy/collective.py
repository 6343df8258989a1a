"""Weights broadcast from the trainer to engines: a torch process group, one bucket at a time.

The same code runs over gloo (CPU, exercised by the tests) and NCCL (GPU, not measured yet). A group
is made for each publication, so that an engine that was started anew needs no special care. Both
sides hash what they send and receive as `rollout.policy.weights.fingerprint_file` does.
"""

from __future__ import annotations

import hashlib
import json
import queue
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from rollout.policy.broadcast import Broadcast, Bucket, TensorSpec

AHEAD = 2
"""Filled buckets that wait for the network while the next one is gathered."""

_SAFETENSORS = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}


class BroadcastError(RuntimeError):
    """A broadcast that did not reach every engine whole; the message says which did not join."""


class Fingerprint:
    """sha256 over tensors that come sorted by name: equal to that of a file that holds them."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._last = ""

    def add(self, spec: TensorSpec, data: torch.Tensor) -> None:
        """data: uint8 [size]."""
        if spec.name <= self._last:
            raise BroadcastError(f"tensor {spec.name!r} follows {self._last!r}: not sorted by name")
        self._last = spec.name
        head = [spec.name, _SAFETENSORS[spec.dtype], list(spec.shape)]
        self._digest.update(json.dumps(head).encode() + b"\n")
        self._digest.update(data.cpu().numpy().data)

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


class _Group:
    """A process group beside the default one. Rank 0 sends; the others take ranks as they come."""

    def __init__(self, plan: Broadcast, sender: bool, name: str) -> None:
        limit = timedelta(seconds=plan.timeout_s)
        try:
            # Kept as long as the group: the sender's is the server.
            self._store = dist.TCPStore(
                plan.host, plan.port, None, sender, timeout=limit, wait_for_workers=False
            )
            rank = 0 if sender else self._store.add("ranks", 1)
            if not 0 <= rank <= plan.receivers:
                raise BroadcastError(
                    f"{name} came as receiver {rank} of {plan}, which has {plan.receivers}"
                )
            if sender:
                self._wait_for_all(plan)
            else:
                self._store.set(f"joined/{rank}", name)
                self._store.wait(["go"], limit)
            self._group = self._make(plan, rank, limit)
        except (dist.DistError, RuntimeError, OSError) as error:
            if isinstance(error, BroadcastError):
                raise
            raise BroadcastError(f"{name} could not join {plan}: {error}") from error

    def _wait_for_all(self, plan: Broadcast) -> None:
        end = time.monotonic() + plan.timeout_s
        for rank in range(1, plan.receivers + 1):
            while not self._store.check([f"joined/{rank}"]):
                if time.monotonic() > end:
                    here = [self._store.get(f"joined/{r}").decode() for r in range(1, rank)]
                    raise BroadcastError(
                        f"{len(here)} of {plan.receivers} receivers joined {plan} within "
                        f"{plan.timeout_s:g} s ({', '.join(here) or 'none'}); the others' engines are "
                        "dead, busy or cannot reach this host"
                    )
                time.sleep(0.01)
        self._store.set("go", "1")

    def _make(self, plan: Broadcast, rank: int, limit: timedelta) -> Any:
        size = plan.receivers + 1
        store = dist.PrefixStore("broadcast", self._store)
        if plan.backend == "gloo":
            return dist.ProcessGroupGloo(store, rank, size, limit)
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = limit
        return dist.ProcessGroupNCCL(store, rank, size, options)

    def broadcast(self, data: torch.Tensor) -> None:
        options = dist.BroadcastOptions()
        options.rootRank = 0
        self._group.broadcast([data], options).wait()
        if data.is_cuda:
            torch.cuda.synchronize(data.device)


class Sender:
    """Broadcasts tensors in the order of the plan, on a daemon thread; use as a context manager.

    A failure of the thread does not interrupt `add`, which ranks that gather in step rely on: it is
    raised by `finish`.
    """

    def __init__(self, plan: Broadcast, device: torch.device) -> None:
        self._plan, self._device = plan, device
        self._end = time.monotonic() + 2 * plan.timeout_s
        self._full: queue.Queue[torch.Tensor | None] = queue.Queue(AHEAD)
        self._failure: BaseException | None = None
        self._print = Fingerprint()
        self._specs = iter([(b, s) for b in plan.buckets for s in b.tensors])
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._bucket: Bucket | None = None
        self._thread = threading.Thread(target=self._run, name="weight-broadcast", daemon=True)
        self._thread.start()

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """The next tensor of the plan. Raises BroadcastError where it is another one."""
        bucket, spec = next(self._specs, (None, None))
        if spec is None or bucket is None or spec.name != name or spec.shape != tuple(tensor.shape):
            raise BroadcastError(
                f"tensor {name!r} of shape {list(tensor.shape)} does not follow the plan, which has "
                f"{spec.name if spec else 'no more'} there"
            )
        if bucket is not self._bucket:
            self._bucket = bucket
            self._buffer = torch.zeros(bucket.size, dtype=torch.uint8, device=self._device)
        part = self._buffer[spec.offset : spec.offset + spec.size]
        part.copy_(tensor.detach().contiguous().view(-1).view(torch.uint8))
        self._print.add(spec, part)
        if spec is bucket.tensors[-1]:
            self._put(self._buffer)

    def finish(self) -> str:
        """Wait until all is sent; the fingerprint. Raises BroadcastError."""
        self._put(None)
        self._thread.join(max(0.0, self._end - time.monotonic()))
        if self._failure is None and self._thread.is_alive():
            self._failure = self._late()
        if self._failure is not None:
            raise BroadcastError(f"{self._plan} failed: {self._failure}") from self._failure
        return self._print.hexdigest()

    def _late(self) -> BroadcastError:
        return BroadcastError(
            f"it did not end within twice {self._plan.timeout_s:g} s; an engine stopped receiving"
        )

    def _put(self, item: torch.Tensor | None) -> None:
        while self._failure is None:
            try:
                self._full.put(item, timeout=0.1)
                return
            except queue.Full:
                if time.monotonic() > self._end:
                    self._failure = self._late()

    def _run(self) -> None:
        try:
            if self._device.type == "cuda":
                torch.cuda.set_device(self._device)
            group = _Group(self._plan, True, "the trainer")
            while (data := self._full.get()) is not None:
                group.broadcast(data)
        except (BroadcastError, RuntimeError, OSError) as error:
            self._failure = error


def receive(
    plan: Broadcast, name: str, device: torch.device | str, fingerprint: str
) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor) of every tensor, in buffers that are not reused. `name`: of this receiver.

    Raises BroadcastError at the end where the fingerprint of what came differs.
    """
    group = _Group(plan, False, name)
    found = Fingerprint()
    for number, bucket in enumerate(plan.buckets):
        data = torch.empty(bucket.size, dtype=torch.uint8, device=device)
        try:
            group.broadcast(data)
        except RuntimeError as error:
            raise BroadcastError(f"{name} lost {plan} at bucket {number}: {error}") from error
        for spec in bucket.tensors:
            part = data[spec.offset : spec.offset + spec.size]
            found.add(spec, part)
            yield spec.name, part.view(getattr(torch, spec.dtype)).view(spec.shape)
    if found.hexdigest() != fingerprint:
        raise BroadcastError(
            f"{name} received weights with fingerprint {found.hexdigest()}, the trainer published "
            f"{fingerprint}"
        )
