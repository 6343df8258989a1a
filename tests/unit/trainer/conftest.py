"""The tiny model of the trainer's tests, made once a session."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tiny_trainer import save_tiny_model

os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))
