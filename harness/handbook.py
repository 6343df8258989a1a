"""The handbook of a bundle: each behaviour, bound to the functions that carry it out.

Source: RiseHarness (handbook). A component of kind `handbook` names a YAML file:

    schema: 1
    behaviours:
      - name: hint
        duty: tells the model what to look at first
        trigger: before_model of step 0
        functions: [processors/hint.py:Hint.before_model, processors/hint.py:Hint.line]
        exit: none

A function is `path/of/file.py:Qualified.name` for a file of the bundle and `harness.module:Name` for
a built-in. `check` is called before a bundle is published: a handbook that names what is not there,
or leaves code of the bundle out, is refused. Files are parsed, never run.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.bundle import Bundle, BundleError
from harness.component import Component, nearest

KIND = "handbook"


class HandbookError(BundleError):
    """A handbook that does not fit its bundle. `problems`: every reason at once."""


class Behaviour(BaseModel):
    """One thing that the harness does.

    duty: what. trigger: when. functions: what carries it out. exit: when it ends, or what ends it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    duty: str = Field(min_length=1)
    trigger: str = Field(min_length=1)
    functions: tuple[str, ...] = Field(min_length=1)
    exit: str = Field(min_length=1)


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    # Named as in the file; pydantic's own attribute of that name is not used here.
    version: Literal[1] = Field(alias="schema")
    behaviours: tuple[Behaviour, ...]


@dataclass(frozen=True, slots=True)
class Position:
    """Where a function or class stands: lines `first` to `last` of `path`, counted from 1."""

    path: str
    first: int
    last: int


def read(bundle: Bundle) -> tuple[Behaviour, ...]:
    """The behaviours of the bundle's handbook; () where it has none. Raises HandbookError."""
    holders = [item for item in bundle.components if item.kind == KIND]
    if not holders:
        return ()
    if len(holders) > 1:
        ids = ", ".join(repr(item.id) for item in holders)
        raise HandbookError([f"components {ids} are all handbooks; keep one"], "handbook")
    return _parse(bundle, holders[0])


def check(bundle: Bundle) -> dict[str, tuple[Position, ...]]:
    """behaviour -> positions of its functions; {} for a bundle without a handbook.

    Raises HandbookError with every problem: a function that is not there, a behaviour named twice,
    a component with code of its own that no behaviour mentions.
    """
    behaviours = read(bundle)
    problems: list[str] = []
    out: dict[str, tuple[Position, ...]] = {}
    for item in behaviours:
        if item.name in out:
            problems.append(f"behaviour {item.name!r} is there twice; rename or merge them")
        found = (_locate(bundle, f"behaviour {item.name!r}", f, problems) for f in item.functions)
        out[item.name] = tuple(position for position in found if position is not None)
    if behaviours:
        named = {function for item in behaviours for function in item.functions}
        for component in bundle.components:
            start = component.entrypoint
            if component.own_file is None or start is None:
                continue
            if not any(name == start or name.startswith(start + ".") for name in named):
                problems.append(
                    f"component {component.id!r}: no behaviour mentions its code ({start}); add one"
                )
    if problems:
        raise HandbookError(problems, "handbook")
    return out


def _parse(bundle: Bundle, component: Component) -> tuple[Behaviour, ...]:
    path = component.path
    if path is None or path not in bundle.files:
        raise HandbookError(
            [f"component {component.id!r}: path {path!r} must name the handbook's file"], "handbook"
        )
    try:
        raw = yaml.safe_load(bundle.files[path].content.decode("utf-8"))
        return _File.model_validate(raw).behaviours
    except ValidationError as error:
        problems = (
            f"{path}: {'.'.join(map(str, item['loc'])) or 'the file'}: {item['msg']}"
            for item in error.errors(include_url=False, include_context=False)
        )
        raise HandbookError(problems, "handbook") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # ValueError: no UTF-8, or a scalar like 2024-13-45 that YAML takes for a date.
        text = " ".join(str(error).split())
        raise HandbookError([f"{path}: not YAML: {text}"], "handbook") from error


def _locate(bundle: Bundle, where: str, function: str, problems: list[str]) -> Position | None:
    path, found, name = function.partition(":")
    if not found or not name:
        problems.append(f"{where}: {function!r} is no function; write file.py:Qualified.name")
        return None
    if path.endswith(".py"):
        if path not in bundle.files:
            problems.append(f"{where}: {path!r} is not in the bundle{nearest(path, bundle.files)}")
            return None
        positions = _positions(path, bundle.files[path].content)
    else:
        source = _source(path)
        if source is None:
            problems.append(f"{where}: there is no built-in module {path!r}")
            return None
        positions = _positions(path, source.read_bytes())
    if name not in positions:
        problems.append(f"{where}: {path} has no {name!r}{nearest(name, positions)}")
        return None
    return positions[name]


def _source(module: str) -> Path | None:
    """The file of a built-in module, found without importing it."""
    parts = module.split(".")
    if parts[0] != "harness" or not all(part.isidentifier() for part in parts):
        return None
    package = importlib.util.find_spec("harness")
    for folder in (package.submodule_search_locations or ()) if package else ():
        path = Path(folder, *parts[1:]).with_suffix(".py")
        if path.is_file():
            return path
    return None


@lru_cache(maxsize=256)
def _positions(path: str, content: bytes) -> Mapping[str, Position]:
    """Qualified name -> position, of every function and class; {} for what is no Python."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    out: dict[str, Position] = {}
    left: list[tuple[ast.AST, str]] = [(tree, "")]
    while left:  # no recursion: a long expression nests deeper than Python's stack
        node, prefix = left.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{prefix}{node.name}"
            out[name] = Position(path, node.lineno, node.end_lineno or node.lineno)
            prefix = f"{name}."
        left.extend((child, prefix) for child in reversed(list(ast.iter_child_nodes(node))))
    return out
