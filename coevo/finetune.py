"""`coevo warmstart --from-run`: a model taught on the successful segments of a run's buffer."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from coevo.errors import InputError
from coevo.export_commands import own_model
from coevo.runs import load_run
from harness.atomic import replacing_directory, write_json
from rollout.buffer import ReplayBuffer, ReplayError
from rollout.export import ExportError, export
from trainer.warmstart_config import FinetuneConfig


def finetune_from_run(
    run: Path, model: Path, out: Path, config: FinetuneConfig, console: Console
) -> None:
    """Write the taught model to `out`, whole or not at all, with what was measured in
    finetune.json. Raises InputError for what a user can mend."""
    found = load_run(run)
    if out.exists():
        raise InputError(f"{out} exists; choose another --output")
    if not (model / "tokenizer.json").is_file():
        raise InputError(f"{model} has no tokenizer.json, which the taught model needs")
    own = own_model(found)
    if own is None:
        console.print(
            f"the model of {run} is not on this machine: that its tokenizer is the one of {model} "
            "cannot be checked"
        )
    elif (own / "tokenizer.json").read_bytes() != (model / "tokenizer.json").read_bytes():
        raise InputError(
            f"{model} has another tokenizer than the model of {run} ({own}), so that the run's token "
            "ids mean other text; name the configuration of that run"
        )
    try:
        rows = export(ReplayBuffer(run, 1, 1 << 62), "sft").rows
    except (ExportError, ReplayError) as error:
        raise InputError(f"{run}: {error}") from error
    ids, labels = (rows.column(name).to_pylist() for name in ("input_ids", "labels"))
    from trainer.finetune import finetune

    try:
        with (
            replacing_directory(out) as beside,
            Progress(console=console, disable=not console.is_terminal) as progress,
        ):
            bar = progress.add_task("teaching", total=None)
            measured = finetune(
                config, model, ids, labels, beside,
                lambda done, of: progress.update(bar, completed=done, total=of),
            )  # fmt: skip
            write_json(beside / "finetune.json", {"schema": 1, "run": str(run), **measured})
    except ValueError as error:
        raise InputError(str(error)) from error
    console.print(
        f"taught on {len(ids)} segments of successful episodes, loss {measured['loss']:.3f}: {out}\n"
        f"use it with policy.model={out}"
    )
