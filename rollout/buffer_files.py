"""How a part of the replay buffer lies on disk: records in Parquet, tokens in safetensors.

    rounds/0003/incumbent/  trajectories.parquet  segments.safetensors  MANIFEST.json
                            trainer_logprobs.safetensors  TRAINER_LOGPROBS.json   (later)

A part is written beside its place and renamed there whole; MANIFEST.json, with the sha256 of each
file, is its last file. Parts are never changed, but for the trainer's log-probs, added once.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from rollout.trajectory import Cost, Outcome, Segment, Trajectory

SCHEMA = 1
RECORDS, TOKENS, MANIFEST = "trajectories.parquet", "segments.safetensors", "MANIFEST.json"
TRAINER, TRAINER_MARKER = "trainer_logprobs.safetensors", "TRAINER_LOGPROBS.json"

COLUMNS = pa.schema(
    [
        ("id", pa.string()),
        ("task_id", pa.string()),
        ("round", pa.int32()),
        ("role", pa.string()),
        ("harness_id", pa.string()),
        ("policy_version", pa.int32()),
        ("seed", pa.int64()),
        ("outcome", pa.string()),
        ("reason", pa.string()),
        ("reward", pa.float64()),
        ("success", pa.bool_()),
        ("steps", pa.int32()),
        ("prompt_tokens", pa.int64()),
        ("sampled_tokens", pa.int64()),
        ("model_calls", pa.int32()),
        ("wall_s", pa.float64()),
        ("detail", pa.string()),
        ("features", pa.string()),
        ("sandbox", pa.string()),
        ("trace_ref", pa.string()),
        ("segments", pa.int32()),
        ("tokens", pa.int64()),
    ]
)


class ReplayError(RuntimeError):
    """The replay buffer cannot do what is asked."""


class CorruptPartError(ReplayError):
    """A file of the buffer is missing, cut short or changed since it was written."""


@dataclass(frozen=True, slots=True)
class TokenArrays:
    """Segments laid end to end: n tokens in s segments.

    token_ids: int32 [n]. loss_mask: bool [n]. logprobs: float32 [n]. versions: int32 [n].
    offsets: int64 [s+1]. trajectory: int64 [s], row of the segment's trajectory. temperatures:
    float64 [s].
    """

    token_ids: np.ndarray
    loss_mask: np.ndarray
    logprobs: np.ndarray
    versions: np.ndarray
    offsets: np.ndarray
    trajectory: np.ndarray
    temperatures: np.ndarray


TOKEN_DTYPES: Mapping[str, type] = {
    "token_ids": np.int32,
    "loss_mask": np.bool_,
    "logprobs": np.float32,
    "versions": np.int32,
    "offsets": np.int64,
    "trajectory": np.int64,
    "temperatures": np.float64,
}


def flatten(trajectories: Sequence[Trajectory]) -> TokenArrays:
    """The trajectories' segments, in order."""
    segments = [(row, s) for row, t in enumerate(trajectories) for s in t.segments]

    def joined(name: str) -> np.ndarray:
        dtype = TOKEN_DTYPES[name]
        arrays: list[np.ndarray] = [np.asarray(getattr(s, name), dtype=dtype) for _, s in segments]
        return np.concatenate(arrays) if arrays else np.zeros(0, dtype=dtype)

    return TokenArrays(
        token_ids=joined("token_ids"),
        loss_mask=joined("loss_mask"),
        logprobs=joined("logprobs"),
        versions=joined("versions"),
        offsets=np.cumsum([0, *(len(s) for _, s in segments)], dtype=np.int64),
        trajectory=np.array([row for row, _ in segments], dtype=np.int64),
        temperatures=np.array([s.temperature for _, s in segments], dtype=np.float64),
    )


def to_table(trajectories: Sequence[Trajectory]) -> pa.Table:
    """One row a trajectory; what is open-ended goes as JSON."""
    rows = [
        {
            "id": t.id,
            "task_id": t.task_id,
            "round": t.round,
            "role": t.role,
            "harness_id": t.harness_id,
            "policy_version": t.policy_version,
            "seed": t.seed,
            "outcome": t.outcome.kind,
            "reason": t.outcome.reason,
            "reward": float(t.reward),
            "success": bool(t.success),
            "steps": t.steps,
            "prompt_tokens": t.cost.prompt_tokens,
            "sampled_tokens": t.cost.sampled_tokens,
            "model_calls": t.cost.model_calls,
            "wall_s": t.cost.wall_s,
            "detail": json.dumps(dict(t.detail), sort_keys=True),
            "features": json.dumps(dict(t.features), sort_keys=True),
            "sandbox": t.sandbox,
            "trace_ref": t.trace_ref,
            "segments": len(t.segments),
            "tokens": sum(map(len, t.segments)),
        }
        for t in trajectories
    ]
    return pa.Table.from_pylist(rows, schema=COLUMNS)


def to_trajectories(table: pa.Table, tokens: TokenArrays | None) -> list[Trajectory]:
    """The records of a part; without `tokens` their segments are left empty."""
    segments: dict[int, list[Segment]] = {}
    if tokens is not None:
        for number, row in enumerate(tokens.trajectory.tolist()):
            cut = slice(int(tokens.offsets[number]), int(tokens.offsets[number + 1]))
            segments.setdefault(row, []).append(
                Segment(
                    tokens.token_ids[cut],
                    tokens.loss_mask[cut],
                    tokens.logprobs[cut],
                    tokens.versions[cut],
                    float(tokens.temperatures[number]),
                )
            )
    return [
        Trajectory(
            id=row["id"],
            task_id=row["task_id"],
            round=row["round"],
            role=row["role"],
            harness_id=row["harness_id"],
            policy_version=row["policy_version"],
            seed=row["seed"],
            outcome=Outcome(row["outcome"], row["reason"]),
            reward=row["reward"],
            success=row["success"],
            steps=row["steps"],
            segments=tuple(segments.get(number, ())),
            cost=Cost(
                row["prompt_tokens"], row["sampled_tokens"], row["model_calls"], row["wall_s"]
            ),
            detail=json.loads(row["detail"]),
            features=json.loads(row["features"]),
            sandbox=row["sandbox"],
            trace_ref=row["trace_ref"],
        )
        for number, row in enumerate(table.to_pylist())
    ]


