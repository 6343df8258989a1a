"""How a part of the replay buffer lies on disk: records in Parquet, tokens in safetensors.

    rounds/0003/incumbent/  trajectories.parquet  segments.safetensors  MANIFEST.json
                            trainer_logprobs.safetensors  TRAINER_LOGPROBS.json   (later)
                            TOKENS_DROPPED.json   (in the place of both safetensors files)

A part is written beside its place and renamed there whole; MANIFEST.json, with the checksums of each
file, is its last file. Parts are never changed, but for the trainer's log-probs, added once, and for
retention, which deletes token data and keeps the records.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from harness.atomic import fsync, put_directory, replacing, sha256, write_json
from rollout.mismatch import Mismatch
from rollout.tensor_file import TensorFileError, checksum, read_tensors, write_tensors
from rollout.trajectory import Cost, Outcome, Segment, Trajectory

SCHEMA = 1
RECORDS, TOKENS, MANIFEST = "trajectories.parquet", "segments.safetensors", "MANIFEST.json"
TRAINER, TRAINER_MARKER = "trainer_logprobs.safetensors", "TRAINER_LOGPROBS.json"
DROPPED = "TOKENS_DROPPED.json"

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


def to_table(trajectories: Sequence[Trajectory]) -> pa.Table:
    """One row a trajectory; what is open-ended goes as JSON."""
    known: dict[str, str] = {}  # repeats of a task say the same

    def encode(value: Mapping[str, Any]) -> str:
        key = repr(value)
        if key not in known:
            known[key] = json.dumps(dict(value), sort_keys=True)
        return known[key]

    columns: dict[str, list[Any]] = {
        "id": [t.id for t in trajectories],
        "task_id": [t.task_id for t in trajectories],
        "round": [t.round for t in trajectories],
        "role": [t.role for t in trajectories],
        "harness_id": [t.harness_id for t in trajectories],
        "policy_version": [t.policy_version for t in trajectories],
        "seed": [t.seed for t in trajectories],
        "outcome": [t.outcome.kind for t in trajectories],
        "reason": [t.outcome.reason for t in trajectories],
        "reward": [float(t.reward) for t in trajectories],
        "success": [bool(t.success) for t in trajectories],
        "steps": [t.steps for t in trajectories],
        "prompt_tokens": [t.cost.prompt_tokens for t in trajectories],
        "sampled_tokens": [t.cost.sampled_tokens for t in trajectories],
        "model_calls": [t.cost.model_calls for t in trajectories],
        "wall_s": [t.cost.wall_s for t in trajectories],
        "detail": [encode(t.detail) for t in trajectories],
        "features": [encode(t.features) for t in trajectories],
        "sandbox": [t.sandbox for t in trajectories],
        "trace_ref": [t.trace_ref for t in trajectories],
        "segments": [len(t.segments) for t in trajectories],
        "tokens": [sum(len(s.token_ids) for s in t.segments) for t in trajectories],
    }
    return pa.Table.from_pydict(columns, schema=COLUMNS)


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

    def __init__(self, directory: Path, table: pa.Table | None = None) -> None:
        """table: the records, where they were just written; else they are read and checked."""
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
        if table is None:
            self.check(RECORDS)
            table = pq.read_table(directory / RECORDS)
        self.table = table

    @property
    def count(self) -> int:
        return self.table.num_rows

    @property
    def bytes(self) -> int:
        """Of the files that are there."""
        total: int = self.manifest["files"][RECORDS]["bytes"]
        if self.has_tokens:
            total += self.manifest["files"][TOKENS]["bytes"]
            if self.has_trainer_logprobs:
                total += read_json(self.directory / TRAINER_MARKER)["file"]["bytes"]
        return total

    def column(self, name: str) -> np.ndarray:
        return self.table.column(name).to_numpy(zero_copy_only=False)

    # --- tokens ---

    @property
    def has_tokens(self) -> bool:
        """False once retention has deleted the token data."""
        return not (self.directory / DROPPED).exists()

    def tokens(self, into: Mapping[str, np.ndarray] | None = None) -> TokenArrays:
        """All tokens of the part, checked. into: arrays to read them to, by name.

        Raises CorruptPartError, and ReplayError where retention deleted them.
        """
        if not self.has_tokens:
            raise ReplayError(
                f"{self.directory}: its token data was deleted (buffer.keep_rounds); its records "
                "are still there. Raise buffer.keep_rounds in the next run to keep more"
            )
        return TokenArrays(**self._read(TOKENS, self.manifest["files"][TOKENS], into))

    def drop_tokens(self) -> bool:
        """Delete the token data and keep the records; False where nothing was left to delete.

        The marker comes first: from then on nobody misses the files, and a kill in between only
        leaves some for the next call.
        """
        left = [p for p in (self.directory / TOKENS, self.directory / TRAINER) if p.exists()]
        if self.has_tokens:
            write_json(
                self.directory / DROPPED, {"schema": SCHEMA, "files": [p.name for p in left]}
            )
        for path in left:
            os.unlink(path)
        if left:
            fsync(self.directory)
        return bool(left)

    # --- the trainer's log-probs ---

    @property
    def has_trainer_logprobs(self) -> bool:
        return (self.directory / TRAINER_MARKER).exists()

    def trainer_logprobs(self, into: np.ndarray | None = None) -> np.ndarray | None:
        """float32 [n], the trainer's own log-probs; None before they were written."""
        if not self.has_trainer_logprobs:
            return None
        described = read_json(self.directory / TRAINER_MARKER)["file"]
        return self._read(TRAINER, described, None if into is None else {"logprobs": into})[
            "logprobs"
        ]

    def write_trainer_logprobs(self, values: np.ndarray, policy_version: int) -> bool:
        """Add them with their mismatch, once; False where they are there already."""
        if self.has_trainer_logprobs:
            return False
        expected = int(self.manifest["tokens"])
        if values.shape != (expected,):
            raise ReplayError(
                f"{self.directory}: trainer log-probs have shape {values.shape}, expected "
                f"({expected},), one a token of the part"
            )
        values = np.ascontiguousarray(values, dtype=np.float32)
        tokens = self.tokens()
        same = tokens.loss_mask & (tokens.versions == policy_version)
        mismatch = Mismatch.of(tokens.logprobs[same], values[same])
        with replacing(self.directory / TRAINER) as beside:
            described = write_tensors(beside, {"logprobs": [values]})
        marker = {
            "schema": SCHEMA,
            "policy_version": policy_version,
            "mismatch": asdict(mismatch) if mismatch else None,
            "file": described,
        }
        write_json(self.directory / TRAINER_MARKER, marker)
        return True

    def mismatch(self) -> Mismatch | None:
        """Engine against trainer, as found when the trainer's log-probs were written; else None."""
        if not self.has_trainer_logprobs:
            return None
        found = read_json(self.directory / TRAINER_MARKER).get("mismatch")
        return Mismatch(**found) if found else None

    # --- checks ---

    def check(self, name: str) -> None:
        """Compare a file with the manifest. Raises CorruptPartError naming it."""
        self._check(name, self.manifest["files"][name])

    def check_tokens(self) -> None:
        """Compare the token data, where it is still there. Raises CorruptPartError naming the file."""
        if self.has_tokens:
            self.check(TOKENS)

    def check_trainer_logprobs(self) -> None:
        """Compare the trainer's log-probs, where they are there. Raises as `check_tokens`."""
        if self.has_tokens and self.has_trainer_logprobs:
            self._check(TRAINER, read_json(self.directory / TRAINER_MARKER)["file"])

    def _check(self, name: str, expected: Mapping[str, Any]) -> None:
        path = self.directory / name
        if not path.exists():
            raise CorruptPartError(f"{path} is missing; restore it or remove its round")
        kind = "crc32" if "crc32" in expected else "sha256"
        found = checksum(path)[0] if kind == "crc32" else sha256(path)
        size = path.stat().st_size
        if (found, size) != (expected[kind], expected["bytes"]):
            raise CorruptPartError(
                f"{path} has {kind} {str(found)[:12]} and {size} bytes, expected "
                f"{str(expected[kind])[:12]} and {expected['bytes']}: it changed after it was "
                "written; restore it or remove its round"
            )

    def _read(
        self, name: str, described: Mapping[str, Any], into: Mapping[str, np.ndarray] | None
    ) -> dict[str, np.ndarray]:
        path = self.directory / name
        try:
            return read_tensors(path, described, into)
        except FileNotFoundError as error:
            raise CorruptPartError(f"{path} is missing; restore it or remove its round") from error
        except TensorFileError as error:
            raise CorruptPartError(f"{error}; restore it or remove its round") from error


