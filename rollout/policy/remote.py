"""Calls of engine actors: whatever ends one early is an EngineError that says so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from ray.exceptions import RayActorError, RayError, RayTaskError

from rollout.policy.base import EngineDied, EngineError

T = TypeVar("T")


async def call(reference: Awaitable[T], timeout_s: float | None, engine: str, what: str) -> T:
    """Await a remote call. The engine's own EngineError and ValueError are raised as they are."""
    try:
        # Not wait_for: up to Python 3.11 it may swallow a cancellation, such as Ctrl-C.
        async with asyncio.timeout(timeout_s):
            return await reference
    except TimeoutError as error:
        raise EngineError(
            f"{engine}: {what} gave no answer in {timeout_s:g} s; a start may wait for CPUs or "
            "GPUs that the Ray cluster does not have free"
        ) from error
    except RayTaskError as error:
        if isinstance(error.cause, EngineError | ValueError):
            raise error.cause from None
        raise EngineError(f"{engine}: {what} failed: {error}") from error
    except RayActorError as error:
        raise EngineDied(
            f"{engine}: its process died during {what} ({error}); start a new engine and publish "
            "the current weights to it"
        ) from error
    except RayError as error:
        raise EngineError(f"{engine}: {what} failed: {error}") from error
