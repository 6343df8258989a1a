"""Published weights: one file, its marker, its fingerprint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from rollout.policy.weights import fingerprint_file
from trainer.compat import load_model
from trainer.config import TrainerConfig
from trainer.errors import PublishError
from trainer.publish import export_hf, marker_of, publish, read_marker

WEIGHTS = {"b": torch.arange(6.0).reshape(2, 3), "a": torch.ones(2, dtype=torch.bfloat16)}


def test_the_fingerprint_is_what_a_reader_of_the_file_computes(tmp_path: Path) -> None:
    path = tmp_path / "policy" / "model.safetensors"
    found = publish(WEIGHTS.items(), path)
    assert found == fingerprint_file(path) == read_marker(path)["fingerprint"]
    assert sorted(p.name for p in path.parent.iterdir()) == [
        "model.safetensors",
        "model.safetensors.json",
    ]


def test_the_fingerprint_does_not_depend_on_the_order_of_tensors(tmp_path: Path) -> None:
    first = publish(WEIGHTS.items(), tmp_path / "1")
    second = publish(reversed(WEIGHTS.items()), tmp_path / "2")
    assert first == second


@pytest.mark.parametrize(
    "other",
    [
        {**WEIGHTS, "a": torch.tensor([1.0, 1.0078125], dtype=torch.bfloat16)},
        {**WEIGHTS, "a": torch.ones(2, dtype=torch.float16)},
        {**WEIGHTS, "b": torch.arange(6.0).reshape(3, 2)},
        {"b": WEIGHTS["b"], "c": WEIGHTS["a"]},
        {"b": WEIGHTS["b"]},
    ],
    ids=["last bit", "dtype", "shape", "name", "missing"],
)
def test_the_fingerprint_sees_any_difference(
    tmp_path: Path, other: dict[str, torch.Tensor]
) -> None:
    assert publish(WEIGHTS.items(), tmp_path / "1") != publish(other.items(), tmp_path / "2")


def test_weights_that_are_not_finite_are_not_published(tmp_path: Path) -> None:
    with pytest.raises(PublishError, match="parameter w "):
        publish([("w", torch.tensor([1.0, float("nan")]))], tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_a_publication_without_its_marker_did_not_finish(tmp_path: Path) -> None:
    path = tmp_path / "x"
    publish(WEIGHTS.items(), path)
    marker_of(path).unlink()
    with pytest.raises(PublishError, match="did not finish"):
        read_marker(path)


def test_a_rank_that_does_not_write_runs_through_its_iterator(tmp_path: Path) -> None:
    seen = []

    def weights() -> object:
        for name, tensor in WEIGHTS.items():
            seen.append(name)
            yield name, tensor

    assert publish(weights(), tmp_path / "x", write=False) == ""  # type: ignore[arg-type]
    assert seen == ["b", "a"]
    assert list(tmp_path.iterdir()) == []


def test_an_exported_model_loads_with_its_tied_head(tiny_model: Path, tmp_path: Path) -> None:
    config = TrainerConfig()
    model = load_model(str(tiny_model), config)
    with torch.no_grad():
        model.model.embed_tokens.weight.add_(0.01)
    source = tmp_path / "source"
    source.mkdir()
    (source / "tokenizer.json").write_text("{}")
    (source / "unrelated.bin").write_text("")
    save_file({"x": torch.ones(1)}, str(source / "old.safetensors"))
    target = tmp_path / "out"
    export_hf(model, ((n, p.detach()) for n, p in model.named_parameters()), target, source)
    names = {p.name for p in target.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert not names & {"unrelated.bin", "old.safetensors"}
    with safe_open(target / "model.safetensors", "pt") as f:
        assert "lm_head.weight" not in f.keys()  # noqa: SIM118
    ids = torch.tensor([[3, 4, 5]])
    again = load_model(str(target), config)
    assert torch.equal(again(ids).logits, model(ids).logits)
