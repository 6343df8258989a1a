"""Immutable JSON values in one normal form, so that equal settings always hash alike."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

K = TypeVar("K")
V = TypeVar("V")

MAX_DEPTH = 32
_SURROGATE = re.compile("[\ud800-\udfff]")
INT64 = 2**63


class FrozenMutation(TypeError):
    """Something tried to change a frozen mapping in place."""


class FrozenDict(dict[K, V]):
    """A dict that cannot change: hashable, picklable, and still a dict for JSON and pydantic."""

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise FrozenMutation("this mapping is frozen: build a changed copy of it")

    __setitem__ = __delitem__ = __ior__ = _refuse  # type: ignore[assignment]
    clear = pop = popitem = setdefault = update = _refuse  # type: ignore[assignment]

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[type, tuple[dict[K, V]]]:
        return FrozenDict, (dict(self),)


def freeze(value: Any, where: str, problems: list[str], depth: int = 0) -> Any:
    """`value` as an immutable JSON value in normal form; what is not JSON is added to `problems`.

    Normal form: mappings with string keys, sequences as tuples, an integral float as an int
    (1.0 is 1, -0.0 is 0), text that UTF-8 can hold. NaN, infinities, integers past 64 bits and
    nesting past MAX_DEPTH are refused. `where` names the value in the messages.
    """
    if depth > MAX_DEPTH:
        problems.append(f"{where}: nested more than {MAX_DEPTH} deep; flatten it")
        return None
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        if not _utf8(value):
            problems.append(
                f"{where}: {value[:40]!r} holds a lone surrogate; use valid Unicode text"
            )
        return str(value)
    if isinstance(value, int):
        if not -INT64 <= value < INT64:
            problems.append(f"{where}: an integer past 64 bits; write it as a float or as text")
            return None
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            problems.append(f"{where}: {value} is not a JSON number; use a finite one")
            return None
        return int(value) if value.is_integer() and -INT64 <= value < INT64 else float(value)
    if isinstance(value, Mapping):
        frozen: dict[str, Any] = {}
        for key, item in value.items():
            if not isinstance(key, str) or not _utf8(key):
                problems.append(f"{where}: key {key!r} is not a text; quote it")
                continue
            frozen[key] = freeze(item, f"{where}.{key}", problems, depth + 1)
        return FrozenDict(frozen)
    if isinstance(value, list | tuple):
        return tuple(
            freeze(item, f"{where}[{i}]", problems, depth + 1) for i, item in enumerate(value)
        )
    problems.append(
        f"{where}: a {type(value).__name__} is not a JSON value; quote it, or use text, a number, "
        "true/false, null, a list or a mapping"
    )
    return None


def thaw(value: Any) -> Any:
    """A fresh, mutable copy of a frozen value: plain dicts and lists."""
    if isinstance(value, Mapping):
        return {key: thaw(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [thaw(item) for item in value]
    return value


def canonical(value: Any) -> str:
    """The one JSON text of a frozen value: sorted keys, no spaces, shortest floats."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def _utf8(text: str) -> bool:
    return text.isascii() or not _SURROGATE.search(text)
