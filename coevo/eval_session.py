"""Runs a measurement over engines of its own, and tells how it failed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console

from coevo.cli import EXIT_STOPPED
from coevo.config import RunConfig
from coevo.errors import InputError

if TYPE_CHECKING:
    from coevo.stack import Stack

T = TypeVar("T")


def run_measured(
    config: RunConfig,
    model: Path | None,
    console: Console,
    work: Callable[[Stack], Coroutine[Any, Any, T]],
    after: str,
) -> T:
    """The result of `work` over engines for `config` and M_0 in `model`. after: said behind the
    reason where it fails; the command then ends with the exit code of the reason."""
    try:
        from coevo.session import SessionError, run_over
    except ImportError as error:
        raise InputError(
            f"{error}. The engines are not installed: run `make install`, or "
            "`pip install 'coevo[cpu]'` (`coevo[gpu]` on CUDA machines)"
        ) from error
    try:
        return run_over(config, model, console, work)
    except KeyboardInterrupt:
        why, code = "interrupted", EXIT_STOPPED
    except SessionError as error:
        why, code = str(error), error.code
    print(f"\ncoevo: {why}\n{after}", file=sys.stderr)
    raise SystemExit(code)
