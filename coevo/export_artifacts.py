"""`coevo export harness | model | trace`: what a run made, for use without it."""

from __future__ import annotations

import argparse
import gzip
import io
import json
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

from rich.console import Console

from coevo.base_policy import checked_base
from coevo.cards import directory_name, facts, harness_card, model_card
from coevo.commands import base_model
from coevo.errors import InputError
from coevo.eval_pairs import AtRound, RunPairs
from coevo.eval_sources import Source, harness_bundle, harness_source, source
from harness.atomic import replacing, replacing_directory
from harness.bundle import dump
from rollout.buffer import ReplayBuffer, ReplayError
from rollout.policy.weights import WeightsError, check_names, checkpoint_files, read_index
from rollout.trajectory import Trajectory

SCHEMA = 1
TAR = (".tar", ".tar.gz", ".tgz")
WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", "made.json")
"""Files of M_0's directory that an exported model does not take over."""


# --- harness ---


def harness(arguments: argparse.Namespace) -> None:
    """`coevo export harness`. Raises InputError or RunError for what a user can mend."""
    found = harness_source(arguments.run)
    pairs, at = _of_run(found)
    output = _fresh(arguments.output)
    bundle = harness_bundle(found)
    card = harness_card(facts(pairs, at), bundle, arguments.license)
    tar = output.name.endswith(TAR)
    if not tar and output.suffix in (".gz", ".zip", ".bz2", ".xz", ".zst"):
        raise InputError(
            f"-o {output}: expected a directory, or a file that ends in {', '.join(TAR)}"
        )
    folder = output.with_name(f".{output.name}.unpacked") if tar else output
    with replacing_directory(folder) as beside:
        dump(bundle, beside / directory_name(bundle))
        (beside / "README.md").write_text(card, encoding="utf-8")
    if tar:
        try:
            _pack(folder, output, bundle.id)
        finally:
            shutil.rmtree(folder)
    print(f"harness {bundle.id[:12]} of {arguments.run} (round {at.round}): {output}")


