"""A run's files are compared with their checksums, and the run goes back to what is whole."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.kill_test import timeless
from benchmarks.round_pipelining import TimedStack, play
from coevo import cli
from coevo.config import ConfigError, RunConfig, load_config
from coevo.events import events
from coevo.integrity import Repair, check, repair, seal, write_summed
from coevo.live import LiveTable
from coevo.loop import Loop
from coevo.rundir import RunDir
from harness.atomic import write_atomic, write_json
from harness.bundle import load
from harness.evolve.journal import Journal
from harness.store import Store
from rollout.buffer import ReplayBuffer
from trainer.checkpoint import MANIFEST, staging
from trainer.checkpoint import seal as seal_checkpoint

ROOT = Path(__file__).resolve().parents[3]
SMOKE = ROOT / "configs" / "smoke.yaml"


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return load_config(SMOKE, [f"runs_dir={tmp_path}", "rounds=3"])


@pytest.fixture
def run(tmp_path: Path, config: RunConfig) -> RunDir:
    """Three rounds as a run leaves them, but for buffer and weights."""
    run = RunDir.create(tmp_path / "smoke", config, {})
    Store(run.store).put(load(config.harness.bundle))
    journal = Journal(run.path / "journal.jsonl")

    def phase(key: str, *files: Path, **result: Any) -> None:
        async def compute() -> dict[str, Any]:
            return {**result, "files": seal(run, files)}

        asyncio.run(journal.once(key, None, compute))

    for n in range(3):
        write_json(run.evaluation(n), {"round": n, "episodes": list(range(50))})
        phase(f"{n}/measure", run.evaluation(n))
        write_atomic(run.traces(n, "incumbent"), bytes(range(200)))
        phase(f"{n}/rollout", run.traces(n, "incumbent"))
        beside = staging(run.checkpoint(n + 1))
        (beside / "shard.pt").write_bytes(b"moments" * n)
        seal_checkpoint(beside, run.checkpoint(n + 1), {}, step=n)
        phase(f"{n}/train", run.checkpoint(n + 1) / MANIFEST, version=n + 1)
        verdicts = run.evolution(n) / "verdicts.json"
        write_json(verdicts, {"round": n})
        phase(f"{n}/evolve", verdicts)
    write_summed(run.path / "state.json", {"round": 3})
    write_json(run.path / "summary.json", {})
    return run


def keys(run: RunDir) -> list[str]:
    return [key for key, _ in Journal(run.path / "journal.jsonl").results()]


def mend(run: RunDir, config: RunConfig) -> tuple[Repair | None, str]:
    said: list[str] = []
    return repair(run, config, said.append), "\n".join(said)


def change(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-2] + b"\0\0")


def test_a_run_as_it_was_written_is_left_alone(run: RunDir, config: RunConfig) -> None:
    before = sorted(p for p in run.path.rglob("*"))
    assert mend(run, config) == (None, "")
    assert sorted(p for p in run.path.rglob("*")) == before


def test_later_phases_fall_with_a_damaged_file_and_all_is_kept_aside(
    run: RunDir, config: RunConfig
) -> None:
    change(run.evaluation(2))
    found, said = mend(run, config)
    assert found is not None
    assert f"damaged: {run.evaluation(2)}" in said
    assert "the run goes on after 1/evolve; done again: 2/measure, 2/rollout" in said
    assert keys(run)[-1] == "1/evolve"
    for gone in (
        "heldout/0002.json",
        "traces/0002/incumbent.jsonl.gz",
        "trainer/0003",
        "summary.json",
    ):
        assert not (run.path / gone).exists()
        assert (found.aside / gone).exists()
    assert run.evaluation(1).exists()
    [event] = events(run.path)
    assert (event.kind, event.fields["file"], event.fields["used"]) == (
        "damaged", "heldout/0002.json", "1/evolve",
    )  # fmt: skip
    assert (found.aside / "journal.jsonl").read_text().count("\n") == 12
    assert mend(run, config) == (None, "")


def test_evolution_stays_where_only_the_training_beside_it_falls(
    run: RunDir, config: RunConfig
) -> None:
    change(run.checkpoint(3) / "shard.pt")
    found, _ = mend(run, config)
    assert found is not None
    assert found.dropped == ("2/train",)
    assert (run.evolution(2) / "verdicts.json").exists()
    assert not run.checkpoint(3).exists()


def test_the_run_goes_back_as_far_as_there_is_a_whole_trainer_state(
    run: RunDir, config: RunConfig
) -> None:
    change(run.checkpoint(2) / "shard.pt")
    assert mend(run, config) == (None, "")  # nothing reads it any more
    assert [d.key for d in check(run, None).damages] == ["1/train"]
    change(run.checkpoint(3) / MANIFEST)
    found, _ = mend(run, config)
    assert found is not None
    assert [d.key for d in found.damages] == ["2/train", "1/train"]
    assert keys(run)[-1] == "1/evolve"
    assert keys(run).count("1/train") == 0


def test_a_changed_journal_line_and_a_tail_of_zeros_cut_the_journal(
    run: RunDir, config: RunConfig
) -> None:
    journal = run.path / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    lines[9] = lines[9].replace(b'"2/rollout"', b'"3/rollout"')
    journal.write_bytes(b"".join(lines))
    found, said = mend(run, config)
    assert "line 10: not a journal entry (its checksum differs" in said
    assert found is not None
    assert keys(run)[-1] == found.last == "2/measure"
    assert not run.traces(2, "incumbent").exists()

    kept = b"".join(lines[:6])
    journal.write_bytes(kept + bytes(4000))
    found, said = mend(run, config)
    assert "ends in zeros after line 6" in said
    assert journal.read_bytes() == kept


def test_a_torn_last_line_is_no_damage(run: RunDir, config: RunConfig) -> None:
    journal = run.path / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-20])
    assert mend(run, config) == (None, "")
    assert keys(run)[-1] == "2/train"


def test_a_damaged_state_file_or_harness_alone_undoes_no_phase(
    run: RunDir, config: RunConfig
) -> None:
    change(run.path / "state.json")
    [object] = run.bundles.iterdir()
    object.chmod(0o755)
    (object / "harness.yaml").chmod(0o644)
    change(object / "harness.yaml")
    found, _ = mend(run, config)
    assert found is not None
    assert found.dropped == ()
    assert not object.exists()
    assert Store(run.store).add(load(config.harness.bundle)) == object.name


def test_paid_answers_of_language_models_stay_but_for_the_damaged_ones(
    run: RunDir, config: RunConfig
) -> None:
    file = run.path / "evolution" / "llm.jsonl"
    journal = Journal(file)
    for n in range(3):
        asyncio.run(journal.once(f"call {n}", None, lambda: asyncio.sleep(0, "answer")))
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join((lines[0], lines[1].replace(b"answer", b"ANSWER"), lines[2])))
    found, said = mend(run, config)
    assert "llm.jsonl line 2" in said
    assert found is not None
    assert found.dropped == ()
    assert file.read_bytes() == lines[0] + lines[2]
    assert (run.evolution(2) / "verdicts.json").exists()


def test_status_verify_names_what_is_damaged(
    run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["status", str(run.path), "--verify"]) == 0
    assert "verified: 12 phases, 12 files" in capsys.readouterr().out
    change(run.traces(0, "incumbent"))
    assert cli.main(["status", str(run.path), "--verify"]) == 2
    shown = capsys.readouterr()
    assert str(run.traces(0, "incumbent")) in shown.out
    assert "1 files" in shown.err


def test_weights_are_kept_at_least_as_long_as_trainer_states() -> None:
    with pytest.raises(ConfigError, match=r"storage\.policy_weights is 2 but .* 3"):
        load_config(SMOKE, ["storage={trainer_checkpoints: 3, policy_weights: 2}"])


KINDS = (
    "trainer/*/weights",
    "rounds/*/incumbent/MANIFEST.json",
    "rounds/*/incumbent/segments.safetensors",
    "rounds/*/incumbent/trainer_logprobs.safetensors",
    "rounds/*/select-*/trajectories.parquet",
    "traces/0001/incumbent.jsonl.gz",
    "evolution/*/journal.jsonl",
    "heldout/0001.json",
    "journal.jsonl",
    "state.json",
    "harness/objects/*/harness.yaml",
)


@pytest.mark.parametrize("schedule", ["synchronous", "pipelined"])
def test_a_run_with_one_bit_flipped_in_any_kind_of_file_ends_in_the_same_state(
    tmp_path: Path, schedule: str
) -> None:
    config = load_config(SMOKE, [f"runs_dir={tmp_path}", "name=it", f"schedule={schedule}"])
    play(config, TimedStack(config))
    whole = tmp_path / "it"
    for number, pattern in enumerate(KINDS):
        run = RunDir(tmp_path / str(number))
        shutil.copytree(whole, run.path)
        file = max(run.path.glob(pattern))
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.chmod(0o644)
        file.write_bytes(data)
        found, _ = mend(run, config)
        assert found is not None, pattern
        with run, LiveTable(console=Console(file=io.StringIO()), live=False) as live:
            asyncio.run(Loop(run, config, TimedStack(config), live).go())  # type: ignore[arg-type]
        assert outcome(run.path) == outcome(whole), pattern
        assert check(run, None).damages == ()
        shutil.rmtree(run.path)


def outcome(run: Path) -> dict[str, Any]:
    """What the run measured and made, without times."""
    files = [
        *run.glob("heldout/*"), *run.glob("policy/*/*"), *run.glob("trainer/*/weights"),
        run / "state.json",
    ]  # fmt: skip
    buffer = ReplayBuffer(run, 1, 1 << 62)
    return {
        "files": {p.relative_to(run).as_posix(): p.read_text() for p in files},
        "metrics": timeless([json.loads(x) for x in (run / "metrics.jsonl").open()]),
        "trajectories": [
            [t.id for t in buffer.trajectories(r, p)]
            for r in buffer.rounds()
            for p in sorted(buffer.parts(r))
        ],
    }
