"""What changed between two bundles: the counted component changes, and texts for people.

Source: RRSI §2, an edit is one independently attributable component change, counted from the diff.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from harness.bundle import Bundle, Component, File
from harness.edit import (
    UNSET,
    AddComponent,
    DeleteFile,
    Edit,
    PutFile,
    RemoveComponent,
    ReplaceComponent,
    SetParam,
    diff,
)
from harness.jsonvalue import canonical

NO_NEWLINE = "\\ No newline at end of file\n"


@dataclass(frozen=True, slots=True)
class Change:
    """One attributable change.

    component: the id after the change (before it, for a removal); None for a file that belongs to
    no component. kind: one of KINDS. action: add | replace | remove | set | files.
    files: paths that changed with it.
    """

    component: str | None
    kind: str
    action: str
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Summary:
    """count: how many changes. kinds: those touched, sorted, once each."""

    changes: tuple[Change, ...]

    @property
    def count(self) -> int:
        return len(self.changes)

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(sorted({change.kind for change in self.changes}))


def summary(a: Bundle, b: Bundle) -> Summary:
    """The attributable changes from `a` to `b`, components by id, then files of nobody by path.

    All parameters of one component count once. A file counts with the component that it belongs
    to: one that changed anyway if there is one, else the owner whose id is first. A file of no
    component counts alone, with kind `files`.
    """
    kinds: dict[str, str] = {}
    actions: dict[str, str] = {}
    files: dict[str, list[str]] = {}
    paths: list[str] = []
    renamed: dict[str, str] = {}  # id that left -> id that took its place
    for edit in diff(a, b):
        match edit:
            case AddComponent(component):
                kinds[component.id], actions[component.id] = component.kind, "add"
            case ReplaceComponent(component, target):
                kinds[component.id], actions[component.id] = component.kind, "replace"
                if target is not None:
                    renamed[target] = component.id
            case RemoveComponent(id):
                kinds[id], actions[id] = a.component(id).kind, "remove"
            case SetParam(id):
                kinds[id], actions[id] = b.component(id).kind, "set"
            case PutFile(path) | DeleteFile(path):
                paths.append(path)
    loose: list[Change] = []
    for path in paths:
        owners = _owners(b, path) | {renamed.get(id, id) for id in _owners(a, path)}
        if not owners:
            loose.append(Change(None, "files", "files", (path,)))
            continue
        owner = min(owners & set(actions) or owners)
        if owner not in actions:
            kinds[owner], actions[owner] = b.component(owner).kind, "files"
        files.setdefault(owner, []).append(path)
    changes = [
        Change(id, kinds[id], actions[id], tuple(files.get(id, ()))) for id in sorted(actions)
    ]
    return Summary((*changes, *loose))


def describe(edit: Edit) -> str:
    """One line for people."""
    match edit:
        case AddComponent(component):
            return f"add {_name(component)}"
        case ReplaceComponent(component, target):
            return f"replace {target or component.group or component.id} by {_name(component)}"
        case RemoveComponent(id):
            return f"remove {id}"
        case SetParam(id, name, value):
            return f"unset {id}.{name}" if value is UNSET else f"set {id}.{name} = {_short(value)}"
        case PutFile(path, file):
            mode = ", executable" if file.executable else ""
            return f"write {path} ({len(file.content)} bytes{mode})"
        case DeleteFile(path):
            return f"delete {path}"


def render_diff(a: Bundle, b: Bundle, context: int = 3) -> str:
    """The difference as text: a line an edit of components, then a unified diff a file.

    Ends with a newline; empty when the bundles are equal. Binary files are named with their sizes.
    """
    out: list[str] = []
    for edit in diff(a, b):
        match edit:
            case SetParam(id, name):
                old = a.component(id).params.get(name, UNSET)
                was = "(default)" if old is UNSET else _short(old)
                out.append(f"{describe(edit)} (was {was})\n")
            case PutFile(path) | DeleteFile(path):
                out += _file_diff(path, a.files.get(path), b.files.get(path), context)
            case _:
                out.append(describe(edit) + "\n")
    return "".join(out)


def _owners(bundle: Bundle, path: str) -> set[str]:
    return {item.id for item in bundle.components if item.owns(path)}


def _name(component: Component) -> str:
    what = f"{component.id} ({component.kind}"
    if component.entrypoint:
        what += f", {component.entrypoint}"
    params = f" {_short(component.params)}" if component.params else ""
    return f"{what}){params}"


def _short(value: object, limit: int = 120) -> str:
    text = canonical(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _file_diff(path: str, old: File | None, new: File | None, context: int) -> list[str]:
    out: list[str] = []
    if old is not None and new is not None and old.executable != new.executable:
        out.append(f"{path}: {'now' if new.executable else 'no longer'} executable\n")
        if old.content == new.content:
            return out
    before, after = _lines(old), _lines(new)
    source, target = f"a/{path}" if old else "/dev/null", f"b/{path}" if new else "/dev/null"
    if before is None or after is None:
        sizes = [str(len(file.content)) if file else "none" for file in (old, new)]
        return [*out, f"{path}: binary, {sizes[0]} -> {sizes[1]} bytes\n"]
    if before == after:  # an empty file has no line to show
        return [*out, f"--- {source}\n", f"+++ {target}\n"]
    for line in difflib.unified_diff(before, after, source, target, n=context):
        out.append(line)
        if not line.endswith("\n"):
            out.append("\n" + NO_NEWLINE)
    return out


def _lines(file: File | None) -> list[str] | None:
    """The lines, split at newlines only; None for what is not text."""
    if file is None:
        return []
    if b"\0" in file.content:
        return None
    try:
        text = file.content.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return [line + "\n" for line in text.split("\n")[:-1]] + [
        line for line in text.split("\n")[-1:] if line
    ]
