"""What `coevo doctor` does: every check of the machine, one table, exit code 2 where one failed."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console

from coevo import doctor_checks as machine
from coevo.cluster import ClusterConfig
from coevo.config import RunConfig, load_config
from coevo.errors import InputError
from coevo.preflight.checks import Check, print_checks


class DoctorError(InputError):
    """This machine cannot run what was asked; the table says why."""


def run(arguments: argparse.Namespace) -> None:
    """Raises DoctorError where a check failed, ConfigError for a configuration that does not read."""
    config = load_config(arguments.config, arguments.overrides) if arguments.config else None
    console = Console(stderr=arguments.json)
    with console.status("looking …"):
        checks = checks_of(config, engines=not arguments.no_engines)
    if arguments.json:
        print(json.dumps([check.to_json() for check in checks], indent=1))
    else:
        print_checks(checks, console)
    wrong = [check.name for check in checks if check.status == "fail"]
    if wrong:
        raise DoctorError(f"{len(wrong)} of {len(checks)} checks failed: {', '.join(wrong)}")


def checks_of(config: RunConfig | None, engines: bool) -> list[Check]:
    """All checks; without a configuration those of a run with the defaults, in runs/ here."""
    runs = Path(config.runs_dir if config else "runs")
    cluster = config.cluster if config else None
    scratch = Path(cluster.scratch if cluster else ClusterConfig.model_fields["scratch"].default)
    checks = [
        machine.python_version(),
        *machine.packages(),
        machine.sandbox(config.rollout.sandbox if config else "auto"),
        machine.gpus(),
        *machine.slurm_checks(cluster),
        machine.ports(cluster.interface if cluster else None),
        machine.shared_directory("runs_dir", runs),
        machine.free_disk("runs_dir", runs),
        machine.free_disk("scratch", scratch),
        machine.shared_memory(config.resources.object_store_bytes if config else None),
        machine.open_files(),
    ]
    if engines:
        checks += [*machine.engine_imports(), machine.ray_starts()]
    if config is not None:
        from coevo.preflight_commands import configuration_checks

        checks += configuration_checks(config, weights=False)
    return checks
