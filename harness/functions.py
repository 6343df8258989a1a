"""Function boundaries of a bundle's own code: each call with its arguments and result, size-capped.

The functions of an own file are wrapped when the file is compiled, so code that is not the bundle's
runs at its usual speed, and a bundle without own code pays nothing. Hook methods are left alone: the
pipeline records those calls itself. Calls made in threads of their own are not seen.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from time import perf_counter_ns
from types import CodeType
from typing import Any

from harness.events import HOOKS

FunctionRecord = tuple[str, str, str, int]
"""(function, arguments, result or `raised Type`, nanoseconds) of one call, made when it returns."""

MAX_VALUE = 120
"""Characters kept of one argument or result."""

MAX_ITEMS = 4
"""Items shown of one collection."""

DECORATOR = "__traced__"
_SINK: ContextVar[Callable[[FunctionRecord], None] | None] = ContextVar("sink", default=None)


@contextmanager
def into(sink: Callable[[FunctionRecord], None] | None) -> Iterator[None]:
    """Calls made inside go to `sink`; None: they go nowhere."""
    token = _SINK.set(sink)
    try:
        yield
    finally:
        _SINK.reset(token)


def instrument(content: bytes, filename: str) -> CodeType:
    """The module's code with every function but the hook methods wrapped.

    The module needs `traced` in its globals under the name DECORATOR. Raises what `compile` does.
    """
    tree = ast.parse(content, filename)
    _Wrap().visit(tree)
    return compile(ast.fix_missing_locations(tree), filename, "exec", dont_inherit=True)


class _Wrap(ast.NodeTransformer):
    def __init__(self) -> None:
        self.names: list[str] = []
        self.in_class = False

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self._inside(node, in_class=True)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        if not (self.in_class and node.name in HOOKS):
            label = ast.Constant(".".join([*self.names, node.name]))
            wrap = ast.Call(ast.Name(DECORATOR, ast.Load()), [label], [])
            # Innermost: `property`, `classmethod` and validators take the wrapped function. At the
            # function's own line: tracebacks into the decoration point there.
            node.decorator_list.append(ast.copy_location(wrap, node))
        return self._inside(node, in_class=False)

    def _inside(self, node: Any, in_class: bool) -> ast.AST:
        before = self.in_class
        self.names.append(node.name)
        self.in_class = in_class
        self.generic_visit(node)
        self.names.pop()
        self.in_class = before
        return node  # type: ignore[no-any-return]


def traced(label: str) -> Callable[[Any], Any]:
    """The decorator of one function; async generators are left as they are."""

    def decorate(function: Any) -> Any:
        wrapper: Any
        if inspect.isasyncgenfunction(function):
            return function
        if inspect.iscoroutinefunction(function):

            async def wrapper(*args: Any, **named: Any) -> Any:
                with _recorded(label, args, named) as answer:
                    answer.value = await function(*args, **named)
                return answer.value

        elif inspect.isgeneratorfunction(function):

            def wrapper(*args: Any, **named: Any) -> Any:
                with _recorded(label, args, named) as answer:
                    answer.value = yield from function(*args, **named)
                return answer.value

        else:

            def wrapper(*args: Any, **named: Any) -> Any:
                with _recorded(label, args, named) as answer:
                    answer.value = function(*args, **named)
                return answer.value

        return functools.wraps(function)(wrapper)

    return decorate


class _recorded:
    """Records one call when it ends."""

    __slots__ = ("args", "label", "named", "sink", "start", "value")

    def __init__(self, label: str, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        self.sink = _SINK.get()
        self.label = label
        self.value: Any = None
        # Before the call: it may change what it was given.
        self.args = _arguments(args, named) if self.sink else ""
        self.start = perf_counter_ns()

    def __enter__(self) -> _recorded:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self.sink:
            spent = perf_counter_ns() - self.start
            said = short(self.value) if kind is None else f"raised {kind.__name__}"
            self.sink((self.label, self.args, said, spent))


def _arguments(args: tuple[Any, ...], named: Mapping[str, Any]) -> str:
    parts = [short(value) for value in args[:MAX_ITEMS]]
    parts += [f"{name}={short(value)}" for name, value in list(named.items())[:MAX_ITEMS]]
    if len(args) > MAX_ITEMS or len(named) > MAX_ITEMS:
        parts.append("…")
    return ", ".join(parts)


def short(value: object, depth: int = 0) -> str:
    """A short text of a value; an object is named by its type (its own `__repr__` is not run)."""
    kind = type(value)
    if kind is str:
        assert isinstance(value, str)
        text = repr(value[:MAX_VALUE]) + ("…" if len(value) > MAX_VALUE else "")
        return text if len(text) <= MAX_VALUE + 2 else text[:MAX_VALUE] + "…"
    if value is None or kind is bool or kind is float:
        return repr(value)
    if kind is int:
        assert isinstance(value, int)
        bits = value.bit_length()
        return repr(value) if bits <= 256 else f"<int of {bits} bits>"
    if kind in (list, tuple, set, frozenset) or isinstance(value, dict):
        return _collection(value, depth)
    if kind is bytes:
        assert isinstance(value, bytes)
        return f"<{len(value)} bytes>"
    return f"<{kind.__name__[:MAX_VALUE]}>"


def _collection(value: Any, depth: int) -> str:
    name = "dict" if isinstance(value, dict) else type(value).__name__
    if depth >= 2:
        return f"<{name} of {len(value)}>"
    if isinstance(value, dict):
        shown = [
            f"{short(k, depth + 1)}: {short(v, depth + 1)}"
            for k, v in list(value.items())[:MAX_ITEMS]
        ]
    else:
        shown = [short(item, depth + 1) for item in list(value)[:MAX_ITEMS]]
    more = f", … {len(value)} in all" if len(value) > MAX_ITEMS else ""
    text = f"{name}({', '.join(shown)}{more})"
    return text if len(text) <= 3 * MAX_VALUE else text[: 3 * MAX_VALUE] + "…"
