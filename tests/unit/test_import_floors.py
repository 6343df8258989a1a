"""Who may import whom: harness ← rollout ← trainer ← coevo, and the ground floor stays light."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FLOORS = ("harness", "rollout", "trainer", "coevo")
HEAVY = ("torch", "ray", "vllm", "deepspeed", "transformers", "trl")


def imports(path: Path) -> set[str]:
    """Top-level names of every module that the file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module)
    return found


def modules(package: str) -> dict[str, set[str]]:
    return {
        ".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): imports(p)
        for p in (ROOT / package).rglob("*.py")
    }


@pytest.mark.parametrize("floor", FLOORS)
def test_nothing_imports_upward(floor: str) -> None:
    above = FLOORS[FLOORS.index(floor) + 1 :]
    bad = {
        f"{name} imports {target}"
        for name, targets in modules(floor).items()
        for target in targets
        if target.split(".")[0] in above
    }
    assert not bad


def test_the_harness_imports_no_engine() -> None:
    bad = {
        f"{name} imports {target}"
        for name, targets in modules("harness").items()
        for target in targets
        if target.split(".")[0] in HEAVY
    }
    assert not bad


def test_no_module_imports_itself_in_a_circle() -> None:
    """Over module-level imports: those inside functions run later and cannot deadlock."""
    paths = {
        ".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): p
        for floor in FLOORS
        for p in (ROOT / floor).rglob("*.py")
    }
    graph: dict[str, set[str]] = {}
    for name, path in paths.items():
        targets: set[str] = set()
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                # `from package import module` needs the module, not what the package exports.
                under = {f"{node.module}.{alias.name}" for alias in node.names}
                targets |= (under & paths.keys()) or {node.module}
            elif isinstance(node, ast.Import):
                targets |= {alias.name for alias in node.names}
        graph[name] = targets
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail, name))
        if name in done:
            return
        for target in graph[name] & graph.keys():
            visit(target, (*trail, name))
        done.add(name)

    for name in graph:
        visit(name, ())
