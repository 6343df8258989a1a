"""A content-addressed store of bundles, with an append-only lineage and named pointers.

    objects/<id>/             immutable trees; an id is checked on every read
    lineage.jsonl             one record a line, appended under a lock and synced
    pointers/<name>           an id, replaced atomically; every move is in the lineage
    tmp/                      trees being written; `sweep` removes what killed writers left

Safe for several processes at once, and at any instant of a kill: an object is there whole or not
at all, and a record that was not acknowledged may at most be lost.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from harness import tree
from harness.atomic import fsync, replacing
from harness.bundle import Bundle, BundleError, disk_files, is_name, load
from harness.edit import Edit
from harness.edit_json import from_json, to_json

SCHEMA = 1
_ID = re.compile(r"[0-9a-f]{64}")
_log = logging.getLogger(__name__)


class StoreError(RuntimeError):
    """The store lacks, or holds damaged, what was asked for; the message names it."""


@dataclass(frozen=True, slots=True)
class Record:
    """One line of the lineage.

    event `bundle`: what is known of bundle `id` (where it came from, or a verdict on it); several
    records may speak of one id. event `pointer` or `rollback`: pointer `pointer` moved from
    `previous` (None: it was new) to `id`. edits: those that led from the first parent to `id`.
    source: who made it (seed, a proposer's name, an author).
    """

    id: str
    event: Literal["bundle", "pointer", "rollback"] = "bundle"
    parents: tuple[str, ...] = ()
    edits: tuple[Edit, ...] = ()
    source: str = ""
    round: int | None = None
    verdict: str | None = None
    note: str = ""
    pointer: str | None = None
    previous: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "parents", tuple(self.parents))
        object.__setattr__(self, "edits", tuple(self.edits))
        for id in (self.id, *self.parents):
            if not isinstance(id, str) or not _ID.fullmatch(id):
                raise ValueError(f"{id!r} is no bundle id; expected 64 hex digits")

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"schema": SCHEMA}
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name == "edits":
                value = to_json(value)
            if value or value == 0:
                out[item.name] = list(value) if isinstance(value, tuple) else value
        return out

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Record:
        """Raises ValueError or TypeError for what is no record of this schema."""
        values = dict(raw)
        if (schema := values.pop("schema", None)) != SCHEMA:
            raise ValueError(f"schema is {schema!r}, expected {SCHEMA}")
        values["parents"] = tuple(values.get("parents", ()))
        values["edits"] = from_json(values.get("edits", ()))
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Lineage:
    """All records, oldest first. torn: the fragment that a killed writer left at the end."""

    records: tuple[Record, ...]
    torn: str | None = None


class Store:
    """The store in directory `root`, which is created where it is missing."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        self._objects = self.root / "objects"
        for name in ("objects", "pointers", "tmp"):
            (self.root / name).mkdir(parents=True, exist_ok=True)

    # objects

    def put(self, bundle: Bundle) -> str:
        """Keep the bundle; its id. Does nothing where it is there already.

        Raises StoreError when the object that is there is damaged.
        """
        target = self.path(bundle.id)
        if target.exists():
            self.get(bundle.id)
            return bundle.id
        with self._scratch() as scratch:
            made = scratch / bundle.id
            made.mkdir()
            tree.write(disk_files(bundle), made, read_only=True)
            try:
                os.rename(made, target)
            except OSError:
                if not target.exists():
                    raise
                self.get(bundle.id)  # another writer was first
        fsync(self._objects)
        return bundle.id

    def get(self, id: str) -> Bundle:
        """The bundle of that id, read and checked. Raises StoreError: unknown, or damaged."""
        path = self.path(id)
        if not path.is_dir():
            raise StoreError(f"store {self.root} has no bundle {id}")
        try:
            return load(path, expect_id=id)
        except BundleError as error:
            raise StoreError(
                f"bundle {id} in store {self.root} is damaged; remove its directory and put it "
                f"again: {error}"
            ) from error

    def path(self, id: str) -> Path:
        """Where the tree of that id lies or would lie. Read-only: the id is its content."""
        if not _ID.fullmatch(id):
            raise StoreError(f"{id!r} is no bundle id; expected 64 hex digits")
        return self._objects / id

    def __contains__(self, id: object) -> bool:
        return isinstance(id, str) and bool(_ID.fullmatch(id)) and self.path(id).is_dir()

    def ids(self) -> tuple[str, ...]:
        """All ids, sorted."""
        return tuple(sorted(name for name in os.listdir(self._objects) if _ID.fullmatch(name)))

    def resolve(self, prefix: str) -> str:
        """The one id that begins with `prefix` (or the pointer of that name)."""
        if is_name(prefix) and (named := self.pointer(prefix)) is not None:
            return named
        found = [id for id in self.ids() if prefix and id.startswith(prefix)]
        if len(found) != 1:
            what = "no" if not found else f"{len(found)}"
            raise StoreError(f"store {self.root} has {what} bundles that begin with {prefix!r}")
        return found[0]

    def sweep(self) -> int:
        """Remove the scratch trees of writers that are gone; how many. Live writers keep theirs."""
        removed = 0
        with self._locked():
            for path in sorted((self.root / "tmp").iterdir()):
                try:
                    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
                except FileNotFoundError:  # its writer has just finished
                    continue
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                else:
                    shutil.rmtree(path, ignore_errors=True)
                    removed += 1
                finally:
                    os.close(handle)
        return removed

    # lineage

    def record(self, record: Record) -> None:
        """Append a record of event `bundle`, synced. One that is there already is not repeated.

        Raises StoreError for other events (see `move`) and when the bundle or a parent is not in
        the store.
        """
        if record.event != "bundle":
            raise StoreError(f"a {record.event!r} record is written by move or rollback only")
        for id in (record.id, *record.parents):
            if id not in self:
                raise StoreError(f"record of {record.id}: store {self.root} has no bundle {id}")
        with self._locked():
            if record not in self._read().records:
                self._append(record)

    def add(self, bundle: Bundle, **about: Any) -> str:
        """`put`, then `record` with the fields of Record given by name; the id."""
        id = self.put(bundle)
        self.record(Record(id=id, **about))
        return id

    def records(self) -> Lineage:
        """The whole lineage. Raises StoreError naming the line that is no record."""
        with self._locked(shared=True):
            return self._read()

    def lineage(self, id: str) -> tuple[Record, ...]:
        """The records of `id`, then of its parents and on to the roots, breadth first."""
        by_id: dict[str, list[Record]] = {}
        for record in self.records().records:
            if record.event == "bundle":
                by_id.setdefault(record.id, []).append(record)
        if id not in by_id:
            raise StoreError(f"the lineage of store {self.root} does not mention bundle {id}")
        out: list[Record] = []
        queue, seen = [id], {id}
        for current in queue:  # grows while it is walked
            for record in by_id.get(current, ()):
                out.append(record)
                fresh = [parent for parent in record.parents if parent not in seen]
                seen.update(fresh)
                queue += dict.fromkeys(fresh)
        return tuple(out)

    # pointers

    def pointer(self, name: str) -> str | None:
        """The id that the pointer names; None where there is no such pointer."""
        try:
            text = self._pointer_path(name).read_text("ascii").strip()
        except FileNotFoundError:
            return None
        except UnicodeDecodeError:
            text = "binary data"
        if not _ID.fullmatch(text):
            raise StoreError(f"pointer {name!r} in store {self.root} holds {text[:80]!r}, no id")
        return text

    def pointers(self) -> dict[str, str]:
        """All pointers by name."""
        names = sorted(name for name in os.listdir(self.root / "pointers") if is_name(name))
        return {name: id for name in names if (id := self.pointer(name)) is not None}

    def move(self, name: str, id: str, round: int | None = None, note: str = "") -> None:
        """Point `name` at a bundle of the store. Does nothing where it points there already."""
        self._move("pointer", name, id, round, note)

    def rollback(self, name: str, id: str, round: int | None = None, note: str = "") -> None:
        """As `move`, back to a bundle that the pointer named before; recorded as a rollback.

        Raises StoreError when the pointer never named it.
        """
        self._move("rollback", name, id, round, note)

    def _move(
        self,
        event: Literal["pointer", "rollback"],
        name: str,
        id: str,
        round: int | None,
        note: str,
    ) -> None:
        path = self._pointer_path(name)
        if id not in self:
            raise StoreError(f"pointer {name!r}: store {self.root} has no bundle {id}")
        with self._locked():
            previous = self.pointer(name)
            if previous == id:
                return
            moves = [item for item in self._read().records if item.pointer == name]
            if event == "rollback" and id not in {item.id for item in moves}:
                raise StoreError(f"pointer {name!r} never named bundle {id}; use move")
            # The record comes first, so after a kill in between the last record is ahead of the
            # pointer: repeating the move then only completes it.
            if not (moves and moves[-1].id == id and moves[-1].previous == previous):
                self._append(
                    Record(id, event, round=round, note=note, pointer=name, previous=previous)
                )
            # In the scratch, where `sweep` finds what a killed writer left.
            with self._scratch(locked=True) as scratch, replacing(path, scratch / name) as made:
                made.write_text(id + "\n", "ascii")

    def _pointer_path(self, name: str) -> Path:
        if not is_name(name):
            raise StoreError(f"{name!r} is no pointer name; use A-Z a-z 0-9 _ . - only")
        return self.root / "pointers" / name

    # plumbing

    @contextmanager
    def _locked(self, shared: bool = False) -> Iterator[None]:
        with open(self.root / "lock", "ab") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
            yield

    @contextmanager
    def _scratch(self, locked: bool = False) -> Iterator[Path]:
        """A scratch directory, held by a lock of its own as long as its writer lives.

        It is made under the store's lock (`locked`: the caller holds it), else a sweep might take
        it before its own lock is set.
        """
        if locked:
            path, handle = self._make_scratch()
        else:
            with self._locked():
                path, handle = self._make_scratch()
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
            os.close(handle)

    def _make_scratch(self) -> tuple[Path, int]:
        path = Path(tempfile.mkdtemp(dir=self.root / "tmp"))
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(handle, fcntl.LOCK_EX)
        return path, handle

    @property
    def _lineage_path(self) -> Path:
        return self.root / "lineage.jsonl"

    def _append(self, record: Record) -> None:
        """Append a line; the caller holds the lock. What a killed writer left torn is cut off."""
        line = json.dumps(record.to_json(), ensure_ascii=False, allow_nan=False) + "\n"
        new = not self._lineage_path.exists()
        with open(self._lineage_path, "a+b") as stream:
            stream.seek(0)
            content = stream.read()
            whole = content.rfind(b"\n") + 1
            if whole < len(content):
                _log.warning(
                    "%s: cut off a torn last line of %d bytes: %r",
                    self._lineage_path,
                    len(content) - whole,
                    content[whole:][:200],
                )
                stream.truncate(whole)
            stream.write(line.encode("utf-8"))
            stream.flush()
            os.fsync(stream.fileno())
        if new:
            fsync(self.root)

    def _read(self) -> Lineage:
        try:
            content = self._lineage_path.read_bytes()
        except FileNotFoundError:
            return Lineage(())
        *lines, rest = content.split(b"\n")
        torn = rest.decode("utf-8", errors="replace") if rest else None
        return Lineage(tuple(self._parse(lines)), torn)

    def _parse(self, lines: Iterable[bytes]) -> Iterator[Record]:
        for number, line in enumerate(lines, 1):
            try:
                yield Record.from_json(json.loads(line))
            except (ValueError, TypeError) as error:
                raise StoreError(
                    f"{self._lineage_path} line {number} is no lineage record: {error}"
                ) from error
