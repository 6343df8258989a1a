"""What can be known to fail is refused before any engine starts or any token is paid."""

from __future__ import annotations

from coevo.config import ConfigError, RunConfig
from coevo.rollouts import TaskSource
from coevo.rundir import RunDir
from harness.build import build, missing_tools
from harness.bundle import load
from harness.evolve.recipe import load_recipe


def preflight(config: RunConfig) -> None:
    """Raises ConfigError, RecipeError or BundleError with every reason of the first kind found."""
    if config.evolves:
        load_recipe(config.evolution.recipe)
    try:
        source = TaskSource(config.environment, config.seed)
        tasks = source.batch(0, config.tasks.per_round)
        evaluation = config.evaluation
        for split in evaluation.splits:
            source.sealed(split, max(evaluation.episodes, evaluation.final or 0))
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
