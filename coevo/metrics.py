"""What a run writes while it runs: metrics.jsonl, TensorBoard scalars, and the live table.

`metrics.jsonl` is the record; TensorBoard and the terminal are views of it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from coevo.live import LiveTable, round_line
from coevo.records import SPLITS, RecordError, RoundRecord
from harness.atomic import fsync

if TYPE_CHECKING:
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

__all__ = [
    "LiveTable",
    "MetricsError",
    "MetricsLog",
    "RoundRecord",
    "TensorBoard",
    "read_metrics",
    "round_line",
    "scalars",
]


class MetricsError(RuntimeError):
    """metrics.jsonl is damaged before its last line, or a round would be recorded twice."""


def _parse(path: Path, data: bytes) -> tuple[list[RoundRecord], int, str]:
    """Records of a metrics file, the length of its sound part in bytes, and what was torn."""
    records: list[RoundRecord] = []
    sound = 0
    number = 0
    while sound < len(data):
        number += 1
        end = data.find(b"\n", sound)
        whole = end >= 0
        line = data[sound:] if not whole else data[sound:end]
        where = f"{path}, line {number}"
        try:
            parsed = json.loads(line)
        except ValueError as error:  # JSON and UTF-8 errors both are
            if whole:
                raise MetricsError(
                    f"{where}: not JSON ({error}). Only a last line can be torn by a kill; this "
                    "file was edited or the disk is damaged. Restore it, or remove the line"
                ) from error
            return records, sound, f"{where}: dropped a torn last line of {len(line)} bytes"
        try:
            record = RoundRecord.from_json(parsed, where)
        except RecordError as error:
            raise MetricsError(str(error)) from error
        if records and record.round != records[-1].round + 1:
            raise MetricsError(
                f"{where}: round {record.round} follows round {records[-1].round}; expected "
                f"{records[-1].round + 1}: each committed round stands there once, in order"
            )
        records.append(record)
        sound = end + 1 if whole else len(data)
    return records, sound, ""


def read_metrics(path: Path) -> tuple[tuple[RoundRecord, ...], str]:
    """The rounds of a metrics file, and a note when a torn last line was left out (else "").

    Safe beside a writer. Raises FileNotFoundError, and MetricsError naming the line.
    """
    records, _, note = _parse(path, path.read_bytes())
    return tuple(records), note


class MetricsLog:
    """Append-only metrics.jsonl: each round exactly once, in order, on disk when `append` returns.

    Opening cuts a last line that a kill left torn; `repaired` says so.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        existed = path.exists()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            data = path.read_bytes()
            records, sound, self.repaired = _parse(path, data)
            if sound < len(data):
                os.ftruncate(self._fd, sound)
                os.fsync(self._fd)
            elif data and not data.endswith(b"\n"):
                self._write(b"\n")  # the kill fell between a whole record and its newline
            if not existed:
                fsync(path.parent)
        except BaseException:
            os.close(self._fd)
            raise
        self._records = records

    @property
    def records(self) -> tuple[RoundRecord, ...]:
        return tuple(self._records)

    def append(self, record: RoundRecord) -> bool:
        """Record a round; False when it is there already with the same content (time aside).

        Raises MetricsError for a gap, or for a round that is there with another content.
        """
        if self._records:
            first, last = self._records[0].round, self._records[-1].round
            if first <= record.round <= last:
                there = self._records[record.round - first]
                if _timeless(there) == _timeless(record):
                    return False
                raise MetricsError(
                    f"{self.path}: round {record.round} is recorded already with other numbers; "
                    "call `truncate_after` with the last committed round before running it again"
                )
            if record.round != last + 1:
                raise MetricsError(
                    f"{self.path}: round {record.round} after round {last}; expected {last + 1}"
                )
        line = json.dumps(record.to_json(), ensure_ascii=False, allow_nan=False)
        size = os.fstat(self._fd).st_size
        try:
            self._write(line.encode() + b"\n")
        except OSError:
            # A full disk may have taken half a line: leave the file as it was, then say so.
            os.ftruncate(self._fd, size)
            raise
        self._records.append(record)
        return True

    def truncate_after(self, last_committed: int) -> int:
        """Drop the rounds after `last_committed` (a resume runs them again); how many they were."""
        keep = [r for r in self._records if r.round <= last_committed]
        dropped = len(self._records) - len(keep)
        if dropped:
            lines = self.path.read_bytes().splitlines(keepends=True)
            os.ftruncate(self._fd, sum(len(line) for line in lines[: len(keep)]))
            os.fsync(self._fd)
            self._records = keep
        return dropped

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]
        os.fsync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _timeless(record: RoundRecord) -> dict[str, object]:
    """The record without what the clock decides, what retention has deleted since, and what a run
    that an older version began may lack."""
    data = record.to_json()
    del data["buffer"]["bytes"]
    del data["wall"], data["measured_tokens"]
    del data["rollout"]["length_bias"]
    if data["train"]:
        del data["train"]["tokens_per_s"], data["train"]["mfu"]
    return data


def scalars(record: RoundRecord) -> Iterator[tuple[str, float]]:
    """(tag, value) of everything in a round that is a number worth a curve."""
    for split in SPLITS:
        result = getattr(record, split)
        if result is not None and result.success is not None:
            yield f"{split}/success", result.success
            yield f"{split}/lo", result.lo
            yield f"{split}/hi", result.hi
    if record.evolve.success is not None:
        yield "evolve/success", record.evolve.success
    if record.evolve.reward is not None:
        yield "evolve/reward", record.evolve.reward
    for outcome, count in record.rollout.outcomes.items():
        yield f"rollout/{outcome}", float(count)
    for share, bias in record.rollout.length_bias.items():
        yield f"rollout/length_bias_{share}", bias
    yield "evolve/candidates", float(len(record.evolution.candidates))
    yield "evolve/applied", float(record.evolution.outcome == "applied")
    yield "policy/version", float(record.policy_version)
    yield "tokens/prompt", float(record.tokens.prompt)
    yield "tokens/sampled", float(record.tokens.sampled)
    yield "buffer/staleness_max", float(record.staleness.max)
    yield "buffer/stale_dropped", float(record.staleness.dropped)
    yield "buffer/harnesses", float(len(record.harness_mix))
    for name, value in record.buffer.model_dump().items():
        yield f"buffer/{name}", float(value)
    if record.train is not None:
        for name, value in record.train.model_dump().items():
            if value is not None:
                yield f"train/{name}", float(value)
    for name, value in record.wall.model_dump().items():
        yield f"wall/{name}", float(value)


class TensorBoard:
    """Scalars of each round for TensorBoard, through its own event writer (no torch).

    `first_round` is the next round to be written: after a resume TensorBoard then drops what an
    earlier process wrote from that round on. Needs the package tensorboard, imported here.
    """

    def __init__(self, directory: Path, first_round: int = 0) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event, SessionLog
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ModuleNotFoundError as error:
            raise MetricsError(
                f"TensorBoard output in {directory} needs the package {error.name!r}, which is not "
                "installed: pip install tensorboard"
            ) from error
        self._writer: EventFileWriter = EventFileWriter(str(directory))
        self._writer.add_event(
            Event(
                wall_time=time.time(),
                step=first_round,
                session_log=SessionLog(status=SessionLog.START),
            )
        )

    def write(self, record: RoundRecord) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars(record)]
        self._writer.add_event(
            Event(wall_time=time.time(), step=record.round, summary=Summary(value=values))
        )
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
