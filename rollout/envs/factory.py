"""`python:MODULE:FACTORY` and `python:FILE.py:FACTORY`: an environment of the user's own code."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from rollout.envs.base import Environment
from rollout.envs.text import EnvironmentSpecError, TextEnv, TextEnvironment, TextTask

PREFIX = "python:"


def anchored(spec: str, base: Path) -> str:
    """`python:FILE.py:FACTORY` with the file's whole path, taken from `base`; any other spec as it is."""
    name, sign, function = spec.removeprefix(PREFIX).rpartition(":")
    if not spec.startswith(PREFIX) or not sign or not (base / name).is_file():
        return spec
    return f"{PREFIX}{(base / name).resolve()}:{function}"


def python_env(spec: str, **options: Any) -> Environment:
    """What the factory returns: an Environment as it is, a TextEnvironment made into one.

    Raises EnvironmentSpecError for a spec that names no factory or a return value that is neither."""
    made = inner_env(spec, **options)
    if hasattr(made, "thread_safe"):
        whole: Environment = made
        if not whole.thread_safe:
            raise EnvironmentSpecError(
                f"environment {spec}: thread_safe is false; sessions live side by side in one "
                "process. Write it as a TextEnvironment with sessions = 'process'"
            )
        return whole
    text: TextEnvironment = made
    if getattr(made, "sessions", None) != "process":
        return TextEnv(text, spec)
    from rollout.envs.process import ProcessSession

    def open_session(task: TextTask, seed: int) -> ProcessSession:
        timeout = float(getattr(made, "step_timeout_s", 60.0))
        return ProcessSession(spec, options, task, seed, timeout)

    return TextEnv(text, spec, open_session)


def inner_env(spec: str, **options: Any) -> Any:
    """The factory's own return value."""
    name, sign, function = spec.removeprefix(PREFIX).rpartition(":")
    if not sign or not name or not function:
        raise EnvironmentSpecError(
            f"environment {spec!r}: expected python:MODULE:FACTORY or python:FILE.py:FACTORY, for "
            "example python:my_env.py:make"
        )
    module = _from_file(Path(name)) if name.endswith(".py") else _from_module(name)
    factory = getattr(module, function, None)
    if not callable(factory):
        raise EnvironmentSpecError(
            f"environment {spec}: {name} has no function {function!r}; functions and classes there: "
            + (", ".join(k for k, v in vars(module).items() if _own(v, module)) or "none")
        )
    return factory(**options)


def _own(value: Any, module: ModuleType) -> bool:
    return callable(value) and getattr(value, "__module__", None) == module.__name__


def _from_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise  # of what the module itself imports
        raise EnvironmentSpecError(
            f"environment: there is no module {name!r}; install it where every worker runs, put its "
            "directory on PYTHONPATH, or name the file: python:PATH/my_env.py:FACTORY"
        ) from error


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise EnvironmentSpecError(
            f"environment: there is no file {path} (from {Path.cwd()}); a path in a configuration is "
            "relative to the configuration's file"
        )
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    name = f"coevo_environment_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        found.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
