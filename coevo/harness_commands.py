"""What `coevo harness new | show | diff | edit | lineage | verify` do."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from coevo.harness_cli import HarnessCommandError
from harness.atomic import replacing_directory
from harness.build import BoundProcessor, BuildError, build
from harness.bundle import MANIFEST, Bundle, BundleError, dump, load
from harness.change import describe, render_diff, summary
from harness.component import Component, File
from harness.edit import (
    UNSET,
    AddComponent,
    DeleteFile,
    Edit,
    EditError,
    PutFile,
    RemoveComponent,
    ReplaceComponent,
    SetParam,
    apply,
    diff,
)
from harness.edit_json import from_json, to_json
from harness.jsonvalue import canonical, thaw
from harness.sandbox.containment import SandboxUnavailable
from harness.store import Record, Store, StoreError

SHORT = 12
"""Digits of an id that are shown."""

USER_ERRORS = (BundleError, EditError, StoreError, SandboxUnavailable)


def handle(arguments: argparse.Namespace) -> None:
    """Run one `coevo harness` command. Raises HarnessCommandError for what a user can mend."""
    from coevo.harness_run import run_command, verify_command

    commands = {
        "new": _new,
        "show": _show,
        "diff": _diff,
        "edit": _edit,
        "lineage": _lineage,
        "verify": verify_command,
        "run": run_command,
    }
    try:
        commands[arguments.harness_command](arguments)
    except USER_ERRORS as error:
        raise HarnessCommandError(str(error)) from error


# --- naming a bundle ---


def is_store(path: Path) -> bool:
    """Whether the directory is a store of bundles."""
    return (path / "objects").is_dir() and not (path / MANIFEST).exists()


def open_store(path: Path) -> Store:
    """The store in `path`. Raises HarnessCommandError where there is none."""
    if not is_store(path):
        raise HarnessCommandError(
            f"{path} is no store of bundles: it has no objects/ directory. A run keeps its store in "
            "runs/NAME/harness"
        )
    return Store(path)


def open_bundle(ref: str) -> Bundle:
    """The bundle that `ref` names (see harness_cli.REF). Raises HarnessCommandError, BundleError."""
    path = Path(ref)
    if path.is_dir() and not is_store(path):
        return load(path)
    root, at, name = ref.rpartition("@")
    if at and Path(root).is_dir():
        store = open_store(Path(root))
        return store.get(store.resolve(name))
    if path.is_dir():
        known = ", ".join(Store(path).pointers()) or "none"
        raise HarnessCommandError(
            f"{ref} is a store; name a bundle of it as {ref}@NAME (pointers: {known})"
        )
    raise HarnessCommandError(f"{ref}: there is no such directory; give a bundle, or STORE@NAME")


# --- commands ---


def _new(arguments: argparse.Namespace) -> None:
    bundle = open_bundle(arguments.source) if arguments.source else Bundle()
    _dump(bundle, arguments.path)
    print(f"{arguments.path}: bundle {bundle.id[:SHORT]}")


def _dump(bundle: Bundle, path: Path) -> None:
    try:
        dump(bundle, path)
    except FileExistsError as error:
        raise HarnessCommandError(str(error)) from error


def _show(arguments: argparse.Namespace) -> None:
    bundle = open_bundle(arguments.bundle)
    if arguments.file is not None:
        if arguments.file not in bundle.files:
            known = ", ".join(bundle.files) or "none"
            raise HarnessCommandError(f"the bundle has no file {arguments.file!r}; it has: {known}")
        print(bundle.files[arguments.file].content.decode("utf-8", "replace"), end="")
        return
    if arguments.json:
        print(json.dumps({"id": bundle.id, **thaw(bundle.manifest())}, indent=2))
        return
    console = Console()
    console.print(Text(f"bundle {bundle.id}"))
    order, problems = _order(bundle)
    table = Table(box=None, pad_edge=False)
    for name in ("component", "kind", "runs"):
        table.add_column(name, no_wrap=True)
    for name in ("entrypoint", "parameters"):
        table.add_column(name, overflow="fold")
    for item in sorted(bundle.components, key=lambda c: (order.get(c.id, 1 << 30), c.id)):
        position = str(order[item.id] + 1) if item.id in order else ""
        params = canonical(item.params) if item.params else ""
        cells = (item.id, item.kind, position, item.entrypoint or item.path or "", params)
        table.add_row(*(Text(cell) for cell in cells))
    if bundle.components:
        console.print(table)
    else:
        console.print("no components: the model sees the task as it is")
    for path, file in bundle.files.items():
        mode = ", executable" if file.executable else ""
        console.print(Text(f"{path}  {len(file.content)} bytes{mode}"))
    for problem in problems:
        console.print(Text(f"problem: {problem}"), style="red")


def _order(bundle: Bundle) -> tuple[dict[str, int], tuple[str, ...]]:
    """Component id -> place in the running order, as far as it is known without its own code."""
    if bundle.has_own_code:
        return {}, ()
    try:
        bound: list[BoundProcessor] = build(bundle, allow_own_code=False)
    except BuildError as error:
        return {}, error.problems
    return {item.id: at for at, item in enumerate(bound)}, ()


def _diff(arguments: argparse.Namespace) -> None:
    a, b = open_bundle(arguments.a), open_bundle(arguments.b)
    if arguments.json:
        print(json.dumps(to_json(diff(a, b)), indent=2))
        return
    print(render_diff(a, b), end="")
    changes = summary(a, b)
    if not changes.count:
        print("no difference")
        return
    what = "1 change" if changes.count == 1 else f"{changes.count} changes"
    print(f"{what}: {', '.join(changes.kinds)}")


def _edit(arguments: argparse.Namespace) -> None:
    if not arguments.ops:
        raise HarnessCommandError("no edit is given; see `coevo harness edit --help`")
    if arguments.output is None and not Path(arguments.bundle).is_dir():
        raise HarnessCommandError("a bundle of a store never changes; give the result with -o")
    before = open_bundle(arguments.bundle)
    edits = [edit for op, value in arguments.ops for edit in _edits(op, value)]
    after = apply(before, edits)
    for edit in diff(before, after):
        print(describe(edit))
    if arguments.output is not None:
        _dump(after, arguments.output)
    else:
        _swap(after, Path(arguments.bundle))
    print(f"{before.id[:SHORT]} -> {after.id[:SHORT]}")


def _swap(bundle: Bundle, path: Path) -> None:
    """Put the bundle in the place of the directory; the old one is whole until the new one is."""
    path = path.resolve()
    with replacing_directory(path) as beside:
        dump(bundle, beside)
        shutil.copymode(path, beside)


def _edits(op: str, value: str) -> tuple[Edit, ...]:
    """The edits of one option. Raises HarnessCommandError, EditError, BundleError."""
    match op:
        case "edits":
            return from_json(_json_file(Path(value)))
        case "add":
            return (AddComponent(_component(op, value)),)
        case "replace":
            return (ReplaceComponent(_component(op, value)),)
        case "remove":
            return (RemoveComponent(value),)
        case "set":
            name, text = _halves(op, value, "=", "ID.NAME=VALUE")
            id, param = _halves(op, name, ".", "ID.NAME=VALUE")
            return (SetParam(id, param, _yaml(op, text)),)
        case "unset":
            id, param = _halves(op, value, ".", "ID.NAME")
            return (SetParam(id, param, UNSET),)
        case "put":
            path, source = _halves(op, value, "=", "PATH=FILE")
            file = Path(source)
            if not file.is_file():
                raise HarnessCommandError(f"--put {value}: there is no file {source}")
            executable = bool(file.stat().st_mode & 0o100)
            return (PutFile(path, File(file.read_bytes(), executable)),)
        case _:
            return (DeleteFile(value),)


def _halves(op: str, value: str, mark: str, form: str) -> tuple[str, str]:
    # An id may hold dots, a parameter may not: the last one parts them.
    left, found, right = value.rpartition(mark) if mark == "." else value.partition(mark)
    if not found or not left:
        raise HarnessCommandError(f"--{op} {value}: {form} is expected")
    return left, right


def _yaml(op: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise HarnessCommandError(f"--{op} {text}: not YAML: {error}") from error


def _component(op: str, text: str) -> Component:
    from harness.bundle import component_from_record

    record = _yaml(op, text)
    if not isinstance(record, dict):
        raise HarnessCommandError(
            f"--{op} {text}: a mapping is expected, for example "
            "'{id: a, kind: processor, entrypoint: processors/a.py:A}'"
        )
    return component_from_record(record)


def _json_file(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise HarnessCommandError(f"--edits {path}: there is no such file") from error
    except ValueError as error:
        raise HarnessCommandError(f"--edits {path}: not JSON: {error}") from error


def _lineage(arguments: argparse.Namespace) -> None:
    store = open_store(arguments.store)
    if arguments.name is not None:
        records = store.lineage(store.resolve(arguments.name))
    else:
        whole = store.records()
        if whole.torn is not None:
            print(f"the last line is torn: {whole.torn[:80]!r}")
        records = whole.records
    named = {id: name for name, id in store.pointers().items()}
    table = Table("bundle", "event", "from", "round", "source", "edits", "note", box=None)
    for record in records:
        table.add_row(*(Text(cell, overflow="fold") for cell in _row(record, named)))
    Console().print(table if records else "the lineage is empty")


def _row(record: Record, named: dict[str, str]) -> tuple[str, ...]:
    here = f"{record.id[:SHORT]}{f' ({named[record.id]})' if record.id in named else ''}"
    event = record.event if record.pointer is None else f"{record.event} {record.pointer}"
    parents = [parent[:SHORT] for parent in record.parents]
    if record.previous is not None:
        parents = [record.previous[:SHORT]]
    return (
        here,
        event,
        " ".join(parents),
        "" if record.round is None else str(record.round),
        record.source,
        "; ".join(describe(edit) for edit in record.edits),
        " ".join(part for part in (record.verdict or "", record.note) if part),
    )
