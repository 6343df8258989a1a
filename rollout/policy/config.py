"""Configuration of the policy engines, typed; importing it pulls neither vLLM nor torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from harness.evolve.llm.config import BudgetConfig, EndpointConfig
from harness.evolve.llm.errors import LLMSetupError

SHARED_GPU = 0.4
"""Share of a GPU that a colocated engine books of Ray: what decides is that less than one is left."""


class APIConfig(EndpointConfig):
    """A hosted model as the task model, for modes that do not train. The fields of an endpoint
    (see its docstring), and: budget: of one run, over its restarts. concurrency: calls in flight.
    seed: each request's own is sent along; switch it off where the server refuses it.
    """

    seed: bool = True
    budget: BudgetConfig = BudgetConfig()
    concurrency: int = Field(16, ge=1, le=1024)

    @model_validator(mode="after")
    def _priced(self) -> Self:
        if self.budget.money is not None and not self.price_in + self.price_out:
            raise ValueError(
                f"budget.money is {self.budget.money:g} but price_in and price_out are 0; set them, "
                "or limit budget.tokens instead"
            )
        return self

    def key(self, env: Mapping[str, str] = os.environ) -> str | None:
        """The key, None where the endpoint wants none. Raises LLMSetupError where it is not set."""
        if self.api_key_env is None:
            return None
        if not env.get(self.api_key_env):
            raise LLMSetupError(
                f"policy.api: the environment variable {self.api_key_env} is not set; export the "
                "key there, or remove api_key_env where the endpoint wants none"
            )
        return env[self.api_key_env]


class ServedLoRAConfig(BaseModel):
    """LoRA adapters served over the model's own weights: a new version is a new adapter.

    rank: the largest that an adapter may have; vLLM takes 8, 16, 32, 64, 128, 256, 320 and 512.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: Literal[8, 16, 32, 64, 128, 256, 320, 512] = 16


class VLLMEngineConfig(BaseModel):
    """One vLLM engine in one Ray actor.

    model: local directory of a Hugging Face checkpoint (config.json, *.safetensors), or a hub name.
    batching: `serial` runs each `generate` call to its end before the next one starts, so the same
    calls give bit-identical samples whatever their timing; `continuous` lets calls join a running
    batch (more throughput with many small callers, reproducible only where the kernels are
    batch-invariant). lora: serve adapters, which `update` then takes instead of whole weights.
    sleeps: the engine can give its GPU memory away for a while. bundles: of the placement group that
    it was started in, one for each of its GPUs, where it shares them with a trainer.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    max_model_len: int = Field(2048, ge=16)
    kv_cache_bytes: int = Field(256 << 20, ge=1 << 20, description="bytes of KV cache")
    max_num_seqs: int = Field(128, ge=1)
    max_num_batched_tokens: int | None = Field(None, ge=16, description="None: enough for a batch")
    block_size: int | None = Field(None, ge=1, description="None: 32 on CPU, vLLM's own on CUDA")
    enforce_eager: bool = True
    prefix_caching: bool = True
    chunked_prefill: bool | None = Field(None, description="None: off on CPU, on with CUDA")
    batching: Literal["serial", "continuous"] = "serial"
    tensor_parallel: int = Field(1, ge=1)
    lora: ServedLoRAConfig | None = None
    threads: int = Field(
        1, ge=1, description="OpenMP threads; more than 1 pays on a quiet host only"
    )
    seed: int = Field(0, ge=0, description="the engine's own; every request brings its seed anyway")
    sleeps: bool = False
    bundles: tuple[int, ...] = ()
    start_timeout_s: float = Field(600.0, gt=0)
    call_timeout_s: float = Field(600.0, gt=0)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.device == "cpu" and self.block % 32:
            raise ValueError(
                f"block_size is {self.block_size}; vLLM on CPU needs a multiple of 32: use 32"
            )
        if self.device == "cpu" and self.tensor_parallel > 1:
            raise ValueError(
                f"tensor_parallel is {self.tensor_parallel} with device cpu, where an engine is one "
                "process: use replicas"
            )
        if self.device == "cpu" and self.chunked_prefill:
            # vLLM rolls a seeded generator back after a partial prefill, which torch's CPU
            # generator cannot do ("CPU Generator does not use offset"): the engine would die.
            raise ValueError(
                "chunked_prefill is on with device cpu; seeded requests cannot be prefilled in "
                "chunks on CPU: leave chunked_prefill unset"
            )
        if not self.chunked and self.batched_tokens < self.max_model_len:
            raise ValueError(
                f"max_num_batched_tokens is {self.batched_tokens} but a whole prompt of up to "
                f"max_model_len {self.max_model_len} must fit: raise it or unset it"
            )
        return self

    @property
    def block(self) -> int:
        """Block size on CPU. Small blocks share more prefix; 32 is the least that vLLM takes."""
        return 32 if self.block_size is None else self.block_size

    @property
    def chunked(self) -> bool:
        return self.device == "cuda" if self.chunked_prefill is None else self.chunked_prefill

    @property
    def batched_tokens(self) -> int:
        if self.max_num_batched_tokens is not None:
            return self.max_num_batched_tokens
        return max(8192, self.max_model_len)

    def env(self) -> dict[str, str]:
        """Environment of the engine's process; must be set before vLLM and torch are imported."""
        env = {
            # In-process engine core: one process less, no 160 MiB ring in /dev/shm, and steps are
            # driven by us, which is what makes `serial` reproducible.
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
            # vLLM keeps request ids in sets: with random ids and hashes, the order of a batch's
            # rows would differ from run to run.
            "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION": "1",
            "PYTHONHASHSEED": "0",
        }
        if self.device == "cpu":
            env["OMP_NUM_THREADS"] = str(self.threads)
            env["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        if self.bundles:
            env["VLLM_RAY_PER_WORKER_GPUS"] = str(SHARED_GPU)
            env["VLLM_RAY_BUNDLE_INDICES"] = ",".join(map(str, self.bundles))
        if Path(self.model).is_dir():
            env["HF_HUB_OFFLINE"] = "1"
        return env
