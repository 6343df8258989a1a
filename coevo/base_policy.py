"""The fingerprint of M_0, kept in the run: another model under the same settings is another run."""

from __future__ import annotations

import json
from pathlib import Path

from coevo.errors import InputError
from coevo.rundir import RunDir
from harness.atomic import write_json
from rollout.policy.weights import WeightsError, checkpoint_files, fingerprint_files

SCHEMA = 1


class BasePolicyError(InputError):
    """The model that a run is to go on with is not the one that it began with."""


def model_fingerprint(model: Path) -> str:
    """Of a model directory's weights. Raises BasePolicyError where it has none that can be read."""
    try:
        return fingerprint_files(checkpoint_files(model))
    except WeightsError as error:
        raise BasePolicyError(f"model {model}: {error}") from error


def base_file(run: Path) -> Path:
    return run / "base_policy.json"


def recorded_base(run: Path) -> str | None:
    """Fingerprint of the run's M_0; None where the run keeps none (a hosted model).

    Raises BasePolicyError for a file that does not hold one.
    """
    file = base_file(run)
    try:
        return str(json.loads(file.read_text())["fingerprint"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BasePolicyError(f"{file} holds no fingerprint ({error!r}); it is damaged") from error


def check_base(run: Path, fingerprint: str, model: Path) -> None:
    """Raises BasePolicyError where the run began with other weights than those of `model`."""
    known = recorded_base(run)
    if known is not None and known != fingerprint:
        raise BasePolicyError(
            f"{run} began with a model of fingerprint {known[:12]}, but {model} has "
            f"{fingerprint[:12]}: other weights, or made by another version of coevo. Give the model "
            "that it began with as policy.model, or begin a new run"
        )


def checked_base(run: Path, model: Path) -> str:
    """Fingerprint of `model`, which is the run's M_0. Raises BasePolicyError as `check_base`."""
    found = model_fingerprint(model)
    check_base(run, found, model)
    return found


def keep_base(run: RunDir, fingerprint: str, model: Path) -> None:
    """Keep the fingerprint of M_0 with a run that begins. Raises BasePolicyError as `check_base`.

    A run that began without one gets none: which model it began with is not known any more."""
    check_base(run.path, fingerprint, model)
    if not base_file(run.path).exists() and not (run.path / "journal.jsonl").exists():
        record = {"schema": SCHEMA, "fingerprint": fingerprint, "model": str(model)}
        write_json(base_file(run.path), record)
