"""vLLM's weight transfer from a safetensors file or a broadcast: what its workers run on an update.

Importing this module imports vLLM and torch, and registers the backend with vLLM.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)
from vllm.platforms import current_platform

from rollout.policy.broadcast import Broadcast
from rollout.policy.collective import receive
from rollout.policy.weights import fingerprint_files, weight_files

BACKEND = "safetensors_file"
EXTENSION = "rollout.policy.weight_transfer.WorkerExtension"


@dataclass
class FileInit(WeightTransferInitInfo):
    """The file backend has nothing to set up."""


@dataclass
class FileUpdate(WeightTransferUpdateInfo):
    """A file to read, or a broadcast to receive whose weights have `fingerprint`."""

    path: str = ""
    broadcast: Broadcast | None = None
    fingerprint: str = ""


class FileTransfer(WeightTransferEngine[FileInit, FileUpdate]):
    """vLLM weight-transfer backend that reads a file, or those of a model directory, on every worker."""

    init_info_cls = FileInit
    update_info_cls = FileUpdate

    def init_transfer_engine(self, init_info: FileInit) -> None:
        pass

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        # Not the base method: it synchronises an accelerator that a CPU build does not have.
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: FileUpdate) -> None:
        model: Any = self.model
        if update_info.broadcast is None:
            model.load_weights(_tensors(update_info.path))
            return
        name = f"worker {self.parallel_config.rank} of the engine in process {os.getpid()}"
        model.load_weights(
            receive(update_info.broadcast, name, self.device, update_info.fingerprint)
        )

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        repack_cpu_heads(self.model)
        if not current_platform.is_cpu():
            torch.accelerator.synchronize()

    def shutdown(self) -> None:
        pass


class WorkerExtension:
    """Methods that vLLM adds to its workers; importing this module registers the backend there."""

    def file_fingerprint(self, path: str) -> str:
        return fingerprint_files(weight_files(path))


def _register() -> None:
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, FileTransfer)


_register()


def _tensors(path: str) -> Iterator[tuple[str, torch.Tensor]]:
    for part in weight_files(path):
        with safe_open(part, framework="pt", device="cpu") as file:
            for name in file.keys():  # noqa: SIM118 — safe_open is no mapping
                yield name, file.get_tensor(name)


def repack_cpu_heads(model: torch.nn.Module) -> int:
    """Refresh the packed weights of embeddings and heads on CPU; returns how many.

    vLLM on CPU multiplies by a private packed copy of `lm_head`. Its reload repacks the module that
    owns the weight, so a head that is tied to the embedding would keep the old copy: logits of old
    and new weights mixed, silently.
    """
    if not current_platform.is_cpu():
        return 0
    count = 0
    module: Any
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if hasattr(module, "cpu_linear") and isinstance(weight, torch.Tensor) and weight.numel():
            module.quant_method.process_weights_after_loading(module)
            count += 1
    return count