def write_part(
    directory: Path, round: int, sequence: int, trajectories: Sequence[Trajectory], left_out: int
) -> Part:
    """Write a part so that it is there whole or not at all."""
    beside = directory.with_name(f".{directory.name}.tmp")
    shutil.rmtree(beside, ignore_errors=True)  # of a writer that was killed
    new_round = not directory.parent.exists()
    beside.mkdir(parents=True)
    if new_round:
        fsync(directory.parent.parent)
    segments = [s for t in trajectories for s in t.segments]
    tensors: dict[str, list[np.ndarray]] = {
        name: [getattr(s, name) for s in segments] or [np.zeros(0, TOKEN_DTYPES[name])]
        for name in ("token_ids", "loss_mask", "logprobs", "versions")
    }
    rows = np.repeat(np.arange(len(trajectories)), [len(t.segments) for t in trajectories])
    offsets = np.cumsum([0, *(len(s.token_ids) for s in segments)], dtype=np.int64)
    tensors["offsets"] = [offsets]
    tensors["trajectory"] = [rows]
    tensors["temperatures"] = [np.array([s.temperature for s in segments], dtype=np.float64)]
    described = write_tensors(beside / TOKENS, tensors, TOKEN_DTYPES)
    with ThreadPoolExecutor(1) as pool:  # the disk takes them while the records are made
        synced = pool.submit(fsync, beside / TOKENS)
        table = to_table(trajectories)
        pq.write_table(table, beside / RECORDS)
        synced.result()
    manifest = {
        "schema": SCHEMA,
        "round": round,
        "part": directory.name,
        "sequence": sequence,
        "trajectories": len(trajectories),
        "segments": len(segments),
        "tokens": int(offsets[-1]),
        "infra_errors_left_out": left_out,
        "files": {RECORDS: _describe(beside / RECORDS), TOKENS: described},
    }
    (beside / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    put_directory(beside, directory)
    return Part(directory, table)


def _describe(path: Path) -> dict[str, Any]:
    return {"sha256": sha256(path), "bytes": path.stat().st_size}


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
