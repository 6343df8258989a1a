"""One sandbox a level for all tests here."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from sandbox_bench import Bench

from harness.sandbox import Sandbox
from harness.sandbox.containment import SandboxUnavailable, plans, probe


@pytest.fixture(scope="session")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="session", params=["bubblewrap", "landlock"])
def bench(request: pytest.FixtureRequest, runner: asyncio.Runner) -> Iterator[Bench]:
    sandbox = Sandbox(request.param)
    try:
        plans(request.param, probe(), sandbox.slots)
        runner.run(sandbox.start())
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    yield Bench(sandbox, runner)
    runner.run(sandbox.close())
