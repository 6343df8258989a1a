"""What a model's size follows from: parameters, layers, widths, of a directory or of settings.

`shape_of` builds the model on torch's meta device: its config.json is enough, no weight is read or
allocated. It imports torch and transformers; the rest of the module imports neither.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from coevo.errors import InputError
from trainer.warmstart_config import ArchitectureConfig


class ModelError(InputError):
    """A model directory that is none, or of a kind that is not served and trained here."""


@dataclass(frozen=True, slots=True)
class LinearLayers:
    """`count` linear layers of one name (`q_proj`), each of `inputs` · `outputs` weights."""

    name: str
    inputs: int
    outputs: int
    count: int


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Of a causal language model. parameters: all, a tied head once. linears: all but the head.

    positions: the longest context that it was made for, None where its config does not say.
    """

    architecture: str
    parameters: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    positions: int | None
    linears: tuple[LinearLayers, ...]

    def lora_parameters(self, rank: int, targets: str | tuple[str, ...]) -> int:
        """Of adapters of `rank` on the linear layers that `targets` names: rank · (in + out) each."""
        chosen = [
            x for x in self.linears if targets == "all-linear" or x.name.endswith(tuple(targets))
        ]
        return sum(rank * (x.inputs + x.outputs) * x.count for x in chosen)

    def kv_bytes_per_token(self, element: int) -> int:
        """Of keys and values of all layers, `element` bytes a number."""
        return 2 * self.layers * self.kv_heads * self.head_dim * element

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        linears = tuple(LinearLayers(**item) for item in data["linears"])
        return cls(**{**data, "linears": linears})


def read_config(directory: Path) -> dict[str, Any]:
    """config.json of a model directory. Raises ModelError."""
    file = directory / "config.json"
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelError(
            f"policy.model {str(directory)!r}: there is no config.json; expected a Hugging Face model "
            "directory or a hub id such as Qwen/Qwen3-0.6B"
        ) from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{file}: cannot be read as JSON ({error})") from error
    return found


def without_weights(directory: Path) -> Any:
    """The model that config.json describes, on the meta device. Raises ModelError."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    read_config(directory)
    try:
        config = AutoConfig.from_pretrained(str(directory))
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config)
    except (ValueError, KeyError, OSError, ImportError) as error:
        said = str(error).splitlines()[0]
        raise ModelError(
            f"policy.model {str(directory)!r} is no causal language model that transformers knows "
            f"({said}); choose another model, or a newer transformers"
        ) from error
    return model


def shape_of(directory: Path) -> ModelShape:
    """The shape of the model that config.json describes. Raises ModelError."""
    return shape_of_model(without_weights(directory))


def shape_of_model(model: Any) -> ModelShape:
    """The shape of a transformers model, on any device."""
    import torch

    config = model.config
    text = config.get_text_config()
    heads = int(text.num_attention_heads)
    hidden = int(text.hidden_size)
    head = model.get_output_embeddings()
    groups: dict[tuple[str, int, int], int] = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and module is not head:
            key = (name.rpartition(".")[2], module.in_features, module.out_features)
            groups[key] = groups.get(key, 0) + 1
    positions = getattr(text, "max_position_embeddings", None)
    return ModelShape(
        architecture=type(model).__name__,
        parameters=sum(p.numel() for p in model.parameters()),
        layers=int(text.num_hidden_layers),
        hidden=hidden,
        heads=heads,
        kv_heads=int(getattr(text, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(text, "head_dim", None) or hidden // heads),
        intermediate=int(getattr(text, "intermediate_size", None) or 4 * hidden),
        vocabulary=int(text.vocab_size),
        positions=None if positions is None else int(positions),
        linears=tuple(LinearLayers(*key, count) for key, count in sorted(groups.items())),
    )


def shape_of_architecture(config: ArchitectureConfig) -> ModelShape:
    """Of a model that `policy.warmstart` makes (tied head, no biases), with its full vocabulary."""
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    layers = config.layers
    linears = (
        LinearLayers("down_proj", config.intermediate, config.hidden, layers),
        LinearLayers("gate_proj", config.hidden, config.intermediate, layers),
        LinearLayers("k_proj", config.hidden, kv, layers),
        LinearLayers("o_proj", q, config.hidden, layers),
        LinearLayers("q_proj", config.hidden, q, layers),
        LinearLayers("up_proj", config.hidden, config.intermediate, layers),
        LinearLayers("v_proj", config.hidden, kv, layers),
    )
    norms = (2 * layers + 1) * config.hidden
    if config.family == "qwen3":
        norms += 2 * layers * config.head_dim
    matrices = sum(x.inputs * x.outputs * x.count for x in linears)
    return ModelShape(
        architecture=config.family,
        parameters=config.vocab * config.hidden + matrices + norms,
        layers=layers,
        hidden=config.hidden,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        intermediate=config.intermediate,
        vocabulary=config.vocab,
        positions=config.max_positions,
        linears=linears,
    )
