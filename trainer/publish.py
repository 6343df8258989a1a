"""Publication of weights: one safetensors file and its marker, an adapter directory, or a broadcast.

The engines that serve the policy compute the fingerprint of what they read or receive again; a version
counts only where both agree. The marker (`<file>.json`) is written last.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

from harness.atomic import replacing, replacing_directory, write_json
from rollout.policy.broadcast import Broadcast, Bucket, plan_buckets
from rollout.policy.collective import BroadcastError, Sender
from rollout.policy.weights import fingerprint_file
from trainer.errors import PublishError
from trainer.lora import ADAPTER_WEIGHTS, plain_weights, write_adapter_config

if TYPE_CHECKING:
    from trainer.engine import TrainerEngine

SCHEMA = 1


def marker_of(path: Path) -> Path:
    """The marker of a published weights file."""
    return path.with_name(path.name + ".json")


def publish(weights: Iterable[tuple[str, torch.Tensor]], path: Path, write: bool = True) -> str:
    """Write named tensors to `path` and return the fingerprint of what stands in the file.

    Every rank passes its iterator, because ZeRO-3 gathers while it runs; only the one with `write`
    keeps tensors and writes; the others return "".
    """
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in weights:
        if write:
            tensors[name] = tensor
    if not write:
        return ""
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise PublishError(
                f"parameter {name} holds a value that is not finite; it will not be published"
            )
    marker_of(path).unlink(missing_ok=True)
    with replacing(path) as beside:
        save_file(tensors, str(beside), metadata={"format": "pt"})
    fingerprint = fingerprint_file(path)
    write_json(
        marker_of(path),
        {
            "schema": SCHEMA,
            "fingerprint": fingerprint,
            "tensors": len(tensors),
            "bytes": path.stat().st_size,
        },
    )
    return fingerprint


def publish_adapter(engine: TrainerEngine, directory: Path, base: Path, write: bool = True) -> str:
    """Write the adapters of a TrainerEngine as a peft adapter directory; the fingerprint of their
    weights, "" on ranks that do not write."""
    if write:
        write_adapter_config(engine.engine.module, directory, base)
    return publish(engine.adapter_weights(), directory / ADAPTER_WEIGHTS, write)


def buckets(engine: TrainerEngine) -> tuple[Bucket, ...]:
    """How `broadcast` cuts the weights of an engine; nothing is gathered."""

    def described() -> Iterator[tuple[str, str, tuple[int, ...], int]]:
        for weight in plain_weights(engine.engine.module):
            dtype = weight.parameter.dtype
            size = math.prod(weight.shape) * dtype.itemsize
            yield weight.name, str(dtype).removeprefix("torch."), weight.shape, size

    return plan_buckets(described(), engine.config.publish_bucket_bytes)


def broadcast(engine: TrainerEngine, plan: Broadcast) -> str:
    """Send the weights to the engines that receive `plan`; the fingerprint on rank 0, else "".

    All ranks gather, rank 0 sends. Raises PublishError there, when all ranks are through, where an
    engine did not take part.
    """
    sender = Sender(plan, engine.device) if engine.rank == 0 else None
    for name, tensor in engine.named_weights(engine.device):
        if sender is not None:
            sender.add(name, tensor)
    try:
        return "" if sender is None else sender.finish()
    except BroadcastError as error:
        raise PublishError(str(error), engine.rank) from error


def read_marker(path: Path) -> dict[str, Any]:
    """The marker of published weights; PublishError where the publication never finished."""
    try:
        marker: dict[str, Any] = json.loads(marker_of(path).read_text())
    except (FileNotFoundError, json.JSONDecodeError) as error:
        raise PublishError(
            f"{path} has no whole marker {marker_of(path).name} ({error}): the publication did not "
            "finish; publish again"
        ) from error
    return marker


def export_hf(
    model: Any,
    weights: Iterable[tuple[str, torch.Tensor]],
    directory: Path,
    source: Path,
    write: bool = True,
) -> None:
    """A Hugging Face model directory: config and weights of `model`, tokenizer files of `source`.

    Written beside and renamed; replaces an older export.
    """
    state = {name: tensor for name, tensor in weights if write}
    if not write:
        return
    with replacing_directory(directory) as beside:
        model.config.save_pretrained(beside)
        if model.generation_config is not None:
            model.generation_config.save_pretrained(beside)
        save_file(state, str(beside / "model.safetensors"), metadata={"format": "pt"})
        for file in sorted(source.iterdir()):
            known = file.name.startswith(("tokenizer", "chat_template", "special_tokens", "vocab"))
            if file.is_file() and (known or file.name in {"merges.txt", "added_tokens.json"}):
                shutil.copyfile(file, beside / file.name)
