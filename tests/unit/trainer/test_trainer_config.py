"""The trainer's settings."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import BaseModel, ValidationError

from trainer.config import LoRAConfig, OffloadConfig, TrainerConfig


def test_reading_a_config_and_driving_a_group_import_no_torch() -> None:
    code = (
        "import sys, trainer.config, trainer.group; "
        "print(sorted({'torch', 'deepspeed', 'vllm', 'transformers'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_the_config_module_imports_no_ray() -> None:
    code = "import sys, trainer.config; print('ray' in sys.modules, 'numpy' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split()[0] == "False"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"aggregation": "constant"}, "constant_length is not set"),
        ({"ratio_mask": (1.5, 2.0)}, "expected low < 1 < high"),
        ({"dual_clip": 1.1}, "not above 1 \\+ eps_high"),
        ({"minibatches": 6}, "never be trained on"),
        ({"dtype": "bf16"}, "use zero_stage 1"),
        ({"offload": {"optimizer": "cpu"}}, "use zero_stage 1, 2 or 3"),
        ({"offload": {"params": "cpu"}, "zero_stage": 2}, "only zero_stage 3 shards the weights"),
        ({"lora": {}, "reference_path": "x", "kl_beta": 0.1}, "unset reference_path"),
        ({"lora": {"publish": "adapter"}, "publish": "collective"}, "read adapters from files"),
        ({"learning_rate": 1.0}, "learning_rate"),
    ],
)
def test_a_contradiction_is_refused_with_what_to_change(
    fields: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ValidationError, match=sentence):
        TrainerConfig.model_validate(fields)


@pytest.mark.parametrize("section", [TrainerConfig, LoRAConfig, OffloadConfig])
def test_every_field_is_documented(section: type[BaseModel]) -> None:
    assert [n for n, f in section.model_fields.items() if not f.description] == []
