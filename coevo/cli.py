"""The command line: run, resume, status, experiment, compare, report, warmstart, harness."""

from __future__ import annotations

import argparse
import importlib
import os
import select
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from coevo import harness_cli

EXIT_BAD_INPUT = 2
EXIT_BUG = 70
EXIT_STOPPED = 75
EXIT_PIPE = 141
"""0 done · 2 bad input · 70 a bug or a broken part: not to be requeued · 75 stopped on request or
by infrastructure: resume it · 141 the reader of the output has left, as a shell says it."""

ACCEPT_CONFIG = (
    "go on with a run that was begun under another configuration; the change is recorded"
)

COMMAND_MODULES: tuple[str, ...] = (
    "coevo.buffer_cli",
    "coevo.doctor_cli",
    "coevo.eval_cli",
    "coevo.evolve_cli",
    "coevo.export_cli",
    "coevo.matrix_cli",
    "coevo.preflight_cli",
    "coevo.simulate_cli",
    "coevo.submit_cli",
    "coevo.watch_cli",
)
"""Modules that add a command: `add_parser(commands)` builds its arguments, pulls no engine, and
names what runs it by `set_defaults(handler="module:function")`; the function takes the parsed
arguments and raises coevo.errors.InputError for what a user can mend."""


def parser() -> argparse.ArgumentParser:
    """All commands with their arguments."""
    top = argparse.ArgumentParser(
        prog="coevo",
        description="Co-evolution of agent harnesses and model weights from the same rollouts.",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text)

    run = command("run", "Run a configuration, or go on with its run where it was begun.")
    run.add_argument("config", help="a YAML file, for example configs/quickstart.yaml")
    run.add_argument("overrides", nargs="*", help="key=value, for example rounds=2 trainer.lr=1e-4")
    run.add_argument("--accept-config", action="store_true", help=ACCEPT_CONFIG)
    resume = command("resume", "Go on with a run from its last journaled phase.")
    resume.add_argument("run", type=Path, help="a run directory, for example runs/quickstart")
    status = command("status", "Say how far a run is and what it measured.")
    status.add_argument("run", type=Path)
    status.add_argument(
        "--verify", action="store_true", help="compare every file of the run with its checksum"
    )
    experiment = command("experiment", "Run several arms of one configuration and compare them.")
    experiment.add_argument("config")
    experiment.add_argument("overrides", nargs="*")
    experiment.add_argument(
        "--arms", default="frozen,harness,coevolve",
        help="comma-separated modes: frozen, harness, model, coevolve, best_of_n (default: %(default)s)",
    )  # fmt: skip
    experiment.add_argument(
        "--seeds", default="1",
        help="how many (3 means 0, 1 and 2), or a list (0,2; a single seed is written 3,) "
        "(default: %(default)s)",
    )  # fmt: skip
    compare = command("compare", "Compare runs on their held-out episodes, with intervals.")
    compare.add_argument("runs", type=Path, nargs="+")
    report = command("report", "Write one self-contained HTML page on runs.")
    report.add_argument("runs", type=Path, nargs="+")
    report.add_argument("-o", "--output", type=Path, default=Path("report.html"))
    warmstart = command("warmstart", "Make the small model of a configuration (cached).")
    warmstart.add_argument("config")
    warmstart.add_argument("overrides", nargs="*")
    warmstart.add_argument(
        "--from-run", type=Path, metavar="RUN",
        help="teach that model what it sampled in the successful episodes of this run",
    )  # fmt: skip
    warmstart.add_argument("--output", type=Path, help="directory to write (default: RUN-sft)")
    warmstart.add_argument("--lr", type=float, default=1e-5, help="default: %(default)s")
    warmstart.add_argument("--epochs", type=float, default=1.0, help="default: %(default)s")
    warmstart.add_argument("--batch-size", type=int, default=8, help="default: %(default)s")
    harness_cli.add_parser(commands)
    for module in COMMAND_MODULES:
        importlib.import_module(module).add_parser(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `coevo`. Errors that a user can mend are one message, never a traceback."""
    top = parser()
    arguments, rest = top.parse_known_args(argv)
    # argparse takes no more positionals after an option: overrides may stand anywhere.
    if rest and hasattr(arguments, "overrides") and all(_is_override(item) for item in rest):
        arguments.overrides = [*arguments.overrides, *rest]
    elif rest:
        top.error(f"unrecognized arguments: {' '.join(rest)}")
    from coevo import commands

    try:
        code = commands.dispatch(arguments)
        sys.stdout.flush()
        return code
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _reader_left():
            return EXIT_PIPE
        # The outermost frame. Python's own exit code, 1, is also that of a process that Ray's C++
        # ends when the cluster is lost: a job would be requeued for a bug, for ever.
        traceback.print_exc()
        print("coevo: this is a bug; please report the lines above", file=sys.stderr)
        return EXIT_BUG


def _reader_left() -> bool:
    """Whether standard output is a pipe that nobody reads any more (`coevo … | head`); if so, what
    is still buffered goes nowhere. Other pipes of a run may break too, and that is a bug."""
    watch = select.poll()
    watch.register(sys.stdout.fileno(), 0)
    if not any(event & select.POLLERR for _, event in watch.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def _is_override(text: str) -> bool:
    return "=" in text and not text.startswith("-")


if __name__ == "__main__":
    sys.exit(main())
