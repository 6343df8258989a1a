"""Edits as JSON, for the lineage, for manifests of candidates, and for models that propose them."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

from harness.bundle import File, component_from_record
from harness.component import nearest
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
)
from harness.jsonvalue import thaw


def to_json(edits: Edit | Iterable[Edit]) -> list[dict[str, Any]]:
    """The edits as JSON values; file content as text where it is UTF-8, else as base64."""
    return [_edit_to_json(edit) for edit in ((edits,) if isinstance(edits, Edit) else edits)]


def from_json(records: Any) -> tuple[Edit, ...]:
    """The edits of `to_json`. Raises EditError that names the position and every problem of it."""
    if not isinstance(records, list | tuple):
        raise EditError(f"edits must be a list of mappings, not {type(records).__name__}")
    return tuple(_edit_from_json(record, at) for at, record in enumerate(records))


def _edit_to_json(edit: Edit) -> dict[str, Any]:
    match edit:
        case AddComponent(component):
            return {"op": "add_component", "component": thaw(component.record())}
        case ReplaceComponent(component, target):
            out = {"op": "replace_component", "component": thaw(component.record())}
            return out if target is None else {**out, "target": target}
        case RemoveComponent(id):
            return {"op": "remove_component", "id": id}
        case SetParam(id, name, value):
            tail = {"unset": True} if value is UNSET else {"value": thaw(value)}
            return {"op": "set_param", "id": id, "name": name, **tail}
        case PutFile(path, file):
            try:
                body = {"text": file.content.decode("utf-8")}
            except UnicodeDecodeError:
                body = {"base64": base64.b64encode(file.content).decode("ascii")}
            return {"op": "put_file", "path": path, **body, "executable": file.executable}
        case DeleteFile(path):
            return {"op": "delete_file", "path": path}


# op -> (keys that must be there, keys that may be there)
_KEYS: dict[str, tuple[set[str], set[str]]] = {
    "add_component": ({"component"}, set()),
    "replace_component": ({"component"}, {"target"}),
    "remove_component": ({"id"}, set()),
    "set_param": ({"id", "name"}, {"value", "unset"}),
    "put_file": ({"path"}, {"text", "base64", "executable"}),
    "delete_file": ({"path"}, set()),
}
_TYPES = {"component": dict, "unset": bool, "executable": bool}


def _edit_from_json(record: Any, at: int) -> Edit:
    where = f"edits[{at}]"
    op = record.get("op") if isinstance(record, dict) else None
    if op not in _KEYS:
        raise EditError(f"{where}: op {op!r} is unknown{nearest(op, _KEYS)}")
    must, may = _KEYS[op]
    given = set(record) - {"op"}
    problems = [f"{key!r} is missing" for key in sorted(must - given)]
    problems += [f"{key!r} is unknown{nearest(key, must | may)}" for key in given - must - may]
    for key in sorted((given & (must | may)) - {"value"}):
        expected = _TYPES.get(key, str)
        if not isinstance(record[key], expected):
            problems.append(f"{key} {record[key]!r} must be a {expected.__name__}")
    for pair in ({"value", "unset"}, {"text", "base64"}):
        if pair <= may and len(pair & given) != 1:
            problems.append(f"exactly one of {' and '.join(map(repr, sorted(pair)))} must be there")
    if record.get("unset") is False:
        problems.append("unset is true where it is there at all; leave it out")
    if problems:
        raise EditError(f"{where} ({op}): {'; '.join(problems)}")
    try:
        match op:
            case "add_component":
                return AddComponent(component_from_record(record["component"]))
            case "replace_component":
                component = component_from_record(record["component"])
                return ReplaceComponent(component, record.get("target"))
            case "remove_component":
                return RemoveComponent(record["id"])
            case "set_param":
                value = UNSET if "unset" in record else record["value"]
                return SetParam(record["id"], record["name"], value)
            case "put_file":
                if "text" in record:
                    content = record["text"].encode("utf-8")
                else:
                    content = base64.b64decode(record["base64"], validate=True)
                return PutFile(record["path"], File(content, record.get("executable", False)))
            case _:
                return DeleteFile(record["path"])
    except ValueError as error:  # a refused component or value, bad base64, a lone surrogate
        raise EditError(f"{where} ({op}): {error}") from error
