"""`coevo export dataset`: what it writes is read by `datasets` and trained on by TRL as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from coevo.cli import main
from coevo.config import dump_config, load_config
from rollout.buffer import ReplayBuffer
from rollout.trajectory import Outcome, Segment, Trajectory

pytestmark = pytest.mark.slow  # imports TRL


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from trainer.warmstart import make_model, make_tokenizer
    from trainer.warmstart_config import ArchitectureConfig

    path = tmp_path_factory.mktemp("model")
    tokenizer = make_tokenizer(["go to shelf 1", "take apple 1 from shelf 1", "options:"], 400)
    shape = ArchitectureConfig(
        family="qwen3", hidden=32, layers=1, heads=2, kv_heads=1, intermediate=32, vocab=400
    )
    make_model(shape, tokenizer, 0).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def run(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rounds in which episodes met one context; some took the apple, which was right."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model)

    def segment(prompt: str, said: str) -> Segment:
        context = tokenizer.encode(f"<|user|>{prompt}<|end|><|assistant|>")
        sampled = tokenizer.encode(f"{said}<|end|>")
        mask = np.arange(len(context) + len(sampled)) >= len(context)
        return Segment(
            np.array(context + sampled, np.int32), mask, np.where(mask, -1, 0).astype("f4"),
            np.where(mask, 0, -1).astype("i4"), 1.0,
        )  # fmt: skip

    path = tmp_path_factory.mktemp("runs") / "it"
    path.mkdir()
    config = load_config(
        "configs/quickstart.yaml", ["name=it", "policy.warmstart=null", f"policy.model={model}"]
    )
    (path / "config.yaml").write_text(dump_config(config))
    buffer = ReplayBuffer(path, 1, 100)
    for number in range(2):
        rows = []
        for task in range(3):
            for won in (False, True):
                said = "take apple 1 from shelf 1" if won else "go to shelf 1"
                rows.append(
                    Trajectory(
                        f"{number}-{task}-{won}",
                        f"task-{task}",
                        number,
                        "incumbent",
                        "a" * 64,
                        number,
                        0,
                        Outcome("completed"),
                        float(won),
                        won,
                        1,
                        (segment(f"task {task}\noptions:", said),),
                    )
                )
        buffer.append(number, "incumbent", rows)
    return path


def exported(run: Path, out: Path, *arguments: str) -> Path:
    assert main(["export", "dataset", str(run), "-o", str(out), *arguments]) == 0
    return out


def test_sft_segments_train_in_trl_with_the_labels_they_carry(
    run: Path, model: Path, tmp_path: Path
) -> None:
    from datasets import load_from_disk
    from trl import SFTConfig, SFTTrainer

    data: Any = load_from_disk(exported(run, tmp_path / "sft"))
    assert len(data) == 6
    assert all("take apple 1" in text for text in data["text"])
    args = SFTConfig(
        str(tmp_path / "out"), max_steps=1, per_device_train_batch_size=6, use_cpu=True,
        report_to="none", save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = SFTTrainer(str(model), args=args, train_dataset=data)
    batch = next(iter(trainer.get_train_dataloader()))
    learnt = sorted(row[row != -100].tolist() for row in batch["labels"])
    assert learnt == sorted([i for i in labels if i != -100] for labels in data["labels"])
    assert trainer.train().training_loss > 0


def test_preference_pairs_train_in_trl_with_the_tokens_that_were_sampled(
    run: Path, model: Path, tmp_path: Path
) -> None:
    from datasets import load_dataset
    from transformers import AutoTokenizer
    from trl import DPOConfig, DPOTrainer

    out = exported(run, tmp_path / "pairs", "--kind", "preference", "--format", "parquet")
    data: Any = load_dataset(str(out), split="train", cache_dir=str(tmp_path / "cache"))
    assert sorted(data["task_id"]) == ["task-0", "task-1", "task-2"]
    args = DPOConfig(
        str(tmp_path / "out"), max_steps=1, per_device_train_batch_size=3, use_cpu=True,
        report_to="none", save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = DPOTrainer(
        str(model), args=args, train_dataset=data,
        processing_class=AutoTokenizer.from_pretrained(model),
    )  # fmt: skip
    prepared: Any = trainer.train_dataset
    for name in ("prompt_ids", "chosen_ids", "rejected_ids"):
        assert prepared[name] == data[name]
    assert trainer.train().training_loss > 0


def test_the_card_and_the_lineage_say_where_rows_are_from(run: Path, tmp_path: Path) -> None:
    out = exported(
        run, tmp_path / "lines", "--format", "jsonl", "--rounds", "1:", "--license", "mit"
    )
    _, head, body = (out / "README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(head)["license"] == "mit"
    assert f"- `{'a' * 64}`" in body
    lineage = json.loads((out / "lineage.json").read_text())
    assert (lineage["run"], lineage["rounds"], lineage["policy_versions"]) == ("it", [1], [1])
    rows = [json.loads(line) for line in (out / "data/train.jsonl").read_text().splitlines()]
    assert {row["round"] for row in rows} == {1}
    assert len(rows) == lineage["rows"] == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rounds", "7:9"], "its buffer has no rounds 7:9; rounds there: 0, 1"),
        (["--rounds", "x"], "expected A:B"),
        (["--roles", "heldout"], "held-out episodes are never exported"),
        (["--tokenizer", "/nowhere"], "there is no tokenizer.json"),
        (["--kind", "preference", "--roles", "candidate"], "no two episodes of a task"),
    ],
)
def test_bad_input_is_one_message_and_leaves_nothing(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    out = tmp_path / "out"
    assert main(["export", "dataset", str(run), "-o", str(out), *arguments]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_there_is_not_overwritten(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").write_text("x")
    assert main(["export", "dataset", str(run), "-o", str(tmp_path)]) == 2
    assert "is not an empty directory" in capsys.readouterr().err