class Part:
    """One appended part. Opening it reads and checks the records; tokens are read when asked for."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.name = directory.name
        self.manifest = read_json(directory / MANIFEST)
        if self.manifest.get("schema") != SCHEMA:
            raise ReplayError(
                f"{directory / MANIFEST} has schema {self.manifest.get('schema')}, this version "
                f"reads {SCHEMA}"
            )
        self.round: int = self.manifest["round"]
        self.sequence: int = self.manifest["sequence"]
        self._check(RECORDS, self.manifest["files"][RECORDS])
        self.table = pq.read_table(directory / RECORDS)
        self._tokens: TokenArrays | None = None

    @property
    def count(self) -> int:
        return self.table.num_rows

    @property
    def bytes(self) -> int:
        return sum(file["bytes"] for file in self.manifest["files"].values())

    def column(self, name: str) -> np.ndarray:
        return self.table.column(name).to_numpy(zero_copy_only=False)

    def tokens(self) -> TokenArrays:
        """All tokens of the part, checked when first read. Raises CorruptPartError."""
        if self._tokens is None:
            self._check(TOKENS, self.manifest["files"][TOKENS])
            self._tokens = TokenArrays(**self._load(TOKENS))
        return self._tokens

    def forget_tokens(self) -> None:
        self._tokens = None

    @property
    def has_trainer_logprobs(self) -> bool:
        return (self.directory / TRAINER_MARKER).exists()

    def trainer_logprobs(self) -> np.ndarray | None:
        """float32 [n], the trainer's own log-probs; None before they were written."""
        if not self.has_trainer_logprobs:
            return None
        self._check(TRAINER, read_json(self.directory / TRAINER_MARKER)["file"])
        return self._load(TRAINER)["logprobs"]

    def write_trainer_logprobs(self, values: np.ndarray, policy_version: int) -> bool:
        """Add them, once; False where they are there already."""
        if self.has_trainer_logprobs:
            return False
        expected = int(self.manifest["tokens"])
        if values.shape != (expected,):
            raise ReplayError(
                f"{self.directory}: trainer log-probs have shape {values.shape}, expected "
                f"({expected},), one a token of the part"
            )
        beside = self.directory / (TRAINER + ".tmp")
        save_file({"logprobs": np.ascontiguousarray(values, dtype=np.float32)}, beside)
        fsync(beside)
        os.replace(beside, self.directory / TRAINER)
        marker = {
            "schema": SCHEMA,
            "policy_version": policy_version,
            "file": describe(self.directory / TRAINER),
        }
        write_json(self.directory / TRAINER_MARKER, marker)
        return True

    def _check(self, name: str, expected: Mapping[str, Any]) -> None:
        path = self.directory / name
        if not path.exists():
            raise CorruptPartError(f"{path} is missing; restore it or remove its round")
        found = describe(path)
        if found != dict(expected):
            raise CorruptPartError(
                f"{path} has sha256 {found['sha256'][:12]}… and {found['bytes']} bytes, expected "
                f"{expected['sha256'][:12]}… and {expected['bytes']}: it changed after it was "
                "written; restore it or remove its round"
            )

    def _load(self, name: str) -> dict[str, np.ndarray]:
        try:
            with safe_open(self.directory / name, framework="numpy") as file:
                return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise CorruptPartError(f"{self.directory / name}: {error}") from error


def write_part(
    directory: Path, round: int, sequence: int, trajectories: Sequence[Trajectory], left_out: int
) -> Part:
    """Write a part so that it is there whole or not at all."""
    beside = directory.with_name(f".{directory.name}.tmp")
    shutil.rmtree(beside, ignore_errors=True)  # of a writer that was killed
    beside.mkdir(parents=True)
    fsync(directory.parent.parent)
    tokens = flatten(trajectories)
    pq.write_table(to_table(trajectories), beside / RECORDS)
    save_file({name: getattr(tokens, name) for name in TOKEN_DTYPES}, beside / TOKENS)
    for name in (RECORDS, TOKENS):
        fsync(beside / name)
    manifest = {
        "schema": SCHEMA,
        "round": round,
        "part": directory.name,
        "sequence": sequence,
        "trajectories": len(trajectories),
        "segments": len(tokens.trajectory),
        "tokens": len(tokens.token_ids),
        "infra_errors_left_out": left_out,
        "files": {name: describe(beside / name) for name in (RECORDS, TOKENS)},
    }
    write_json(beside / MANIFEST, manifest)
    os.replace(beside, directory)
    fsync(directory.parent)
    return Part(directory)


def describe(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"sha256": digest, "bytes": path.stat().st_size}


def read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise CorruptPartError(f"{path} is missing; restore it or remove its round") from error
    except ValueError as error:
        raise CorruptPartError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CorruptPartError(f"{path} holds {type(value).__name__}, expected an object")
    return value


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    beside = path.with_name(path.name + ".tmp")
    beside.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")
    fsync(beside)
    os.replace(beside, path)
    fsync(path.parent)


def fsync(path: Path) -> None:
    """Of a file or a directory, so that it survives a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
