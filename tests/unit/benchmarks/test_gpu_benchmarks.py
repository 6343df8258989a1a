"""The GPU measurements as far as they go without a GPU: arguments and settings are valid."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

GPU = Path(__file__).parents[3] / "benchmarks" / "gpu"
MEASUREMENTS = runpy.run_path(str(GPU / "run_all.py"))["MEASUREMENTS"]


def test_all_of_them_fit_in_fifteen_minutes() -> None:
    assert sum(measurement.limit_s for measurement in MEASUREMENTS.values()) <= 15 * 60


@pytest.mark.parametrize("name", sorted(MEASUREMENTS))
def test_a_dry_run_says_what_would_be_measured(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script, *arguments = MEASUREMENTS[name].command
    path = (GPU / script).resolve()
    monkeypatch.syspath_prepend(str(path.parent))
    monkeypatch.setattr(sys, "argv", [str(path), *arguments, "--dry-run"])
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out.startswith("would ")


def test_each_of_them_is_in_the_page() -> None:
    page = (GPU / "README.md").read_text()
    for name, measurement in MEASUREMENTS.items():
        assert f"| `{name}` |" in page
        assert f"| {measurement.limit_s} s |" in page
