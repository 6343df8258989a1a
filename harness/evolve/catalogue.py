"""A catalogue of typed edits: loaded from YAML, made concrete for one harness.

A catalogue knows nothing of a domain; its entries do. An edit template is an edit's JSON form in
which the text `$value` stands for one of the entry's `values`, and `group: NAME` in the place of
`id` for the component that holds that singleton group.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.build import class_group
from harness.bundle import Bundle, Component
from harness.component import nearest
from harness.edit import AddComponent, Edit, EditError, SetParam
from harness.edit_json import from_json
from harness.evolve.analysts.rules import CATEGORIES
from harness.evolve.meta import EDIT_KINDS
from harness.jsonvalue import canonical, thaw
from harness.processor import Processor

VALUE = "$value"


class CatalogueError(ValueError):
    """A catalogue file that cannot be used; the message names the file and the entry."""


class SignatureSpec(BaseModel):
    """See `records.Signature`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["component", "tool", "model_input"]
    name: str
    expected_min_calls: int = Field(1, ge=1)


class Entry(BaseModel):
    """One kind of edit.

    when: failure categories that it answers. edits: templates. values: what `$value` may become,
    tried in this order; empty for an entry without a parameter. claim: what the edit makes
    possible. root_cause, fix, holds: the manifest's body (holds: why solved tasks do not break).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    kind: str
    when: tuple[str, ...] = Field(min_length=1)
    edits: tuple[dict[str, Any], ...] = Field(min_length=1)
    values: tuple[Any, ...] = ()
    claim: str
    root_cause: str
    fix: str
    holds: str
    signature: SignatureSpec


def load_catalogue(path: Path) -> tuple[Entry, ...]:
    """The entries of one file (`schema: 1`, `entries: [...]`).

    Raises CatalogueError naming every unknown kind, category, key and malformed template.
    """
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        known = sorted(item.name for item in path.parent.glob("*.yaml"))
        raise CatalogueError(f"{path}: there is no such file{nearest(path.name, known)}") from error
    except yaml.YAMLError as error:
        raise CatalogueError(f"{path}: not YAML: {error}") from error
    if not isinstance(data, dict) or data.get("schema") != 1 or set(data) != {"schema", "entries"}:
        raise CatalogueError(f"{path}: a mapping of `schema: 1` and `entries` is expected")
    entries: list[Entry] = []
    problems: list[str] = []
    for number, item in enumerate(data["entries"]):
        try:
            entry = Entry.model_validate(item)
        except ValidationError as error:
            where = item.get("name", number) if isinstance(item, dict) else number
            for detail in error.errors(include_url=False, include_context=False):
                problems.append(f"{where}: {'.'.join(map(str, detail['loc']))}: {detail['msg']}")
            continue
        problems += [f"{entry.name}: {text}" for text in _problems(entry)]
        if entry.name in (other.name for other in entries):
            problems.append(f"{entry.name}: the name is taken by an earlier entry")
        entries.append(entry)
    if problems:
        raise CatalogueError(f"{path}:\n" + "\n".join(f"- {text}" for text in problems))
    return tuple(entries)


def concrete(entry: Entry, bundle: Bundle) -> list[tuple[str, tuple[Edit, ...]]]:
    """The entry's edits for this harness, as (label, edits), one a value; none where it does not
    apply: a component or setting that is there already, or a target that is not."""
    out = []
    for value in entry.values or (None,):
        edits = _edits(entry, bundle, value)
        if edits is not None:
            label = entry.name if value is None else f"{entry.name}={canonical(value)}"
            out.append((label, edits))
    return out


def holders(bundle: Bundle) -> dict[str, str]:
    """singleton group -> id of the component that holds it."""
    found = ((class_group(item, bundle.files), item.id) for item in bundle.components)
    return {group: id for group, id in found if group is not None}


def effective(component: Component, name: str) -> Any:
    """The parameter in effect: the manifest's, else a built-in class's default, else None."""
    if name in component.params:
        return thaw(component.params[name])
    if component.entrypoint is None or component.own_file is not None:
        return None
    module, _, cls_name = component.entrypoint.partition(":")
    cls = getattr(importlib.import_module(module), cls_name)
    if isinstance(cls, type) and issubclass(cls, Processor) and name in cls.model_fields:
        default = cls.model_fields[name].get_default(call_default_factory=True)
        return list(default) if isinstance(default, tuple) else default
    return None


def _edits(entry: Entry, bundle: Bundle, value: Any) -> tuple[Edit, ...] | None:
    groups = holders(bundle)
    records = []
    for template in entry.edits:
        record = _fill(template, value)
        if "group" in record:
            group = record.pop("group")
            if group not in groups:
                return None
            record["id"] = groups[group]
        records.append(record)
    edits = from_json(records)
    ids = {item.id for item in bundle.components}
    for edit in edits:
        match edit:
            case AddComponent(component):
                if component.id in ids or class_group(component, bundle.files) in groups:
                    return None
            case SetParam(id, name, wanted):
                if id not in ids or effective(bundle.component(id), name) == thaw(wanted):
                    return None
    return edits


def _fill(template: Any, value: Any) -> Any:
    if isinstance(template, Mapping):
        return {key: _fill(item, value) for key, item in template.items()}
    if isinstance(template, list | tuple):
        return [_fill(item, value) for item in template]
    return value if template == VALUE else template


def _problems(entry: Entry) -> Iterable[str]:
    if entry.kind not in EDIT_KINDS:
        yield f"unknown kind {entry.kind!r}{nearest(entry.kind, EDIT_KINDS)}"
    for name in entry.when:
        if name not in CATEGORIES:
            yield f"unknown failure category {name!r}{nearest(name, CATEGORIES)}"
    uses = canonical([thaw(item) for item in entry.edits]).find(f'"{VALUE}"') >= 0
    if uses != bool(entry.values):
        yield f"`values` and {VALUE} go together: give both or neither"
    sample = entry.values[0] if entry.values else None
    records = []
    for template in entry.edits:
        record = _fill(template, sample)
        if "group" in record:
            record["id"] = record.pop("group")
        records.append(record)
    try:
        from_json(records)
    except EditError as error:
        yield str(error)
