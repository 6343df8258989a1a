"""Bundles that do not make a harness, or whose processors return no JSON: named, and no more."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sandbox_bench import Bench, at

from harness.bundle import Bundle, BundleError
from harness.component import Component, File

PLAIN = File(
    b"from harness.processor import Processor\n"
    b"class Own(Processor):\n"
    b"    def step_start(self, event, ctx): yield event\n"
)


def pair(a: dict[str, object], b: dict[str, object]) -> Bundle:
    """Two processors with these fields besides."""
    parts = (
        Component("a", "processor", "own.py:Own", **a),  # type: ignore[arg-type]
        Component("b", "processor", "own.py:Own", **b),  # type: ignore[arg-type]
    )
    return Bundle(parts, {"own.py": PLAIN})


CIRCLE = pair({"after": ("b",)}, {"after": ("a",)})
RIVALS = pair({"group": "guard"}, {"group": "guard"})


@pytest.mark.parametrize(
    ("bundle", "status", "reason"),
    [
        (CIRCLE, "harness_error", "`after` runs in a circle"),
        (RIVALS, "harness_error", "singleton group 'guard'"),
        (
            at("before_tool", "yield dataclasses.replace(event, input={'n': float('nan')})"),
            "contract_violation",
            "nan is not a JSON number",
        ),
        (
            at("before_tool", "yield dataclasses.replace(event, input={'n': object()})"),
            "contract_violation",
            "object is not a JSON value",
        ),
        (
            at("before_tool", "yield dataclasses.replace(event, input={'n': b'\\xff'})"),
            "contract_violation",
            "bytes is not a JSON value",
        ),
        (
            at("after_model", "yield dataclasses.replace(event, content='\\udcff')"),
            "contract_violation",
            "no valid text",
        ),
    ],
)
def test_it_ends_as_a_status_that_says_why(
    bench: Bench, bundle: Bundle, status: str, reason: str
) -> None:
    ran = bench.episode(bundle)
    assert ran.result.status == status, ran.result
    assert reason in ran.result.reason
    bench.still_works()


def test_a_directory_that_is_no_bundle_is_refused_before_anything_runs(
    bench: Bench, tmp_path: Path
) -> None:
    def directory(name: str, components: str = "[]") -> Path:
        root = tmp_path / name
        root.mkdir()
        (root / "harness.yaml").write_text(f"schema: 1\ncomponents: {components}\n")
        return root

    linked, large, twice = directory("linked"), directory("large"), directory("twice")
    os.symlink("/etc/passwd", linked / "link.md")
    (large / "large.md").write_bytes(b"x" * (2 << 20))
    for name in ("A.md", "a.md"):
        (twice / name).write_text(name)
    outside = directory("outside", "[{id: x, kind: files, path: ../x}]")
    strange = directory("strange", "[{id: x, kind: spell}]")
    for root, named in (
        (linked, "link.md"),
        (large, "large.md"),
        (twice, "collides"),
        (outside, "'../x'"),
        (strange, "unknown kind 'spell'"),
    ):
        with pytest.raises(BundleError, match=named):
            bench.episode(root)  # type: ignore[arg-type]
    bench.still_works()
