"""`policy.model` as a directory: a path, or a hub id that is downloaded once and then cached."""

from __future__ import annotations

import re
from pathlib import Path

from coevo.model_shape import ModelError, read_config

HUB_ID = re.compile(r"^[\w.-]+/[\w.-]+$")
SMALL = ("*.json", "*.jinja", "*.model", "*.txt")
"""Configuration and tokenizer. Weights are taken as safetensors only, not in a second format."""


def model_directory(model: str, weights: bool = True) -> Path:
    """The directory of `policy.model`; weights: with them, where it comes from a hub.

    Raises ModelError: no model there, no such hub id."""
    path = Path(model)
    if path.is_dir() or not HUB_ID.match(model):
        read_config(path)
        return path
    # Here, because most runs name a directory and need no client of a hub.
    from huggingface_hub import snapshot_download

    patterns = [*SMALL, "*.safetensors"] if weights else list(SMALL)
    try:
        found = Path(snapshot_download(model, allow_patterns=patterns))
    except (OSError, ValueError) as error:  # its HTTP and cache errors are OSErrors
        said = str(error).strip().splitlines()[0]
        raise ModelError(
            f"policy.model {model!r} is no directory here, and as a hub id it could not be had "
            f"({said}); check the name, log in with `hf auth login` where it is gated, or download it "
            "elsewhere and name the directory"
        ) from error
    read_config(found)
    return found
