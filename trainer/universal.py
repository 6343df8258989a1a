"""A checkpoint of another number of ranks: DeepSpeed's universal format, made when it is loaded."""

from __future__ import annotations

import argparse
import contextlib
import io
from pathlib import Path

from trainer.checkpoint import TAG
from trainer.errors import CheckpointError


def to_universal(source: Path, target: Path) -> None:
    """Convert the shards of a checkpoint into a universal one below `target` (a new directory).

    Every fp32 weight and AdamW moment becomes a file of its own, which any number of ranks reads.
    Runs in this process, on the CPU. Raises CheckpointError where DeepSpeed cannot convert.
    """
    from deepspeed.checkpoint import ds_to_universal

    arguments = argparse.Namespace(
        input_folder=str(source / TAG),
        output_folder=str(target / TAG),
        num_extract_workers=1,
        num_merge_workers=1,
        keep_temp_folder=False,
        strict=True,
        inject_missing_state=True,
    )
    (target / TAG).mkdir(parents=True)
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            ds_to_universal.main(arguments)
    except (OSError, RuntimeError, AssertionError, KeyError, ValueError) as error:
        raise CheckpointError(
            f"{source} could not be converted for another number of ranks ({error!r}); resume it "
            "with the trainer.world_size that it was saved with"
        ) from error
