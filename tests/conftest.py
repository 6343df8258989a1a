"""Puts this directory on the path, so that tests of several packages share its helper modules."""

from pathlib import Path

import pytest
from hypothesis import settings

# A deadline a case is a timed assertion, and a loaded machine breaks it.
settings.register_profile("coevo", deadline=None)
settings.load_profile("coevo")

LONGEST_FIRST = ("e2e", "slurm", "integration")
"""Folders of tests by what a file of theirs takes; unit tests come last."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shared out over processes, the long files come first and the short ones fill what is left.

    The other way round one process would be alone with the last long file for minutes.
    """
    if not hasattr(config, "workerinput"):
        return
    slow = {item.path for item in items if item.get_closest_marker("slow")}

    def rank(item: pytest.Item) -> int:
        folder = item.path.relative_to(Path(__file__).parent).parts[0]
        if folder in LONGEST_FIRST:
            return LONGEST_FIRST.index(folder)
        return len(LONGEST_FIRST) + (item.path not in slow)

    items.sort(key=rank)
