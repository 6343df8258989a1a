"""The journal of one round: every paid step once, under its key and its inputs' hash.

A killed round runs again from the start; each step whose key and inputs stand in the journal is
answered from it, so no rollout and no proposal is paid for twice. Each line carries its checksum.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEMA = 2
UNSUMMED = 1
"""The schema before lines carried a checksum; still read."""


class JournalError(ValueError):
    """A journal file that this version did not write, or a step whose result is not JSON."""


def digest(value: Any) -> str:
    """sha256 (hex) of the canonical JSON of `value`."""
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class Entry:
    """One answered step. inputs: their sha256. result: JSON values."""

    key: str
    inputs: str
    result: Any


class Journal:
    """Append-only JSON lines at `path`, each synced; None keeps it in memory only.

    A torn last line (the process was killed while writing it) is cut off on opening. Raises
    JournalError for any other line that is not a journal entry.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = Path(path) if path is not None else None
        self.answered = 0
        """Steps answered from the journal since it was opened."""
        self._entries: dict[tuple[str, str], Any] = {}
        if self.path is not None and self.path.exists():
            self._read(self.path)

    async def once(self, key: str, inputs: Any, compute: Callable[[], Awaitable[Any]]) -> Any:
        """The JSON result of step `key` for these inputs: from the journal, else computed and kept.

        `inputs` (JSON values) is everything the result depends on. Nothing is kept where `compute`
        raises.
        """
        at = (key, digest(inputs))
        if at in self._entries:
            self.answered += 1
        else:
            self._append(at, await compute())
        return json.loads(json.dumps(self._entries[at]))

    def results(self) -> Iterator[tuple[str, Any]]:
        """(key, result) of every step that is kept, oldest first."""
        return ((key, result) for (key, _), result in self._entries.items())

    def _append(self, at: tuple[str, str], result: Any) -> None:
        entry = {"key": at[0], "inputs": at[1], "result": result}
        try:
            # As it will be read back: tuples are lists, keys are strings.
            entry = json.loads(json.dumps(entry, allow_nan=False))
            line = json.dumps({"schema": SCHEMA, **entry, "sha256": digest(entry)}) + "\n"
        except (TypeError, ValueError) as error:
            raise JournalError(
                f"step {at[0]!r}: its result is not JSON ({error}); give plain JSON values"
            ) from error
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as file:
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
        self._entries[at] = result

    def _read(self, path: Path) -> None:
        entries, torn = read_entries(path)
        self._entries = {(entry.key, entry.inputs): entry.result for entry in entries}
        if torn:
            with path.open("r+b") as file:
                file.truncate(path.stat().st_size - torn)
                file.flush()
                os.fsync(file.fileno())


def read_entries(path: Path) -> tuple[tuple[Entry, ...], int]:
    """The entries of a journal file and the bytes of a torn last line; safe beside its writer.

    Raises JournalError for any other line that is not a journal entry.
    """
    lines, torn = read_lines(path)
    entries = []
    for _, entry in lines:
        if isinstance(entry, JournalError):
            raise entry
        entries.append(entry)
    return tuple(entries), len(torn)


def read_lines(path: Path) -> tuple[list[tuple[bytes, Entry | JournalError]], bytes]:
    """Every whole line with its entry, or with what is wrong with it; and what a kill left torn."""
    whole, _, torn = path.read_bytes().rpartition(b"\n")
    lines = whole.split(b"\n") if whole else []
    return [(line, _entry(path, number, line)) for number, line in enumerate(lines, 1)], torn


def _entry(path: Path, number: int, line: bytes) -> Entry | JournalError:
    where = f"{path} line {number}"
    try:
        raw = json.loads(line)
        schema = raw["schema"]
        if schema not in (SCHEMA, UNSUMMED):
            return JournalError(f"{where}: schema {schema!r}; this version reads {SCHEMA}")
        entry = {name: raw[name] for name in ("key", "inputs", "result")}
        if schema == SCHEMA and digest(entry) != raw["sha256"]:
            raise ValueError("its checksum differs: it changed after it was written")
        return Entry(**entry)
    except (ValueError, KeyError, TypeError) as error:
        return JournalError(
            f"{where}: not a journal entry ({error}); restore the file or remove it to run the "
            "round anew"
        )
