"""What can be known to fail is refused before any engine starts or any token is paid."""

from __future__ import annotations

from coevo.config import ConfigError, RunConfig
from coevo.evolution_setup import set_up
from coevo.rollouts import TaskSource
from coevo.rundir import RunDir
from harness.build import build, missing_tools
from harness.bundle import load
from harness.evolve.llm.transport import Endpoint
from harness.evolve.recipe import RecipeError


def preflight(config: RunConfig) -> None:
    """Raises ConfigError, RecipeError or BundleError with every reason of the first kind found."""
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
