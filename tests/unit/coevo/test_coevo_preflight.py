"""What a preflight finds wrong in a model, a machine, a configuration, and what it says to change."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from qwen3_shapes import write_config
from tiny_tokenizer import CHATML, tokenizer
from tiny_trainer import save_tiny_model

from coevo.base_model import model_directory
from coevo.cli import main
from coevo.config import ConfigError, RunConfig, load_config
from coevo.memory import GIB
from coevo.model_shape import ModelError, shape_of
from coevo.preflight import check_config, preflight
from coevo.preflight.checks import Check, ok
from coevo.preflight.machine import Machine, machine_checks, machine_of
from coevo.preflight.model import context_check, model_checks, prefix_check
from rollout.config import RolloutConfig
from rollout.tokens import Renderer

SMOKE = "configs/smoke.yaml"
LAST_TURN_ONLY = (
    "{% for m in messages[-1:] %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
DROPS_THINKING = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + "
    "(m['content'].split('</think>')[-1] if not loop.last else m['content']) + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def model(path: Path, template: str | None = CHATML) -> Path:
    save_tiny_model(path)
    made = tokenizer(template or CHATML, vocabulary=290)
    made.chat_template = template
    made.save_pretrained(path)
    return path


def found(checks: Iterable[Check], name: str) -> Check:
    return next(c for c in checks if c.name == name)


# --- the model ---


def test_a_whole_chat_model_passes(tmp_path: Path) -> None:
    report = model_checks(model(tmp_path), RolloutConfig(max_context=256))
    checks = report.checks
    assert report.shape is not None
    assert report.shape.architecture == "Qwen3ForCausalLM"
    assert {c.status for c in checks} == {"ok"}
    assert "'<|im_end|>'" in found(checks, "stop token").found


def test_a_base_model_is_refused_with_what_to_do_and_taken_as_a_transcript(tmp_path: Path) -> None:
    directory = model(tmp_path, None)
    check = found(model_checks(directory, RolloutConfig()).checks, "chat template")
    assert check.status == "fail"
    assert "rollout.template: plain" in check.found
    checks = model_checks(directory, RolloutConfig(template="plain", max_context=256)).checks
    assert {c.status for c in checks} == {"ok"}
    assert r"'\n'" in found(checks, "stop token").found


def test_a_template_that_forks_is_a_warning_with_its_cost() -> None:
    check = prefix_check(Renderer(tokenizer(LAST_TURN_ONLY)))
    assert check.status == "warn"
    assert check.found.startswith("4 turns are 4 segments")
    check = prefix_check(Renderer(tokenizer(DROPS_THINKING)))
    assert check.status == "warn"
    assert "with thinking 4 segments: the template drops earlier thinking" in check.found
    assert "enable_thinking: false" in check.change


def test_a_context_that_the_model_was_not_made_for_fails(tmp_path: Path) -> None:
    shape = shape_of(write_config("0.6b", tmp_path))
    check = context_check(shape, RolloutConfig(max_context=40_950, max_new_tokens=16))
    assert check.status == "fail"
    assert check.change == "lower rollout.max_context to 40944 or less"


def test_a_cut_download_names_a_missing_file(tmp_path: Path) -> None:
    directory = model(tmp_path)
    (directory / "model.safetensors.index.json").write_text(
        '{"weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors"}}'
    )
    check = found(model_checks(directory, RolloutConfig(max_context=256)).checks, "model")
    assert check.status == "fail"
    assert "model-00002-of-00002.safetensors" in check.found


def test_tensors_of_other_names_than_the_models_are_a_warning(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    file = model(tmp_path) / "model.safetensors"
    tensors = load_file(file)
    tensors["model.last_norm.weight"] = tensors.pop("model.norm.weight")
    save_file(tensors, file)
    check = found(model_checks(tmp_path, RolloutConfig(max_context=256)).checks, "model")
    assert check.status == "warn"
    assert "no tensor 'model.norm.weight'" in check.found


def test_a_tokenizer_of_another_model_is_named(tmp_path: Path) -> None:
    directory = model(tmp_path)
    large = tokenizer()
    large.add_tokens([f"<extra_{i}>" for i in range(100)])
    large.save_pretrained(directory)
    check = found(model_checks(directory, RolloutConfig(max_context=256)).checks, "tokenizer")
    assert check.status == "fail"
    assert "the model's vocabulary 300" in check.found


def test_a_hub_id_that_cannot_be_had_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=r"'no-one/no-model' is no directory .* `hf auth login`"):
        model_directory("no-one/no-model")
    with pytest.raises(ModelError, match=r"expected a Hugging Face model directory or a hub id"):
        model_directory("models/nothing/here")


def test_a_hub_id_that_was_downloaded_once_is_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = tmp_path / "models--someone--tiny"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("0123abcd")
    write_config("0.6b", cached / "snapshots" / "0123abcd")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert model_directory("someone/tiny") == cached / "snapshots" / "0123abcd"


# --- the machine ---


def machine(**changes: Any) -> Machine:
    return Machine(**{"cpus": 64, "gpus": (80 * GIB,) * 8, "host": 1000 * GIB, "disk": 9000 * GIB} | changes)  # fmt: skip


@pytest.fixture(scope="module")
def qwen3_8b(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return shape_of(write_config("8b", tmp_path_factory.mktemp("8b")))


def recipe(*overrides: str) -> RunConfig:
    return load_config("configs/models/qwen3_8b.yaml", overrides)


def test_a_recipe_on_its_machine_passes(qwen3_8b: Any) -> None:
    checks = machine_checks(recipe(), machine(), qwen3_8b)
    assert [c.name for c in checks if c.status != "ok"] == []
    assert "4 of 8 (engines 4, trainer 4, colocated)" in found(checks, "GPUs").found


@pytest.mark.parametrize(
    ("overrides", "changes", "name", "said"),
    [
        (("resources.placement=disaggregated",), {"gpus": (80 * GIB,) * 4}, "GPUs", "colocated"),
        (("trainer.zero_stage=1",), {}, "GPU memory", "trainer.zero_stage: 3"),
        ((), {"gpus": (24 * GIB,) * 8}, "GPU memory", "policy.engine.tensor_parallel"),
        (("policy.engine.kv_cache_bytes=100000000",), {}, "KV cache", "kv_cache_bytes to"),
        ((), {"disk": 100 * GIB}, "disk", "another runs_dir"),
        (("trainer.offload.optimizer=cpu",), {"host": 64 * GIB}, "host memory", "with more"),
    ],
)
def test_what_does_not_fit_says_what_to_change(
    overrides: tuple[str, ...], changes: dict[str, Any], name: str, said: str, qwen3_8b: Any
) -> None:
    check = found(machine_checks(recipe(*overrides), machine(**changes), qwen3_8b), name)
    assert check.status == "fail"
    assert said in check.change


def test_the_advised_cache_is_large_enough(qwen3_8b: Any) -> None:
    small = recipe("policy.engine.kv_cache_bytes=100000000")
    advice = found(machine_checks(small, machine(), qwen3_8b), "KV cache").change
    size = int("".join(c for c in advice if c.isdigit()))
    again = recipe(f"policy.engine.kv_cache_bytes={size}")
    assert found(machine_checks(again, machine(), qwen3_8b), "KV cache").status != "fail"


def test_a_job_on_other_nodes_is_measured_by_what_the_configuration_says(qwen3_8b: Any) -> None:
    job = ("cluster.gpus_per_node=4", "cluster.cpus_per_task=32", "resources.gpu_memory_gib=80",
           "resources.host_memory_gib=500")  # fmt: skip
    config = recipe(*job)
    there = machine_of(config)
    assert (there.cpus, there.gpus, there.host) == (32, (80 * GIB,) * 4, 500 * GIB)
    few = recipe(*job, "cluster.gpus_per_node=2")
    check = found(machine_checks(few, machine_of(few), qwen3_8b), "placement")
    assert "the run books 4 GPUs (engine 4, trainer 4, colocated)" in check.found


# --- the command ---


@pytest.mark.parametrize("recipe", ["smollm2", "qwen3_0.6b"])
def test_the_recipes_have_a_harness_tasks_and_a_way_to_evolve(recipe: str) -> None:
    check_config(load_config(f"configs/models/{recipe}.yaml"))


def test_a_warmstarted_configuration_needs_no_model_yet() -> None:
    assert {c.status for c in preflight(load_config(SMOKE))} == {"ok"}


def test_every_run_is_refused_for_what_cannot_fit() -> None:
    with pytest.raises(ConfigError, match=r"host memory: .* of 0.5 GiB"):
        preflight(load_config(SMOKE, ["resources.host_memory_gib=0.5"]))


def test_the_command_prints_a_table_and_ends_with_2_on_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = model(tmp_path)
    arguments = ["preflight", SMOKE, "--no-engines", "policy.warmstart=null",
                 f"policy.model={directory}"]  # fmt: skip
    assert main([*arguments, "rollout.max_context=4000"]) == 2
    said = capsys.readouterr()
    assert "one segment" in said.out
    assert "→ lower rollout.max_context" in said.out
    assert "1 of 12 checks failed" in said.err
    assert "Traceback" not in said.err


def test_the_command_tells_a_wrong_model_and_a_wrong_recipe_at_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["preflight", SMOKE, "--no-engines", "policy.warmstart=null", "policy.model=nowhere",
                 "evolution.recipe=nonesuch"]  # fmt: skip
    assert main(arguments) == 2
    said = capsys.readouterr().out
    assert "there is no such recipe" in said
    assert "there is no config.json" in said


def test_ok_has_nothing_to_change() -> None:
    assert ok("disk", "plenty").change == ""
