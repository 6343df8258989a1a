"""A run's directory: its files, its lock, its journal. State advances by journal entries only."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import yaml

from coevo.config import ConfigError, RunConfig, dump_config, parse_config
from harness.atomic import write_atomic, write_json

SCHEMA = 1
FIXED = ("name", "seed", "mode", "schedule", "environment", "harness", "policy.model",
         "policy.warmstart", "policy.api.base_url", "policy.api.model")  # fmt: skip
"""Keys (and what lies under them) that make a run this run."""
ELSEWHERE = {"cluster", "sinks", "project"}


BEGUN = ("owner.lock", "lock.json", ".lock.json.", ".config.yaml.")
"""What a run's directory may hold before its config.yaml: names, and starts of temporary ones."""


class RunDirError(RuntimeError):
    """A run directory that cannot be used: in use, another configuration, or not a run."""


class RunDir:
    """Layout and lock of one run. Use as a context manager: it holds the run while it lasts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    # --- opening ---

    @classmethod
    def create(
        cls, path: Path, config: RunConfig, versions: Mapping[str, str], accept: bool = False
    ) -> Self:
        """A new run directory, or the existing one of the same configuration.

        accept: go on with an existing run under another configuration, see `accept`. Raises
        RunDirError where a run of another configuration stands there.
        """
        run = cls(path)
        file = path / "config.yaml"
        if file.exists() and accept:
            run.accept(config)
        elif file.exists():
            run.check_same(config)
        else:
            # A process killed while it made the directory leaves these and no configuration.
            if path.exists() and any(not p.name.startswith(BEGUN) for p in path.iterdir()):
                raise RunDirError(
                    f"{path} is not empty and holds no run; choose another `name`, or remove it"
                )
            path.mkdir(parents=True, exist_ok=True)
            write_json(path / "lock.json", {"schema": SCHEMA, "versions": dict(versions)})
            write_atomic(file, dump_config(config).encode())
        return run

    @classmethod
    def open(cls, path: Path) -> Self:
        """An existing run. Raises RunDirError where there is none."""
        if not (path / "config.yaml").is_file():
            beside = path.parent
            names = sorted(p.parent.name for p in beside.glob("*/config.yaml"))
            raise RunDirError(
                f"{path}: there is no run here (no config.yaml); runs in {beside}: "
                f"{', '.join(names) or 'none'}"
            )
        return cls(path)

    def config(self) -> RunConfig:
        """The resolved configuration that the run was started with."""
        file = self.path / "config.yaml"
        return parse_config(yaml.safe_load(file.read_text(encoding="utf-8")), str(file))

    def changes(self, config: RunConfig) -> dict[str, tuple[Any, Any]]:
        """Key → (the run's value, that of `config`), where they differ.

        ELSEWHERE is left out: it says where a run is computed and shown, not what.
        """
        try:
            mine = _flat(self.config().model_dump(mode="json", exclude=ELSEWHERE))
        except ConfigError as error:
            raise RunDirError(f"{self.path}: its config.yaml no longer reads: {error}") from error
        other = _flat(config.model_dump(mode="json", exclude=ELSEWHERE))
        return {
            key: (mine.get(key), other.get(key))
            for key in sorted(mine.keys() | other.keys())
            if mine.get(key) != other.get(key)
        }

    def check_same(self, config: RunConfig) -> None:
        """Raises RunDirError naming every key that differs from the run's own configuration."""
        changed = self.changes(config)
        if changed:
            raise RunDirError(
                f"{self.path} holds a run of another configuration:\n{_listed(changed)}\n"
                "Choose another `name`, remove the directory, `coevo resume` it as it is, or go on "
                "under the new configuration with --accept-config"
            )

    def accept(self, config: RunConfig) -> None:
        """Make `config` the run's own from the next phase on; the change is recorded.

        Raises RunDirError for a change of what the rounds behind were: no one run would be left.
        """
        changed = self.changes(config)
        if not changed:
            return
        fixed = {key: pair for key, pair in changed.items() if key.startswith(FIXED)}
        if fixed:
            raise RunDirError(
                f"{self.path}: these cannot change within a run:\n{_listed(fixed)}\n"
                "Choose another `name`"
            )
        with self, (self.path / "config_changes.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"schema": SCHEMA, "changed": changed}) + "\n")
            file.flush()
            os.fsync(file.fileno())
            write_atomic(self.path / "config.yaml", dump_config(config).encode())

    def __enter__(self) -> Self:
        """Take the run. Raises RunDirError naming the holder where another process has it."""
        fd = os.open(self.path / "owner.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(fd, 500, 0).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            raise RunDirError(
                f"{self.path} is in use by {holder}; wait for it, stop it, or choose another `name`"
            ) from error
        started = time.strftime("%Y-%m-%d %H:%M:%S")
        os.ftruncate(fd, 0)
        os.pwrite(
            fd, f"process {os.getpid()} on {socket.gethostname()} since {started}".encode(), 0
        )
        self._lock = fd
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # --- layout ---

    @property
    def finished(self) -> bool:
        """Its summary, written last, is there."""
        return (self.path / "summary.json").is_file()

    @property
    def store(self) -> Path:
        return self.path / "harness"

    @property
    def bundles(self) -> Path:
        """One directory a harness id."""
        return self.store / "objects"

    @property
    def buffer(self) -> Path:
        return self.path / "rounds"

    def round(self, number: int) -> Path:
        return self.path / "rounds" / f"{number:04d}"

    def traces(self, number: int, part: str) -> Path:
        return self.path / "traces" / f"{number:04d}" / f"{part}.jsonl.gz"

    def evolution(self, number: int) -> Path:
        return self.path / "evolution" / f"{number:04d}"

    def weights(self, version: int) -> Path:
        return self.path / "policy" / f"{version:04d}" / "model.safetensors"

    def checkpoint(self, version: int) -> Path:
        return self.path / "trainer" / f"{version:04d}"

    def evaluation(self, number: int, split: str = "heldout") -> Path:
        return self.path / split / f"{number:04d}.json"


def _listed(changed: Mapping[str, tuple[Any, Any]]) -> str:
    lines = [f"- {key}: {a!r} there, {b!r} asked for" for key, (a, b) in changed.items()]
    more = f"\n- and {len(lines) - 12} more" if len(lines) > 12 else ""
    return "\n".join(lines[:12]) + more


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(value, dict) and value:
        out: dict[str, Any] = {}
        for key, item in value.items():
            out |= _flat(item, f"{prefix}.{key}" if prefix else str(key))
        return out
    return {prefix: value}
