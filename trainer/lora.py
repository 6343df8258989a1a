"""LoRA on the trainer's model: adapters inside its layers, the base alone, merged and adapter weights."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainer import compat
from trainer.config import LoRAConfig
from trainer.errors import TrainerError

ADAPTER = "default"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"


def add_lora(model: Any, config: LoRAConfig, seed: int) -> None:
    """Put adapters into the layers of `model`, in place, and freeze everything else.

    The update starts at 0. Initial values depend on `seed` only, so that every ZeRO stage and every
    rank starts alike. Raises TrainerError where no layer matches `config.targets`.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            compat.inject_lora(model, config)
        except ValueError as error:
            raise TrainerError(
                f"trainer.lora.targets is {config.targets!r}, which does not fit {type(model).__name__}: "
                f"{error}"
            ) from error


def base_only(model: Any) -> AbstractContextManager[None]:
    """The model without its adapters inside the context: the reference M_0."""
    return compat.scaled_lora(model, 0.0)


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight of the plain model. parameter: what it is made of, with the adapter's in `layer`."""

    name: str
    parameter: nn.Parameter
    layer: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole weight, sharded or not."""
        return tuple(getattr(self.parameter, "ds_shape", self.parameter.shape))

    @property
    def parts(self) -> list[nn.Parameter]:
        """What must be gathered before `tensor`."""
        return [self.parameter] if self.layer is None else list(self.layer.parameters())

    @torch.no_grad()
    def tensor(self) -> torch.Tensor:
        """The weight; of an adapted layer W + alpha/rank · B·A, added in fp32 and rounded once."""
        if self.layer is None:
            return self.parameter.detach()
        merged = self.parameter.float() + self.layer.get_delta_weight(ADAPTER).float()
        return merged.to(self.parameter.dtype)


def plain_weights(model: Any) -> list[Weight]:
    """Every weight of the model as it was without adapters, sorted by name; a tied head once."""
    layers = {f"{name}.": module for name, module in compat.lora_layers(model)}
    found: list[Weight] = []
    for name, parameter in model.named_parameters():
        owner = next((prefix for prefix in layers if name.startswith(prefix)), None)
        if owner is None:
            found.append(Weight(name, parameter))
        elif ".base_layer." in name:
            plain = name.replace(".base_layer.", ".")
            adapted = layers[owner] if plain == f"{owner}weight" else None
            found.append(Weight(plain, parameter, adapted))
    return sorted(found, key=lambda weight: weight.name)


def adapter_name(parameter: str) -> str:
    """The name of an adapter's parameter in a peft adapter file."""
    return "base_model.model." + parameter.replace(f".{ADAPTER}.", ".")


def write_adapter_config(model: Any, directory: Path, base: Path) -> None:
    """adapter_config.json as peft reads it; `base`: the model directory that the adapter belongs to."""
    compat.save_lora_config(model, ADAPTER, directory, str(base))
