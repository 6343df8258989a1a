"""What `coevo preflight` does: every check, one table, exit code 2 where something must be mended."""

from __future__ import annotations

import argparse

from rich.console import Console

from coevo.config import ConfigError, RunConfig, load_config
from coevo.errors import InputError
from coevo.model_shape import ModelError
from coevo.preflight import check_config, quick_checks
from coevo.preflight.checks import Check, fail, ok, print_checks, warn
from harness.bundle import BundleError
from harness.evolve.recipe import RecipeError


class PreflightError(InputError):
    """A run of this configuration would fail; the table says why."""


def run(arguments: argparse.Namespace) -> None:
    """Raises PreflightError where a check failed."""
    config = load_config(arguments.config, arguments.overrides)
    console = Console()
    checks = configuration_checks(config, weights=not arguments.no_engines)
    failed = any(c.status == "fail" for c in checks)
    if arguments.no_engines or failed or config.policy.api is not None:
        checks.append(_left_out(arguments.no_engines, failed))
    else:
        from coevo.commands import base_model
        from coevo.preflight.engines import engine_checks

        model = base_model(config, console)
        assert model is not None  # only a hosted one is
        checks += engine_checks(config, model, lambda text: console.print(text))
    print_checks(checks, console)
    wrong = sum(c.status == "fail" for c in checks)
    if wrong:
        raise PreflightError(
            f"{arguments.config}: {wrong} of {len(checks)} checks failed, see above"
        )


def configuration_checks(config: RunConfig, weights: bool) -> list[Check]:
    """Those that start nothing. weights: of the model must be there."""
    checks = []
    try:
        check_config(config)
        checks.append(ok("configuration", f"mode {config.mode}, {config.rounds} rounds"))
    except (ConfigError, RecipeError, BundleError) as error:
        checks.append(fail("configuration", str(error), "see there"))
    try:
        checks += quick_checks(config, weights)
    except ModelError as error:
        checks.append(fail("model", str(error), "name a model directory or a hub id"))
    return checks


def _left_out(asked: bool, failed: bool) -> Check:
    if failed and not asked:
        return warn("engines", "not started: a check above failed", "mend it and try again")
    if asked:
        return ok("engines", "not started (--no-engines)")
    return ok("engines", "none here: policy.api is a hosted model")
