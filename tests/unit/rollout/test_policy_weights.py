"""Fingerprints of weights files, the engine's configuration and the scripted engine."""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError
from safetensors.numpy import save_file

from rollout.policy.base import ContextOverflow, EngineError, Request, Sampling
from rollout.policy.config import VLLMEngineConfig
from rollout.policy.scripted import ScriptedEngine
from rollout.policy.weights import (
    WeightsError,
    check_names,
    checkpoint_files,
    fingerprint_file,
    fingerprint_files,
    read_index,
)

A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.ones(4, dtype=np.float16)


def test_the_fingerprint_is_sha256_over_sorted_name_type_shape_and_bytes(tmp_path: Path) -> None:
    save_file({"b": B, "a": A}, tmp_path / "w.safetensors")
    digest = hashlib.sha256()
    for name, dtype, array in (("a", "F32", A), ("b", "F16", B)):
        digest.update(json.dumps([name, dtype, list(array.shape)]).encode() + b"\n")
        digest.update(array.tobytes())
    assert fingerprint_file(tmp_path / "w.safetensors") == digest.hexdigest()
    golden = "766cbc0025e0a2c182b2a8deb3a4e828df428ddc43922eb039db3f17d9f069e1"
    assert fingerprint_file(tmp_path / "w.safetensors") == golden


def test_metadata_and_the_split_into_files_do_not_count_but_every_value_does(
    tmp_path: Path,
) -> None:
    save_file({"a": A, "b": B}, tmp_path / "one", metadata={"step": "7"})
    save_file({"a": A}, tmp_path / "x1")
    save_file({"b": B}, tmp_path / "x2")
    assert fingerprint_files([tmp_path / "x2", tmp_path / "x1"]) == fingerprint_file(
        tmp_path / "one"
    )
    for changed in (A + np.float32(1e-6), A.reshape(3, 2), A.astype(np.float64)):
        save_file({"a": changed, "b": B}, tmp_path / "other")
        assert fingerprint_file(tmp_path / "other") != fingerprint_file(tmp_path / "one")


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file({"a": A}, path)
    data = path.read_bytes()
    for broken, message in (
        (data[:-1], "cut short"),
        (data[:5], "cut short"),
        (data[:8] + b"!" + data[9:], "not a safetensors file"),
    ):
        path.write_bytes(broken)
        with pytest.raises(WeightsError, match=message):
            fingerprint_file(path)
    with pytest.raises(WeightsError, match="No such file"):
        fingerprint_file(tmp_path / "none")
    with pytest.raises(WeightsError, match="save_pretrained"):
        checkpoint_files(tmp_path / "nowhere")


def test_missing_and_reshaped_tensors_are_refused(tmp_path: Path) -> None:
    save_file({"a": A, "b": B}, tmp_path / "full")
    save_file({"a": A}, tmp_path / "part")
    save_file({"a": A.T.copy(), "b": B}, tmp_path / "turned")
    full = read_index(tmp_path / "full")
    check_names(full, full)
    with pytest.raises(WeightsError, match=r"lacks 1 of 2 tensors, e\.g\. 'b'"):
        check_names(full, read_index(tmp_path / "part"))
    with pytest.raises(WeightsError, match=r"'a' has shape \[3, 2\]"):
        check_names(full, read_index(tmp_path / "turned"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_size": 16}, "multiple of 32"),
        ({"tensor_parallel": 2}, "use replicas"),
        ({"lora": {"rank": 5}}, "8, 16"),
        ({"chunked_prefill": True}, "cannot be prefilled in chunks on CPU"),
        ({"max_model_len": 4096, "max_num_batched_tokens": 2048}, "must fit"),
        ({"kv_cache": 3}, "Extra inputs"),
    ],
)
def test_a_configuration_that_vllm_would_choke_on_is_refused(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        VLLMEngineConfig.model_validate({"model": "m", **options})


def test_the_engine_process_gets_its_threads_and_no_hub_for_a_local_model(tmp_path: Path) -> None:
    env = VLLMEngineConfig(model=str(tmp_path), threads=2).env()
    assert env["OMP_NUM_THREADS"] == "2"
    assert env["HF_HUB_OFFLINE"] == "1"
    assert env["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    gpu = VLLMEngineConfig(model="org/name", device="cuda", dtype="bfloat16")
    assert "OMP_NUM_THREADS" not in gpu.env()
    assert "HF_HUB_OFFLINE" not in gpu.env()
    assert gpu.chunked


def test_configuration_and_weights_import_no_engine() -> None:
    code = (
        "import sys, rollout.policy.config, rollout.policy.weights, rollout.policy.scripted;"
        "print([m for m in ('torch', 'vllm', 'ray', 'transformers') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_the_scripted_engine_keeps_the_contract(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda ids: [*ids, 9], max_model_len=6, fail_at=frozenset({2}))
    requests = [Request((1, 2), Sampling()), Request((3, 4, 5), Sampling(max_tokens=2))]
    first, second = asyncio.run(engine.generate(requests))
    assert (first.token_ids, first.finish_reason) == ((1, 2, 9), "stop")
    assert (second.token_ids, second.finish_reason) == ((3, 4), "length")
    with pytest.raises(ContextOverflow):
        asyncio.run(engine.generate([Request((1,) * 6, Sampling())]))
    with pytest.raises(EngineError, match="call 2"):
        asyncio.run(engine.generate(requests))
    path = tmp_path / "w.safetensors"
    save_file({"a": A}, path)
    with pytest.raises(EngineError, match="fingerprint"):
        asyncio.run(engine.update(str(path), 1, "00"))
    asyncio.run(engine.update(str(path), 1, fingerprint_file(path)))
    assert asyncio.run(engine.generate(requests))[0].version == 1
    assert asyncio.run(engine.score([[1, 2, 3]])) == [[-1.0, -1.0]]
