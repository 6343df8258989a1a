"""The built-in host tools by name, for one task directory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from harness.component import nearest
from harness.tools.confined import Confined
from harness.tools.files import EditFile, ReadFile, WriteFile
from harness.tools.python import Python
from harness.tools.registry import Tool, ToolRegistry
from harness.tools.search import Search
from harness.tools.shell import Shell

BUILT_IN: Mapping[str, Callable[[Confined], Tool]] = MappingProxyType(
    {
        Shell.name: Shell,
        Python.name: Python,
        ReadFile.name: lambda confined: ReadFile(confined.workspace),
        WriteFile.name: lambda confined: WriteFile(confined.workspace),
        EditFile.name: lambda confined: EditFile(confined.workspace),
        Search.name: lambda confined: Search(confined.workspace, confined),
    }
)


class UnknownTool(ValueError):
    """A name that no built-in tool has."""


def built_in(names: Iterable[str], confined: Confined) -> ToolRegistry:
    """A registry of the tools of these names. Raises UnknownTool with the nearest."""
    registry = ToolRegistry()
    for name in names:
        if name not in BUILT_IN:
            raise UnknownTool(f"there is no built-in tool {name!r}{nearest(name, BUILT_IN)}")
        registry.add(BUILT_IN[name](confined))
    return registry