def _pack(folder: Path, output: Path, harness_id: str) -> None:
    """A tar of the folder's content: the same content gives the same bytes."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = info.mtime = 0
        info.uname = info.gname = ""
        return info

    held = io.BytesIO()
    headers = {"comment": f"coevo harness {harness_id}"}
    with tarfile.open(
        fileobj=held, mode="w", format=tarfile.PAX_FORMAT, pax_headers=headers
    ) as tar:
        for path in sorted(folder.iterdir()):
            tar.add(path, path.name, filter=plain)
    data = held.getvalue()
    with replacing(output) as beside:
        packed = data if output.suffix == ".tar" else gzip.compress(data, mtime=0)
        beside.write_bytes(packed)


# --- model ---


def model(arguments: argparse.Namespace) -> None:
    """`coevo export model`. Raises InputError or RunError for what a user can mend."""
    pairs, at = _of_run(source(arguments.run, "config.json", "RUN"))
    output = _fresh(arguments.output)
    console = Console(highlight=False)
    config = pairs.dir.config()
    base = base_model(config, console)
    if base is None:
        raise InputError(
            f"{arguments.run}: its policy is a hosted model ({config.policy.api and config.policy.api.model}), "
            "whose weights are not here"
        )
    policy = pairs.policy(at.policy_version, checked_base(pairs.run.path, base))
    name = config.policy.model or "a small model that the run made (policy.warmstart)"
    card = model_card(facts(pairs, at), policy.fingerprint, name, arguments.license)
    with replacing_directory(output) as beside:
        shutil.copytree(base, beside, ignore=shutil.ignore_patterns(*WEIGHTS), dirs_exist_ok=True)
        if policy.weights is None:
            for file in [*checkpoint_files(base), *base.glob("*.safetensors.index.json")]:
                shutil.copyfile(file, beside / file.name)
        elif policy.weights.is_dir():
            _merge_adapter(base, policy.weights, beside)
        else:
            _check_whole(base, policy.weights)
            shutil.copyfile(policy.weights, beside / "model.safetensors")
        (beside / "README.md").write_text(card, encoding="utf-8")
    print(f"policy version {policy.version} of {arguments.run} (round {at.round}): {output}")


def _check_whole(base: Path, weights: Path) -> None:
    """Raises InputError where the weights are not those of the model in `base`."""
    try:
        expected = {k: v for file in checkpoint_files(base) for k, v in read_index(file).items()}
        check_names(expected, read_index(weights))
    except WeightsError as error:
        raise InputError(f"{weights} does not fit the model of {base}: {error}") from error


def _merge_adapter(base: Path, adapter: Path, out: Path) -> None:
    """The weights of `base` with the adapter added, as one file."""
    from peft import PeftModel
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    plain: Any = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
    merged: Any = PeftModel.from_pretrained(plain, adapter).merge_and_unload()
    names = {name for file in checkpoint_files(base) for name in read_index(file)}
    state = merged.state_dict()
    tensors = {name: state[name].detach().contiguous() for name in names}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})


# --- traces ---


def trace(arguments: argparse.Namespace) -> None:
    """`coevo export trace`. Raises InputError or RunError for what a user can mend."""
    text: str = arguments.run
    whole = Path(text).is_dir()
    pairs = RunPairs(Path(text if whole else text.rpartition("@")[0] or text))
    output = _fresh(arguments.output)
    if not output.name.endswith((".jsonl", ".jsonl.gz")):
        raise InputError(f"-o {output}: expected a file that ends in .jsonl or .jsonl.gz")
    rounds = None if whole else [pairs.at(text.rpartition("@")[2]).round]
    written = 0
    with replacing(output) as beside, _opened(beside, output) as file:
        for line in _traces(pairs, rounds):
            if arguments.task and arguments.task not in (line["task_id"] or ""):
                continue
            if arguments.solved and line["success"] is not (arguments.solved == "yes"):
                continue
            file.write(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n")
            written += 1
        if not written:
            raise InputError(
                f"{text}: there is no trace to export"
                + (f" of round {rounds[0]}" if rounds else "")
                + ("; drop --task or --solved" if arguments.task or arguments.solved else "")
                + "; rounds with traces: "
                + (", ".join(str(n) for n in sorted(_files(pairs.run.path))) or "none")
            )
    print(f"{written} traces of {text}: {output}")


def _opened(beside: Path, output: Path) -> IO[str]:
    if output.suffix == ".gz":
        return cast(IO[str], gzip.open(beside, "wt", encoding="utf-8"))
    return beside.open("w", encoding="utf-8")


def _files(run: Path) -> dict[int, list[Path]]:
    """Round -> its files of traces, one a part."""
    found: dict[int, list[Path]] = {}
    for file in sorted((run / "traces").glob("[0-9]*/*.jsonl.gz")):
        found.setdefault(int(file.parent.name), []).append(file)
    return found


def _traces(pairs: RunPairs, rounds: list[int] | None) -> Iterator[dict[str, Any]]:
    """Each trace with what the buffer says of its episode (None where it was not kept there)."""
    try:
        buffer = ReplayBuffer(pairs.run.path, 1, 1 << 62)
        for number, files in _files(pairs.run.path).items():
            if rounds is not None and number not in rounds:
                continue
            kept = buffer.trajectories(number) if number in buffer.rounds() else []
            known = {t.id: t for t in kept}
            for file in files:
                for item in _lines(file):
                    yield _line(pairs, number, file, item, known.get(item["id"]))
    except ReplayError as error:
        raise InputError(str(error)) from error


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    try:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"{file} is damaged: {error}") from error


def _line(
    pairs: RunPairs, number: int, file: Path, item: dict[str, Any], known: Trajectory | None
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "run": pairs.run.name,
        "round": number,
        "part": file.name.removesuffix(".jsonl.gz"),
        "id": item["id"],
        "task_id": known and known.task_id,
        "harness_id": known and known.harness_id,
        "policy_version": known and known.policy_version,
        "seed": known and known.seed,
        "role": known and known.role,
        "outcome": known and known.outcome.kind,
        "success": known and known.success,
        "reward": known and known.reward,
        "trace": item["trace"],
    }


# --- both ---


def _of_run(found: Source) -> tuple[RunPairs, AtRound]:
    run = found.in_run()
    if run is None:
        raise InputError(f"{found.text} is no run; give RUN or RUN@ROUND")
    return run


def _fresh(output: Path) -> Path:
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise InputError(f"{output} exists; choose another -o")
    return output
