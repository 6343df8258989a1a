"""The names of vLLM that change between minor versions, here and in `weight_transfer`: pinned to 0.32.

Importing this module imports vLLM and torch. `VLLMCore` is a `StepEngine` over vLLM's in-process
`LLMEngine`. It is the synchronous engine on purpose: on CPU its batches cost half the time of
AsyncLLM's (see benchmarks/engine_batches.py), and its batches are the same in every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm import EngineArgs, SamplingParams
from vllm.config import WeightTransferConfig
from vllm.lora.request import LoRARequest
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.llm_engine import LLMEngine

from rollout.policy.base import EngineAsleep, EngineError, Request, Sample, Sampling
from rollout.policy.broadcast import Broadcast
from rollout.policy.collective import BroadcastError
from rollout.policy.config import VLLMEngineConfig
from rollout.policy.weight_transfer import BACKEND, EXTENSION
from rollout.policy.weights import (
    TensorEntry,
    WeightsError,
    adapter_rank,
    check_names,
    fingerprint_file,
    fingerprint_files,
    is_model,
    read_indices,
    weight_files,
)

VERSION = "0.32"


def engine_args(config: VLLMEngineConfig) -> EngineArgs:
    extra: dict[str, Any] = {}
    if config.block_size is not None or config.device == "cpu":
        extra["block_size"] = config.block
    if config.lora is not None:
        extra |= {"enable_lora": True, "max_lora_rank": config.lora.rank, "max_loras": 1}
    if config.sleeps and config.device == "cuda":
        extra["enable_sleep_mode"] = True
    if config.bundles:
        extra["distributed_executor_backend"] = "ray"
    return EngineArgs(
        model=config.model,
        dtype=config.dtype,
        max_model_len=config.max_model_len,
        kv_cache_memory_bytes=config.kv_cache_bytes,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.batched_tokens,
        enforce_eager=config.enforce_eager,
        enable_prefix_caching=config.prefix_caching,
        enable_chunked_prefill=config.chunked,
        async_scheduling=False,
        tensor_parallel_size=config.tensor_parallel,
        seed=config.seed,
        # Tokens in, tokens out: no tokenizer, and no sampling defaults from the checkpoint.
        skip_tokenizer_init=True,
        generation_config="vllm",
        logprobs_mode="processed_logprobs",
        disable_log_stats=True,
        worker_extension_cls=EXTENSION,
        weight_transfer_config=WeightTransferConfig(backend=BACKEND),
        **extra,
    )


def sampling_params(sampling: Sampling) -> SamplingParams:
    """Stops at `stop_token_ids` and at nothing else; log-prob of the sampled token only."""
    return SamplingParams(
        temperature=sampling.temperature,
        max_tokens=sampling.max_tokens,
        seed=sampling.seed,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        stop_token_ids=list(sampling.stop_token_ids),
        ignore_eos=True,
        logprobs=0,
        detokenize=False,
        skip_clone=True,  # made for this one request; a deep copy costs a tenth of a short one
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def scoring_params() -> SamplingParams:
    return SamplingParams(
        temperature=0.0,
        max_tokens=1,
        prompt_logprobs=0,
        ignore_eos=True,
        detokenize=False,
        skip_clone=True,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Log-probs of a whole sequence instead of a sample."""

    token_ids: tuple[int, ...]


