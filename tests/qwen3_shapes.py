"""The Qwen3 family's shapes, as each model's config.json on the Hugging Face hub states them (Qwen3
technical report, arXiv 2505.09388, table 1), and the number of parameters in its weights files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

QWEN3: dict[str, dict[str, Any]] = {
    name: {
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "tie_word_embeddings": tied,
    }
    for name, hidden, intermediate, layers, heads, tied in (
        ("0.6b", 1024, 3072, 28, 16, True),
        ("1.7b", 2048, 6144, 28, 16, True),
        ("4b", 2560, 9728, 36, 32, True),
        ("8b", 4096, 12288, 36, 32, False),
        ("14b", 5120, 17408, 40, 40, False),
        ("32b", 5120, 25600, 64, 64, False),
    )
}

PARAMETERS = {
    "0.6b": 596_049_920,
    "1.7b": 1_720_574_976,
    "4b": 4_022_468_096,
    "8b": 8_190_735_360,
    "14b": 14_768_307_200,
    "32b": 32_762_123_264,
}


def write_config(name: str, directory: Path) -> Path:
    """config.json of a Qwen3 model, alone in `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "head_dim": 128,
        "num_key_value_heads": 8,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "rope_theta": 1000000,
        "rms_norm_eps": 1e-6,
        "torch_dtype": "bfloat16",
        "eos_token_id": 151645,
        **QWEN3[name],
    }
    (directory / "config.json").write_text(json.dumps(config))
    return directory
