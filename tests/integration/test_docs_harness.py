"""docs/harness.md is true: its commands run, in order, and print what it says they print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.build import build
from harness.bundle import Bundle
from harness.component import Component
from harness.sandbox.containment import SandboxUnavailable, plans, probe

PAGE = Path(__file__).parents[2] / "docs" / "harness.md"
_BLOCK = re.compile(r"^```(bash|text)\n(.*?)^```$", re.S | re.M)
SHELL = f"""
set -euo pipefail
coevo() {{ '{sys.executable}' -m coevo.cli "$@"; }}
python() {{ '{sys.executable}' "$@"; }}
"""


def blocks() -> list[tuple[str, str | None]]:
    """(commands, the output that follows them or None) in the page's order."""
    found = _BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    out: list[tuple[str, str | None]] = []
    for language, text in found:
        if language == "bash":
            out.append((text, None))
        else:
            assert out, "an output without commands"
            assert out[-1][1] is None, f"two outputs for one block:\n{text}"
            out[-1] = (out[-1][0], text)
    return out


def matches(printed: str, expected: str) -> bool:
    """`…` stands for any text: alone on its line for any lines."""
    parts = []
    for line in expected.rstrip("\n").split("\n"):
        if line == "…":
            parts.append(r"(?:.*\n)*?")
        else:
            parts.append(".*?".join(map(re.escape, line.split("…"))) + r"[^\S\n]*\n")
    return re.fullmatch("".join(parts), printed.rstrip("\n") + "\n") is not None


def test_the_commands_of_the_page_print_what_it_says(tmp_path: Path) -> None:
    try:
        plans("auto", probe(), 1)
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    examples = blocks()
    assert len(examples) >= 8
    for commands, expected in examples:
        done = subprocess.run(
            ["bash", "-c", SHELL + commands],
            cwd=tmp_path,
            env={**os.environ, "COLUMNS": "200", "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{commands}\n{done.stdout}{done.stderr}"
        if expected is not None:
            assert matches(done.stdout, expected), f"{commands}\nprinted:\n{done.stdout}"


def test_every_part_of_the_page_is_there_with_the_kind_it_says() -> None:
    rows = re.findall(r"^\| (harness\.\S+:\w+) \| (\w+) \| (D\d)", PAGE.read_text(), re.M)
    required = {"harness.processors.trace_mark:TraceMark": {"marks": {"a": "b"}}}
    for entrypoint, kind, dimension in rows:
        part = Component("part", kind, entrypoint, required.get(entrypoint, {}))
        (bound,) = build(Bundle((part,)), allow_own_code=False)
        assert type(bound.processor).kind == kind
        assert type(bound.processor).dimension == dimension
    folder = PAGE.parents[1] / "harness" / "processors"
    defined = {
        f"harness.processors.{path.stem}:{name}"
        for path in folder.glob("*.py")
        for name in re.findall(r"^class (\w+)\(Processor\):", path.read_text(), re.M)
    }
    assert defined == {entrypoint for entrypoint, _, _ in rows}
