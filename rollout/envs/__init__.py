"""Environments, one file or package each."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from rollout.envs.base import Environment


class UnknownEnvironment(ValueError):
    """A spec that names no environment."""


def _household(**options: Any) -> Environment:
    from rollout.envs.household import HouseholdEnv

    return HouseholdEnv(**options)


def _toolbox(**options: Any) -> Environment:
    from rollout.envs.toolbox import ToolboxEnv

    return ToolboxEnv(**options)


ENVIRONMENTS: Mapping[str, Callable[..., Environment]] = MappingProxyType(
    {"household": _household, "toolbox": _toolbox}
)
"""Name -> factory. A factory imports its environment when called: optional ones stay optional."""


def make_env(spec: str, **options: Any) -> Environment:
    """The environment that `spec` names, with its own options.

    Raises UnknownEnvironment, naming the nearest known name."""
    factory = ENVIRONMENTS.get(spec)
    if factory is None:
        near = difflib.get_close_matches(spec, ENVIRONMENTS, n=1, cutoff=0.0)
        raise UnknownEnvironment(
            f"environment {spec!r} is unknown; did you mean {near[0]!r}? "
            f"Known: {', '.join(sorted(ENVIRONMENTS))}"
        )
    return factory(**options)
