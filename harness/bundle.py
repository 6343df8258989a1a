"""The bundle: a harness as one immutable value, a manifest of components plus a tree of files.

On disk a bundle is a directory: `harness.yaml` at its root and regular files. Its id is the
sha256 of the canonical manifest and of (path, executable bit, size, sha256) of every file, so it
depends on nothing else: not on key order, on the order of components or files, on how a number
is written, or on where the directory lies. Order of execution comes from `order`, `after` and
the component id (see `harness.build`), hence the list order of components carries no meaning.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from harness import tree
from harness.atomic import fsync
from harness.component import (
    KINDS,
    MAX_FILE_BYTES,
    BundleError,
    Component,
    File,
    is_name,
    nearest,
    path_problems,
)
from harness.jsonvalue import FrozenDict, canonical, thaw

__all__ = [
    "KINDS",
    "MANIFEST",
    "MAX_FILE_BYTES",
    "SCHEMA",
    "Bundle",
    "BundleError",
    "Component",
    "File",
    "dump",
    "is_name",
    "load",
]

SCHEMA = 1
MANIFEST = "harness.yaml"
_COMPONENT_KEYS = tuple(Component.__dataclass_fields__)


@dataclass(frozen=True, eq=False)
class Bundle:
    """A harness: components (kept sorted by id) and files (path -> File, `harness.yaml` excluded).

    Equal when components and files are equal, which is when the ids are. Raises BundleError with
    every problem at once.
    """

    components: tuple[Component, ...] = ()
    files: Mapping[str, File] = field(default_factory=FrozenDict)

    def __post_init__(self) -> None:
        if problems := bundle_problems(self.components, self.files):
            raise BundleError(problems)
        ordered = tuple(sorted(self.components, key=lambda component: component.id))
        object.__setattr__(self, "components", ordered)
        object.__setattr__(self, "files", FrozenDict(sorted(self.files.items())))

    @cached_property
    def id(self) -> str:
        """sha256 (64 hex digits) over the canonical manifest and the sorted file table."""
        table = [
            [path, file.executable, len(file.content), hashlib.sha256(file.content).hexdigest()]
            for path, file in self.files.items()
        ]
        text = canonical({**self.manifest(), "files": table})
        return hashlib.sha256(text.encode()).hexdigest()

    def manifest(self) -> dict[str, Any]:
        """The content of `harness.yaml`: schema number and component records."""
        return {"schema": SCHEMA, "components": [item.record() for item in self.components]}

    def component(self, id: str) -> Component:
        """The component of that id; KeyError naming the nearest when there is none."""
        for item in self.components:
            if item.id == id:
                return item
        ids = [item.id for item in self.components]
        raise KeyError(f"no component {id!r} in bundle {self.id[:12]}{nearest(id, ids)}")

    def contents(self) -> Mapping[str, bytes]:
        """path -> bytes, as `Context.files` carries them."""
        return FrozenDict({path: file.content for path, file in self.files.items()})

    @property
    def has_own_code(self) -> bool:
        """Whether any component's code is a file of the bundle: such code runs only sandboxed."""
        return any(item.own_file for item in self.components)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Bundle):
            return NotImplemented
        return self.components == other.components and self.files == other.files

    def __hash__(self) -> int:
        return hash(self.id)


def load(path: str | os.PathLike[str], expect_id: str | None = None) -> Bundle:
    """The bundle in the directory `path`.

    Raises BundleError with every problem at once; with `expect_id`, also when the id differs.
    Empty folders are no part of a bundle.
    """
    root = Path(path)
    where = f"bundle {root}"
    if not root.is_dir():
        raise BundleError([f"{root} is not a directory"], where)
    problems: list[str] = []
    refused: list[str] = []
    files = tree.read(root, problems, refused)
    manifest = files.pop(MANIFEST, None)
    components: list[Component] = []
    if manifest is not None:
        components = parse_manifest(manifest.content, problems)
    elif MANIFEST not in refused:
        problems.append(f"{MANIFEST} is missing; a bundle has one at its root")
    problems += bundle_problems(components, files, refused)
    if problems:
        raise BundleError(problems, where)
    bundle = Bundle(tuple(components), files)
    if expect_id is not None and bundle.id != expect_id:
        raise BundleError(
            [f"its id is {bundle.id}, expected {expect_id}; the files were changed or mixed up"],
            where,
        )
    return bundle


