"""Directories of the user that are called like a package hide none of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_a_directory_called_harness_beside_the_user_hides_nothing(tmp_path: Path) -> None:
    for name in ("coevo", "harness", "rollout", "trainer"):
        (tmp_path / name).mkdir()  # `coevo export harness -o harness` makes one
    code = (
        "import coevo, rollout, trainer\n"
        "from harness.sandbox.containment import import_paths\n"
        "print(coevo.__version__, import_paths()[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[1] == str(ROOT)
