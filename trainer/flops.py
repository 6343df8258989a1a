"""Model FLOPs of an optimiser step, and the device's peak, for model FLOPs utilisation (MFU).

What the mathematics needs is counted (Chowdhery et al. 2022, appendix B): no padding, no recomputed
activations, no pass of the reference model. A frozen matrix has no weight gradient.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

GPU_PEAKS: dict[str, tuple[float, float]] = {
    "B200": (2250e12, 80e12),
    "H200": (989e12, 67e12),
    "H100 PCIe": (756e12, 51e12),
    "H100 NVL": (835e12, 60e12),
    "H100": (989e12, 67e12),
    "A100": (312e12, 19.5e12),
    "L40S": (362e12, 91.6e12),
    "L4": (121e12, 30.3e12),
    "A10G": (70e12, 31.5e12),
    "A10": (125e12, 31.2e12),
}
"""(bf16 tensor cores, fp32 without TF32) in FLOP/s, dense, of the makers' data sheets. The first name
that the device's name contains counts."""

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True, slots=True)
class StepFlops:
    """body, head: multiplied weights of the layers and of the output head; `_trained`: those with a
    gradient. attention: layers · heads · head size."""

    body: int
    body_trained: int
    head: int
    head_trained: int
    attention: int

    def __call__(self, lengths: np.ndarray, sampled: int) -> float:
        """Of forward and backward over segments of `lengths` tokens (int64 [s]), causal attention,
        with the head on `sampled` tokens only: 6·N·tokens + 6·attention·Σ length² where all is
        trained."""
        tokens = float(lengths.sum())
        dense = tokens * (4 * self.body + 2 * self.body_trained)
        head = float(sampled) * (4 * self.head + 2 * self.head_trained)
        return dense + head + 6.0 * self.attention * float((lengths.astype(np.float64) ** 2).sum())


def count_flops(model: Any) -> StepFlops | None:
    """Of a causal language model; None for a mixture of experts, which multiplies only some weights."""
    config = model.config.get_text_config()
    if any(getattr(config, name, None) for name in _EXPERTS):
        return None

    def size(parameter: Any) -> int:
        return int(getattr(parameter, "ds_numel", parameter.numel()))

    head = model.get_output_embeddings().weight
    outside = {id(head), id(model.get_input_embeddings().weight)}
    body = [p for p in model.parameters() if id(p) not in outside and _dimensions(p) > 1]
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return StepFlops(
        body=sum(map(size, body)),
        body_trained=sum(size(p) for p in body if p.requires_grad),
        head=size(head),
        head_trained=size(head) if head.requires_grad else 0,
        attention=config.num_hidden_layers * config.num_attention_heads * width,
    )


def _dimensions(parameter: Any) -> int:
    return len(getattr(parameter, "ds_shape", parameter.shape))


def peak_flops(device: torch.device, dtype: str) -> float | None:
    """FLOP/s of one device: from the table for a GPU, measured by a matrix product on a CPU, None for
    a GPU that the table does not know."""
    if device.type == "cpu":
        return _measured(torch.bfloat16 if dtype == "bf16" else torch.float32)
    name = torch.cuda.get_device_name(device)
    found = next((peaks for known, peaks in GPU_PEAKS.items() if known in name), None)
    return None if found is None else found[0 if dtype == "bf16" else 1]


def _measured(dtype: torch.dtype, n: int = 768, repeats: int = 3) -> float:
    """The best of a few n³ products, with the threads of this process."""
    a = torch.ones(n, n, dtype=dtype)
    best = float("inf")
    for _ in range(repeats + 1):
        started = time.perf_counter()
        torch.mm(a, a)
        best = min(best, time.perf_counter() - started)
    return 2.0 * n**3 / best
