"""Checkpoints: DeepSpeed's shards in a directory that counts only with its manifest, written last.

The ranks write their shards beside (`save_shards`); one process then seals the directory (`seal`):
it hashes every file, writes MANIFEST.json, flushes to disk and renames. `verify` names the first
file that differs from what was sealed. Resuming is exact: the next losses are bit-equal.
"""

from __future__ import annotations

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.atomic import put_directory, sha256, write_json
from trainer.errors import CheckpointError

if TYPE_CHECKING:
    from trainer.config import TrainerConfig

MANIFEST = "MANIFEST.json"
SCHEMA = 1
TAG = "state"
_STATE_KEY = "coevo"


def staging(directory: Path) -> Path:
    """Where the shards of `directory` are written before it is sealed; emptied of an earlier try."""
    beside = directory.with_name(directory.name + ".tmp")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    return beside


def layout_of(config: TrainerConfig) -> dict[str, Any]:
    """How the shards are laid out. All but world_size must be equal between the run that saved and
    the one that loads."""
    lora = config.lora
    return {
        "world_size": config.world_size,
        "zero_stage": config.zero_stage,
        "dtype": config.dtype,
        "lora": None if lora is None else lora.model_dump(mode="json", exclude={"publish"}),
    }


def seal(beside: Path, directory: Path, layout: dict[str, Any], step: int) -> None:
    """Turn the staged shards into the checkpoint `directory`; replaces an older one there."""
    files = {}
    for path in sorted(p for p in beside.rglob("*") if p.is_file()):
        files[path.relative_to(beside).as_posix()] = {
            "sha256": sha256(path),
            "bytes": path.stat().st_size,
        }
    write_json(
        beside / MANIFEST, {"schema": SCHEMA, "layout": layout, "step": step, "files": files}
    )
    put_directory(beside, directory)


def verify(directory: Path, layout: dict[str, Any] | None = None) -> dict[str, Any]:
    """The manifest of a checkpoint whose files are all as they were sealed.

    Raises CheckpointError naming the file that is missing, added or damaged, or the setting of
    `layout` that differs. world_size may differ: `trainer.universal` converts.
    """
    manifest_path = directory / MANIFEST
    if not manifest_path.is_file():
        raise CheckpointError(
            f"{directory} is not a whole checkpoint: {MANIFEST} is missing, so it was never sealed; "
            "resume from an earlier one"
        )
    try:
        manifest: dict[str, Any] = json.loads(manifest_path.read_text())
        files: dict[str, dict[str, Any]] = manifest["files"]
        saved: dict[str, Any] = manifest["layout"]
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise CheckpointError(f"{manifest_path} is damaged: {error}") from error
    if manifest.get("schema") != SCHEMA:
        raise CheckpointError(
            f"{manifest_path} has schema {manifest.get('schema')}, this version reads {SCHEMA}"
        )
    if layout is not None:
        for key, value in layout.items():
            if key != "world_size" and saved.get(key) != value:
                raise CheckpointError(
                    f"{directory} was saved with {key} {saved.get(key)} and is loaded with {value}; "
                    "use the same value, or start a new run from exported weights (a new optimiser)"
                )
    present = {
        p.relative_to(directory).as_posix()
        for p in directory.rglob("*")
        if p.is_file() and p != manifest_path
    }
    for name in sorted(present - files.keys()):
        raise CheckpointError(f"{directory / name} is not in the manifest; remove it")
    for name, entry in sorted(files.items()):
        path = directory / name
        if not path.is_file():
            raise CheckpointError(f"{path} is missing from the checkpoint")
        size = path.stat().st_size
        if size != entry["bytes"]:
            raise CheckpointError(f"{path} has {size} bytes, {entry['bytes']} were written")
    # Hashing releases the interpreter's lock: shards are read side by side.
    with ThreadPoolExecutor(max(1, min(len(files), os.cpu_count() or 1))) as pool:
        names = sorted(files)
        for name, found in zip(
            names, pool.map(lambda name: sha256(directory / name), names), strict=True
        ):
            if found != files[name]["sha256"]:
                raise CheckpointError(
                    f"{directory / name} is damaged: its sha256 differs from the manifest's; resume "
                    "from another checkpoint"
                )
    return manifest


def save_shards(engine: Any, directory: Path, step: int, extra: dict[str, Any]) -> None:
    """A rank's part of a checkpoint below `directory`; a collective over all ranks."""
    import torch

    state: dict[str, Any] = {"step": step, "rng": torch.get_rng_state(), "extra": extra}
    if torch.cuda.is_available():
        state["cuda_rng"] = torch.cuda.get_rng_state()
    engine.save_checkpoint(
        str(directory),
        tag=TAG,
        client_state={_STATE_KEY: state},
        save_latest=False,
        # Under LoRA the frozen base is the model's, not the checkpoint's.
        exclude_frozen_parameters=True,
    )


def load_shards(
    engine: Any, directory: Path, universal: bool = False
) -> tuple[int, dict[str, Any]]:
    """Restore a rank from a verified checkpoint: (optimiser step, extra). A collective.

    universal: the directory was made by `trainer.universal.to_universal`.
    """
    import torch

    from trainer.compat import universal_loading

    frozen = any(not p.requires_grad for p in engine.module.parameters())
    with universal_loading(engine) if universal else nullcontext():
        path, client = engine.load_checkpoint(
            str(directory), tag=TAG, load_module_strict=not frozen
        )
    if path is None or _STATE_KEY not in client:
        raise CheckpointError(f"DeepSpeed found no checkpoint state in {directory / TAG}")
    state = client[_STATE_KEY]
    torch.set_rng_state(state["rng"].cpu())
    if "cuda_rng" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda_rng"].cpu())
    return int(state["step"]), dict(state["extra"])