def dump(bundle: Bundle, path: str | os.PathLike[str]) -> None:
    """Write the bundle as the new directory `path`: whole or not at all.

    It is written beside, synced and renamed. Raises FileExistsError when `path` is a file or a
    directory that is not empty.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        tree.write(disk_files(bundle), scratch)
        try:
            os.rename(scratch, target)
        except OSError as error:
            if target.exists():
                raise FileExistsError(
                    f"{target} exists and is not an empty directory; choose another path"
                ) from error
            raise
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    fsync(target.parent)


def bundle_problems(
    components: Iterable[Component], files: Mapping[str, File], refused: Iterable[str] = ()
) -> list[str]:
    """Every reason why these components and files are no bundle.

    refused: paths that a reader already reported; they are not reported as missing again.
    """
    problems: list[str] = []
    for path, file in files.items():
        if bad := path_problems(path):
            problems += (f"file {text}" for text in bad)
        elif _fold(path) == MANIFEST:
            problems.append(f"file {path!r} is reserved for the manifest; rename it")
        if len(file.content) > MAX_FILE_BYTES:
            problems.append(
                f"file {path!r} has {len(file.content)} bytes, more than {MAX_FILE_BYTES}; "
                "shorten or split it"
            )
    problems += _collisions(path for path in files if not path_problems(path))

    known = [*files, *refused]
    seen: set[str] = set()
    for item in components:
        where = f"component {item.id!r}"
        if item.id in seen:
            problems.append(f"{where}: the id is used twice; ids are unique in a bundle")
        seen.add(item.id)
        if item.own_file is not None and item.own_file not in known:
            problems.append(
                f"{where}: entrypoint file {item.own_file!r} is not in the bundle"
                f"{nearest(item.own_file, files)}"
            )
        own = item.path
        if own is not None and not any(p == own or p.startswith(own + "/") for p in known):
            problems.append(f"{where}: path {own!r} is not in the bundle{nearest(own, files)}")
    return problems


def disk_files(bundle: Bundle) -> Mapping[str, File]:
    """The bundle's whole tree, manifest included."""
    return {MANIFEST: File(render_manifest(bundle)), **bundle.files}


def render_manifest(bundle: Bundle) -> bytes:
    """The bytes of `harness.yaml`."""
    return yaml.dump(
        thaw(bundle.manifest()),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=100,
        encoding="utf-8",
    )


def parse_manifest(content: bytes, problems: list[str]) -> list[Component]:
    """The components of a manifest; what is wrong with it is added to `problems`."""
    try:
        raw = yaml.load(content.decode("utf-8"), Loader=_Loader)
    except UnicodeDecodeError as error:
        problems.append(f"{MANIFEST}: not UTF-8 text (byte {error.start})")
        return []
    except (yaml.YAMLError, ValueError) as error:
        problems.append(f"{MANIFEST}: not valid YAML: {' '.join(str(error).split())}")
        return []
    except RecursionError:
        problems.append(f"{MANIFEST}: nested too deep; flatten it")
        return []
    if not isinstance(raw, dict):
        problems.append(f"{MANIFEST}: must be a mapping with 'schema' and 'components'")
        return []
    if raw.get("schema") != SCHEMA or isinstance(raw.get("schema"), bool):
        problems.append(f"{MANIFEST}: schema is {raw.get('schema')!r}, expected {SCHEMA}")
    _unknown_keys(raw, ("schema", "components"), MANIFEST, problems)
    entries = raw.get("components", [])
    if not isinstance(entries, list):
        problems.append(f"{MANIFEST}: components must be a list, not {type(entries).__name__}")
        return []
    components = []
    for position, entry in enumerate(entries):
        where = f"{MANIFEST}: components[{position}]"
        if not isinstance(entry, dict):
            problems.append(f"{where}: must be a mapping, not {type(entry).__name__}")
            continue
        try:
            components.append(component_from_record(entry))
        except BundleError as error:
            problems += (f"{where}: {text}" for text in error.problems)
    return components


def component_from_record(entry: Mapping[str, Any]) -> Component:
    """The Component of a manifest entry. Raises BundleError with every problem of it."""
    where = f"component {entry.get('id')!r}"
    problems: list[str] = []
    _unknown_keys(entry, _COMPONENT_KEYS, where, problems)
    known = {key: value for key, value in entry.items() if key in _COMPONENT_KEYS}
    if missing := [key for key in ("id", "kind") if key not in known]:
        raise BundleError([*problems, f"{where}: {' and '.join(missing)} missing"], where)
    try:
        component = Component(**known)
    except BundleError as error:
        raise BundleError([*problems, *error.problems], where) from error
    if problems:
        raise BundleError(problems, where)
    return component


def _unknown_keys(
    entry: Mapping[Any, Any], known: tuple[str, ...], where: str, problems: list[str]
) -> None:
    problems += (
        f"{where}: unknown key {key!r}{nearest(key, known)}" for key in entry if key not in known
    )


def _fold(path: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def _collisions(paths: Iterable[str]) -> list[str]:
    """Paths that differ only in case or Unicode form, or a file in the place of a folder."""
    problems: list[str] = []
    spelled: dict[str, tuple[str, bool]] = {}  # folded -> (spelling, is a folder)
    for path in sorted(paths):
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            step, folder = "/".join(parts[:depth]), depth < len(parts)
            first, was_folder = spelled.setdefault(_fold(step), (step, folder))
            if first != step:
                problems.append(
                    f"file {path!r}: {step!r} collides with {first!r} where names ignore case; "
                    "rename one"
                )
                break
            if folder != was_folder:
                problems.append(f"file {path!r}: {step!r} is both a file and a folder; rename one")
                break
    return problems


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        # Only double quotes escape line breaks, and PyYAML's other styles lose some (U+0085).
        style = None if data.isprintable() else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(str, _Dumper.represent_str)


class _Loader(yaml.SafeLoader):
    """Safe YAML without aliases (they can blow a small text up) and without repeated keys."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise yaml.composer.ComposerError(
                None,
                None,
                f"alias *{event.anchor} is not allowed; write the value out",
                event.start_mark,
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"key {key.value!r} is written twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)