class VLLMCore:
    """vLLM's engine with versioned weights; used from one thread."""

    def __init__(self, config: VLLMEngineConfig, version: int = 0) -> None:
        if current_platform.is_cpu() != (config.device == "cpu"):
            raise EngineError(
                f"engine.device is {config.device!r} but the installed vLLM is built for "
                f"{current_platform.device_type!r}; install the matching extra (coevo[cpu] or "
                "coevo[gpu]) or change engine.device"
            )
        self._engine = LLMEngine.from_engine_args(engine_args(config))
        self._engine.collective_rpc("init_weight_transfer_engine", kwargs={"init_info": {}})
        self._engine.set_weight_version(str(version))
        self.version = version
        self._vocab: int = self._engine.model_config.get_vocab_size()
        self._expected: dict[str, TensorEntry] = {}
        self._served_rank = config.lora.rank if config.lora else 0
        self._adapter: LoRARequest | None = None
        self._adapters = 0
        self._fingerprint = ""
        if Path(config.model).is_dir():
            self._fingerprint = fingerprint_files(weight_files(config.model))
            # Tables that old checkpoints hold and models compute.
            self._expected = {
                name: entry
                for name, entry in read_indices(config.model).items()
                if not name.endswith("rotary_emb.inv_freq")
            }
            if self._engine.model_config.hf_config.tie_word_embeddings:
                self._expected.pop("lm_head.weight", None)
        self._base = self._fingerprint
        self._broken = ""
        self._asleep = False

    def sleep(self) -> None:
        """Free the GPU's memory for another process until the next `update`, which wakes the engine.

        Level 2 drops weights and cache, because the update brings other weights; an adapter's base is
        kept in the host's memory (level 1). vLLM on CPU has no sleep: there nothing is freed, and the
        engine is as unavailable.
        """
        self._engine.reset_prefix_cache()
        self._engine.sleep(level=1 if self._served_rank else 2)
        self._asleep = True

    def _wake(self, *tags: str) -> None:
        """Of a sleeping engine, "weights" before they are replaced, then "kv_cache": the new weights
        are in place before the cache takes memory."""
        if self._asleep:
            self._engine.wake_up(tags=list(tags))
            self._asleep = "kv_cache" not in tags

    def add(self, request_id: str, item: Request | ScoreRequest) -> None:
        if self._broken:
            raise EngineError(self._broken)
        if self._asleep:
            raise EngineAsleep(
                "the engine sleeps while the trainer has its GPUs; publish weights to wake it"
            )
        if isinstance(item, Request):
            ids, params = item.prompt_ids, sampling_params(item.sampling)
        else:
            ids, params = item.token_ids, scoring_params()
        # vLLM checks this against the tokenizer, which this engine does not have.
        if not 0 <= min(ids) <= max(ids) < self._vocab:
            raise ValueError(
                f"request {request_id} has a token outside the vocabulary of {self._vocab}: ids are "
                f"{min(ids)}…{max(ids)}; tokenizer and model do not match"
            )
        self._engine.add_request(
            request_id, {"prompt_token_ids": list(ids)}, params, lora_request=self._adapter
        )

    def abort(self, request_ids: Sequence[str]) -> None:
        self._engine.abort_request(list(request_ids))

    def step(self) -> list[tuple[str, Sample | list[float]]]:
        outputs: list[Any] = self._engine.step()
        return [
            (output.request_id, _scores(output) if output.prompt_logprobs else _sample(output))
            for output in outputs
            if output.finished
        ]

    def score_alone(self, sequences: Sequence[tuple[int, ...]]) -> list[list[float]]:
        """Log-probs of one sequence after the other, with nothing else in the engine.

        vLLM maps adapters to the rows that are sampled and applies the map to prompt rows: with
        adapters on, a second request in the batch ends the engine (einsum: size 8 against 55).
        """
        scores: dict[str, Any] = {}
        for index, sequence in enumerate(sequences):
            name = f"alone-{index}"
            self.add(name, ScoreRequest(sequence))
            while name not in scores:
                scores.update(self.step())
        return [scores[f"alone-{index}"] for index in range(len(sequences))]

    def update(self, path: str | Broadcast, version: int, fingerprint: str) -> None:
        """Replace the weights (a file or a model directory), or the adapter where `path` is one.

        A refused file leaves the old ones; a failed load breaks the engine. Raises EngineError: the
        fingerprint differs, tensors are missing, the file is unreadable, an adapter does not fit.
        """
        if isinstance(path, Broadcast):
            self._receive(path, version, fingerprint)
            return
        if Path(path).is_dir() and not is_model(path):
            self._update_adapter(Path(path), version, fingerprint)
            return
        if self._served_rank:
            self._drop_adapter(path, version, fingerprint)
            return
        try:
            check_names(self._expected, read_indices(path))
        except WeightsError as error:
            raise EngineError(f"{error}; version {version} was not loaded") from error
        for rank, found in enumerate(
            self._engine.collective_rpc("file_fingerprint", args=(str(path),))
        ):
            if found != fingerprint:
                raise EngineError(
                    f"weights file {str(path)!r} has fingerprint {found} on engine rank {rank}, the "
                    f"trainer published {fingerprint}; version {version} was not loaded"
                )
        self._load({"path": str(path)}, version)
        self._stamp(version, fingerprint)

    def _receive(self, broadcast: Broadcast, version: int, fingerprint: str) -> None:
        if self._served_rank:
            raise EngineError(
                f"an engine that serves adapters takes no broadcast; version {version} was not loaded: "
                "publish an adapter, or unset engine.lora"
            )
        tensors = {
            t.name: TensorEntry(t.dtype, t.shape, 0, t.size)
            for bucket in broadcast.buckets
            for t in bucket.tensors
        }
        try:
            check_names(self._expected, tensors)
        except WeightsError as error:
            raise EngineError(f"{error}; version {version} was not loaded") from error
        try:
            self._load({"broadcast": broadcast, "fingerprint": fingerprint}, version)
        except BroadcastError as error:
            raise EngineError(f"version {version}: {error}") from error
        self._stamp(version, fingerprint)

    def _load(self, update: dict[str, Any], version: int) -> None:
        self._broken = f"the load of weights version {version} did not finish; start a new engine"
        self._wake("weights")
        self._engine.collective_rpc("start_weight_update")
        self._engine.collective_rpc("update_weights", kwargs={"update_info": update})
        self._engine.collective_rpc("finish_weight_update")
        self._wake("kv_cache")

    def _update_adapter(self, directory: Path, version: int, fingerprint: str) -> None:
        if not self._served_rank:
            raise EngineError(
                f"{str(directory)!r} is an adapter, but the engine serves none; set engine.lora, or "
                "publish merged weights"
            )
        try:
            rank = adapter_rank(directory)
            found = fingerprint_file(directory / "adapter_model.safetensors")
        except WeightsError as error:
            raise EngineError(f"{error}; version {version} was not loaded") from error
        if rank > self._served_rank:
            raise EngineError(
                f"the adapter {str(directory)!r} has rank {rank}, engine.lora.rank is "
                f"{self._served_rank}: raise it; version {version} was not loaded"
            )
        if found != fingerprint:
            raise EngineError(
                f"the adapter {str(directory)!r} has fingerprint {found}, the trainer published "
                f"{fingerprint}; version {version} was not loaded"
            )
        # A new id each time: vLLM goes on serving the old files of an id that it knows.
        self._wake("weights", "kv_cache")
        self._adapters += 1
        request = LoRARequest(f"version-{version}", self._adapters, str(directory))
        try:
            loaded = self._engine.add_lora(request)
        except (ValueError, RuntimeError, OSError, KeyError) as error:
            raise EngineError(
                f"the adapter {str(directory)!r} does not fit the served model ({error}); version "
                f"{version} was not loaded"
            ) from error
        if not loaded:
            raise EngineError(f"vLLM did not load the adapter {str(directory)!r}")
        self._adapter = request
        self._stamp(version, fingerprint)

    def _drop_adapter(self, path: str, version: int, fingerprint: str) -> None:
        if fingerprint != self._base:
            raise EngineError(
                f"{path!r} is no adapter (no adapter_config.json), and an engine that serves adapters "
                f"keeps the weights that it started with ({self._base}); version {version} was not "
                "loaded: publish an adapter, or unset engine.lora"
            )
        self._wake("weights", "kv_cache")
        self._adapter = None
        self._stamp(version, fingerprint)

    def _stamp(self, version: int, fingerprint: str) -> None:
        """What is sampled from now on is of this version, and reads no older cache."""
        self._engine.set_weight_version(str(version))
        if not self._engine.reset_prefix_cache():
            self._broken = (
                f"the prefix cache still holds blocks of version {self.version} after the load of "
                f"version {version}; requests were running"
            )
            raise EngineError(self._broken)
        self.version, self._fingerprint, self._broken = version, fingerprint, ""

    def fingerprint(self) -> str:
        if not self._fingerprint:
            raise EngineError(
                "the engine serves hub weights, which have no fingerprint; serve a local directory "
                "or publish a weights file first"
            )
        return self._fingerprint

    def close(self) -> None:
        self._engine.engine_core.shutdown()


def _sample(output: Any) -> Sample:
    completion = output.outputs[0]
    if completion.finish_reason not in ("stop", "length"):
        raise EngineError(
            f"request {output.request_id} ended with finish reason {completion.finish_reason!r}; "
            "expected 'stop' or 'length'"
        )
    spans = completion.weight_versions
    if spans is None or len(spans) != 1:
        raise EngineError(
            f"request {output.request_id} was sampled by weight versions {spans}; expected one"
        )
    ids = tuple(completion.token_ids)
    return Sample(
        token_ids=ids,
        logprobs=tuple(
            entry[token].logprob for entry, token in zip(completion.logprobs, ids, strict=True)
        ),
        finish_reason=completion.finish_reason,
        version=int(spans[0].version),
        cached_tokens=output.num_cached_tokens or 0,
    )


def _scores(output: Any) -> list[float]:
    ids, entries = output.prompt_token_ids, output.prompt_logprobs
    return [entry[token].logprob for entry, token in zip(entries[1:], ids[1:], strict=True)]
