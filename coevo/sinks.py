"""Copies of each round's scalars for experiment trackers: wandb, MLflow, trackio.

Each goes through its own package, which its own settings point at a server (WANDB_MODE,
MLFLOW_TRACKING_URI, TRACKIO_DIR …). `metrics.jsonl` stays the record: a tracker that cannot be
reached stops no run. What it did not take is sent with the next round, or when the run is resumed.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from coevo.comparable import flatten
from coevo.config import RunConfig, SinkName
from coevo.errors import InputError
from coevo.metrics import scalars
from coevo.records import RoundRecord
from harness.atomic import write_json

SCHEMA = 1
FILE = "sinks.json"
PARAMS = 100
"""MLflow takes that many parameters at once."""


class SinkError(RuntimeError):
    """A tracker did not take what was sent."""


class Sink(Protocol):
    """A run in a tracker. id: what opens the same one again. Both methods raise SinkError."""

    id: str

    def write(self, step: int, values: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


def check_sinks(config: RunConfig) -> None:
    """Raises InputError, with the command that installs it, for a sink whose package is missing."""
    missing = [name for name in config.sinks if find_spec(name) is None]
    if missing:
        raise InputError(
            f"sinks: the package {', '.join(missing)} is not installed: "
            f"pip install 'coevo[{','.join(missing)}]', or leave it out of `sinks`"
        )


class Sinks:
    """All trackers of one run. `note` tells a person of one that did not take a round."""

    def __init__(self, config: RunConfig, run: Path, note: Callable[[str], None]) -> None:
        self.file, self.config, self.note = run / FILE, config, note
        self._known: dict[str, dict[str, Any]] = {}
        if self.file.is_file():
            self._known = json.loads(self.file.read_text())["sinks"]
        self._open: dict[str, Sink] = {}

    def send(self, records: Sequence[RoundRecord]) -> None:
        """Bring every tracker up to `records`, all rounds that are committed."""
        for name in self.config.sinks:
            sent = self._known.get(name, {}).get("rounds", 0)
            try:
                for record in records[sent:]:
                    self._sink(name).write(record.round, dict(scalars(record)))
                    self._keep(name, record.round + 1)
            except SinkError as error:
                self.note(f"{name} has {self._sent(name)} of {len(records)} rounds: {error}")

    def close(self) -> None:
        for name, sink in self._open.items():
            try:
                sink.close()
            except SinkError as error:
                self.note(f"{name} was not closed: {error}")
        self._open.clear()

    def _sent(self, name: str) -> int:
        return int(self._known.get(name, {}).get("rounds", 0))

    def _sink(self, name: SinkName) -> Sink:
        if name not in self._open:
            self._open[name] = KINDS[name](self.config, self._known.get(name, {}).get("id"))
            self._keep(name, self._sent(name))
        return self._open[name]

    def _keep(self, name: str, rounds: int) -> None:
        self._known[name] = {"id": self._open[name].id, "rounds": rounds}
        write_json(self.file, {"schema": SCHEMA, "sinks": self._known})


class WandbSink:
    """One run of Weights & Biases, in the project `config.project`."""

    def __init__(self, config: RunConfig, id: str | None) -> None:
        import wandb

        self._errors = (wandb.errors.Error, OSError)
        self.id = id or uuid.uuid4().hex[:12]
        try:
            self._run = wandb.init(
                project=config.project,
                id=self.id,
                name=config.name,
                config=config.model_dump(mode="json"),
                dir=str(Path(config.runs_dir) / config.name),
                resume="allow",
                reinit="create_new",
            )
        except self._errors as error:
            raise SinkError(str(error)) from error

    def write(self, step: int, values: Mapping[str, float]) -> None:
        try:
            self._run.log(dict(values), step=step)
        except self._errors as error:
            raise SinkError(str(error)) from error

    def close(self) -> None:
        try:
            self._run.finish()
        except self._errors as error:
            raise SinkError(str(error)) from error


class MLflowSink:
    """One run of MLflow, in the experiment `config.project`; its parameters are the configuration."""

    def __init__(self, config: RunConfig, id: str | None) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param
        from mlflow.exceptions import MlflowException

        self._errors = (MlflowException, OSError)
        try:
            self._client = MlflowClient()
            if id is not None:
                self.id = id
                self._client.update_run(id, status="RUNNING")
                return
            found = self._client.get_experiment_by_name(config.project)
            experiment = (
                found.experiment_id if found else self._client.create_experiment(config.project)
            )
            run = self._client.create_run(experiment, run_name=config.name)
            self.id = str(run.info.run_id)
            params = [Param(k, str(v)) for k, v in flatten(config.model_dump(mode="json")).items()]
            for at in range(0, len(params), PARAMS):
                self._client.log_batch(self.id, params=params[at : at + PARAMS])
        except self._errors as error:
            raise SinkError(str(error)) from error

    def write(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(tag, value, now, step) for tag, value in values.items()]
        try:
            self._client.log_batch(self.id, metrics=metrics)
        except self._errors as error:
            raise SinkError(str(error)) from error

    def close(self) -> None:
        try:
            self._client.set_terminated(self.id)
        except self._errors as error:
            raise SinkError(str(error)) from error


class TrackioSink:
    """One run of trackio, in the project `config.project`; kept on this machine by default."""

    def __init__(self, config: RunConfig, id: str | None) -> None:
        import trackio

        # Its runs are told apart by name alone, and a name may be used again in another directory.
        self.id = id or f"{config.name}-{uuid.uuid4().hex[:6]}"
        try:
            self._run = trackio.init(
                project=config.project,
                name=self.id,
                config=config.model_dump(mode="json"),
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        except OSError as error:
            raise SinkError(str(error)) from error

    def write(self, step: int, values: Mapping[str, float]) -> None:
        try:
            self._run.log(dict(values), step=step)
        except OSError as error:
            raise SinkError(str(error)) from error

    def close(self) -> None:
        try:
            self._run.finish()
        except OSError as error:
            raise SinkError(str(error)) from error


KINDS: Mapping[SinkName, Callable[[RunConfig, str | None], Sink]] = {
    "wandb": WandbSink,
    "mlflow": MLflowSink,
    "trackio": TrackioSink,
}
