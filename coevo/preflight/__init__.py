"""What can be known to fail is refused before any engine starts or any token is paid."""

from __future__ import annotations

from coevo.base_model import model_directory
from coevo.config import ConfigError, RunConfig
from coevo.evolution_setup import set_up
from coevo.model_shape import shape_of_architecture
from coevo.preflight.checks import Check, failures
from coevo.preflight.machine import machine_checks, machine_of
from coevo.preflight.model import examine
from coevo.rollouts import TaskSource
from coevo.rundir import RunDir
from harness.build import build, missing_tools
from harness.bundle import load
from harness.evolve.llm.transport import Endpoint
from harness.evolve.recipe import RecipeError


def preflight(config: RunConfig) -> list[Check]:
    """What every run is checked for before it starts; the checks that are not failures.

    Raises ConfigError, RecipeError, BundleError or ModelError with every reason of the first kind
    found."""
    check_config(config)
    checks = quick_checks(config)
    if problems := failures(checks):
        raise ConfigError(config.name, problems)
    return checks


def quick_checks(config: RunConfig, weights: bool = True) -> list[Check]:
    """Of the model and the machine; no engine is started. weights: they must be there, and a hub's are
    downloaded. Raises ModelError without a model."""
    checks: list[Check] = []
    shape = None
    if config.policy.warmstart is not None:
        shape = shape_of_architecture(config.policy.warmstart.architecture)
    elif config.policy.model is not None:
        directory = model_directory(config.policy.model, weights)
        report = examine(directory, config.rollout, weights)
        checks, shape = list(report.checks), report.shape
    return checks + machine_checks(config, machine_of(config), shape)


def check_config(config: RunConfig) -> None:
    """Recipe, tasks, keys and harness. Raises ConfigError, RecipeError or BundleError with every
    reason of the first kind found."""
    try:
        set_up(config)
    except RecipeError:
        raise
    except ValueError as error:
        raise ConfigError(config.name, [str(error)]) from error
    try:
        source = TaskSource(config.environment, config.seed)
        tasks = source.batch(0, config.tasks.per_round)
        for ends in (False, True):
            for split, n in config.evaluation.sizes(ends).items():
                source.check_size(split, n)
        if config.policy.api is not None:  # its key and the SDK are there
            Endpoint("policy.api", config.policy.api, config.policy.api.key())
    except (ValueError, TypeError) as error:
        raise ConfigError(config.name, [str(error)]) from error
    bundle = load(config.harness.bundle)
    if not bundle.has_own_code:
        tools = [tool.name for tool in tasks[0].view.tools]
        missing = missing_tools(build(bundle, allow_own_code=False), tools)
        if missing:
            raise ConfigError(config.name, [f"harness.bundle: {text}" for text in missing])


def check_free(run: RunDir) -> None:
    """Raises RunDirError where another process holds the run."""
    with run:
        pass
