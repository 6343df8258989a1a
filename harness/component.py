"""Components, the parts that a harness is made of, and the files that they may name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import cached_property
from typing import Any

from harness.jsonvalue import FrozenDict, canonical, freeze

MAX_FILE_BYTES = 1 << 20
MAX_PATH_BYTES = 1024

KINDS = (
    "prompt",
    "control_flow",
    "config",
    "output_plumbing",
    "context_mgmt",
    "client_tool",
    "skill",
    "memory",
    "subagent",
    "processor",
    "handbook",
    "files",
)

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_BUILT_IN = re.compile(r"harness(\.[A-Za-z_]\w*)+:[A-Za-z_]\w*", re.ASCII)
_OWN = re.compile(r"(?P<path>[^:]+\.py):[A-Za-z_]\w*", re.ASCII)


class BundleError(ValueError):
    """A bundle that is refused. `problems`: every reason, each naming its path or component."""

    def __init__(self, problems: Iterable[str], where: str = "bundle") -> None:
        self.problems = tuple(dict.fromkeys(problems))
        self.where = where
        many = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        super().__init__(f"{where}: {many}\n" + "\n".join(f"- {text}" for text in self.problems))

    def __reduce__(self) -> tuple[type, tuple[tuple[str, ...], str]]:
        return type(self), (self.problems, self.where)


@dataclass(frozen=True, slots=True)
class File:
    """One regular file: its bytes (at most MAX_FILE_BYTES) and its executable bit."""

    content: bytes
    executable: bool = False


@dataclass(frozen=True, eq=False)
class Component:
    """One part of a harness.

    id: unique in the bundle. kind: one of KINDS, what an edit of it counts as. entrypoint: the
    Processor class, `harness.module:Class` for a built-in or `path/of/file.py:Class` for a file
    of the bundle; None for pure data. params: JSON values for the class. path: the file or folder
    of the bundle that belongs to it. order, group: override the class's. after, needs: added to
    the class's (`needs` items: a component id, a singleton group, or `tool:NAME`). slot: the named
    place it fills, for methods that evolve one place at a time.

    Equal when the canonical JSON is equal. Raises BundleError with every problem of its own.
    """

    id: str
    kind: str
    entrypoint: str | None = None
    params: Mapping[str, Any] = field(default_factory=FrozenDict)
    path: str | None = None
    order: int | None = None
    group: str | None = None
    after: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    slot: str | None = None

    def __post_init__(self) -> None:
        where = f"component {self.id!r}"
        problems: list[str] = []
        for name in ("id", "group", "slot"):
            value = getattr(self, name)
            if (value is not None or name == "id") and not is_name(value):
                problems.append(
                    f"{where}: {name} {value!r} must be 1-128 of A-Z a-z 0-9 _ . - "
                    "and begin with a letter, digit or _"
                )
        if self.kind not in KINDS:
            problems.append(f"{where}: unknown kind {self.kind!r}{nearest(self.kind, KINDS)}")
        if self.entrypoint is not None:
            problems += (f"{where}: {text}" for text in _entrypoint_problems(self.entrypoint))
        if self.path is not None:
            problems += (f"{where}: path {text}" for text in path_problems(self.path))
        if self.order is not None and (isinstance(self.order, bool) or type(self.order) is not int):
            problems.append(f"{where}: order {self.order!r} must be an integer")
        for name in ("after", "needs"):
            value = getattr(self, name)
            if not isinstance(value, list | tuple) or not all(_is_ref(x, name) for x in value):
                tool = " or tool:NAME" if name == "needs" else ""
                problems.append(
                    f"{where}: {name} {value!r} must be a list of component ids or groups{tool}"
                )
            else:  # a set in meaning: one spelling only
                object.__setattr__(self, name, tuple(sorted(set(value))))
        if isinstance(self.params, Mapping):
            object.__setattr__(self, "params", freeze(self.params, f"{where}: params", problems))
        else:
            problems.append(f"{where}: params {self.params!r} must be a mapping")
        if problems:
            raise BundleError(problems, where)

    @property
    def own_file(self) -> str | None:
        """The file of the bundle that holds the component's code, if its code is its own."""
        match = _OWN.fullmatch(self.entrypoint or "")
        return match["path"] if match else None

    def owns(self, path: str) -> bool:
        """Whether the file at `path` belongs to this component."""
        if path == self.own_file:
            return True
        return self.path is not None and (path == self.path or path.startswith(self.path + "/"))

    def record(self) -> dict[str, Any]:
        """The manifest entry: fields at their default are left out. Values are frozen."""
        out: dict[str, Any] = {"id": self.id, "kind": self.kind}
        for item in fields(self)[2:]:
            value = getattr(self, item.name)
            if value is not None and value != () and value != {}:
                out[item.name] = value
        return out

    @cached_property
    def _canonical(self) -> str:
        return canonical(self.record())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Component) and self._canonical == other._canonical

    def __hash__(self) -> int:
        return hash(self._canonical)


def is_name(value: object) -> bool:
    """Whether `value` may be a component id, a singleton group or a slot."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def nearest(name: object, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or the list of what is known."""
    known = list(known)
    close = get_close_matches(str(name), known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known) or 'none'}"


def path_problems(path: object) -> list[str]:
    """Why `path` may not name a file of a bundle; empty when it may."""
    if not isinstance(path, str) or not path:
        return [f"{path!r} must be a non-empty text"]
    shown = repr(path if len(path) <= 200 else path[:200] + "…")
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return [f"{shown} is not UTF-8; rename the file"]
    parts = path.split("/")
    if path.startswith("/") or re.match(r"[A-Za-z]:", path):
        return [f"{shown} is absolute; name it relative to the bundle's root"]
    if ".." in parts:
        return [f"{shown} climbs with '..'; a bundle refers to nothing outside itself"]
    if "" in parts or "." in parts:
        return [f"{shown} has an empty or '.' step; write it plainly as a/b/c"]
    if "\\" in path or any(ord(char) < 32 or ord(char) == 127 for char in path):
        return [f"{shown} holds a backslash or a control character; rename the file"]
    if len(encoded) > MAX_PATH_BYTES or any(len(part.encode()) > 255 for part in parts):
        return [f"{shown} is too long (at most {MAX_PATH_BYTES} bytes, 255 a step)"]
    return []


def _entrypoint_problems(entrypoint: object) -> list[str]:
    if isinstance(entrypoint, str):
        if _BUILT_IN.fullmatch(entrypoint):
            return []
        if match := _OWN.fullmatch(entrypoint):
            return [f"entrypoint {text}" for text in path_problems(match["path"])]
    return [
        f"entrypoint {entrypoint!r} must be 'harness.module:Class' for a built-in or "
        "'folder/file.py:Class' for a file of the bundle"
    ]


def _is_ref(value: object, field_name: str) -> bool:
    if field_name == "needs" and isinstance(value, str) and value.startswith("tool:"):
        return len(value) > 5
    return is_name(value)
