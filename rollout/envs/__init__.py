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


def _python(spec: str, **options: Any) -> Environment:
    from rollout.envs.factory import python_env

    return python_env(spec, **options)


def _gymnasium(spec: str, **options: Any) -> Environment:
    from rollout.envs.gymnasium import gymnasium_env

    return gymnasium_env(spec, **options)


ENVIRONMENTS: Mapping[str, Callable[..., Environment]] = MappingProxyType(
    {"household": _household, "toolbox": _toolbox}
)
"""Name -> factory. A factory imports its environment when called: optional ones stay optional."""

LOADERS: Mapping[str, Callable[..., Environment]] = MappingProxyType(
    {"python": _python, "gymnasium": _gymnasium}
)
"""Prefix of a spec (`python:MODULE:FACTORY`, `gymnasium:ID`) -> what makes its environment."""


def make_env(spec: str, **options: Any) -> Environment:
    """The environment that `spec` names, with its own options.

    Raises UnknownEnvironment, naming the nearest known name."""
    prefix, sign, _ = spec.partition(":")
    if sign and prefix in LOADERS:
        return LOADERS[prefix](spec, **options)
    factory = ENVIRONMENTS.get(spec)
    if factory is None:
        near = difflib.get_close_matches(spec, ENVIRONMENTS, n=1, cutoff=0.0)
        raise UnknownEnvironment(
            f"environment {spec!r} is unknown; did you mean {near[0]!r}? "
            f"Known: {', '.join(sorted(ENVIRONMENTS))}, python:MODULE:FACTORY, gymnasium:ID"
        )
    return factory(**options)
