"""No deadline and no order of things reads the wall clock, which may jump: only records do."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WALL = {
    ("time", name) for name in ("time", "time_ns", "ctime", "strftime", "localtime", "gmtime")
} | {("datetime", name) for name in ("now", "utcnow", "today")}
RECORDS = {
    "coevo/events.py": "times of events",
    "coevo/integrity.py": "names of directories of damaged files",
    "coevo/metrics.py": "times in TensorBoard's files",
    "coevo/rundir.py": "since when a run is held",
    "coevo/sinks.py": "times of what trackers show",
}
"""Modules that may read it, and what for: the value is shown, never waited for."""


def readers() -> Iterator[str]:
    for package in ("harness", "rollout", "trainer", "coevo"):
        for file in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if (
                    isinstance(node, ast.Attribute)
                    and isinstance(node.value, ast.Name)
                    and (node.value.id, node.attr) in WALL
                ):
                    yield str(file.relative_to(ROOT))


def test_only_records_read_the_wall_clock() -> None:
    assert set(readers()) == set(RECORDS)
