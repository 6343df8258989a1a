"""`coevo harness`: its arguments; the work is in `harness_commands` and `harness_run`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

REF = "a bundle's directory, or STORE@NAME: a pointer or the beginning of an id in a store"


class HarnessCommandError(ValueError):
    """Input that a user can mend; the message says how."""


def add_parser(subparsers: Any) -> None:
    """Add `harness` and its own commands to the parsers of `coevo`."""
    text = "Make, look at, change and run harness bundles."
    harness = subparsers.add_parser("harness", help=text, description=text)
    commands = harness.add_subparsers(dest="harness_command", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
        return parser

    new = command("new", "Make an empty bundle, or a copy of one.")
    new.add_argument("path", type=Path, help="a directory that does not exist yet")
    new.add_argument("--from", dest="source", metavar="BUNDLE", help=f"copy this one: {REF}")

    show = command("show", "Show a bundle: its id, components in running order, files.")
    show.add_argument("bundle", help=REF)
    show.add_argument("--file", metavar="PATH", help="print this file of the bundle instead")
    show.add_argument("--json", action="store_true", help="the canonical manifest and the id")

    diff = command("diff", "Show the typed edits that lead from one bundle to another.")
    diff.add_argument("a", help=REF)
    diff.add_argument("b", help=REF)
    diff.add_argument("--json", action="store_true", help="as `edit --edits` takes them")

    edit = command("edit", "Apply typed edits to a bundle, in the order in which they are given.")
    edit.add_argument("bundle", help=REF)
    edit.add_argument(
        "-o", "--output", type=Path, help="a new directory; without it the bundle's is replaced"
    )
    for option, metavar, what in (
        ("--edits", "FILE", "the edits of a JSON file (`diff --json`)"),
        ("--add", "YAML", "a component, for example '{id: a, kind: config, path: a.json}'"),
        ("--replace", "YAML", "a component in the place of its singleton group's or its id's"),
        ("--remove", "ID", "a component"),
        ("--set", "ID.NAME=VALUE", "a parameter to a YAML value"),
        ("--unset", "ID.NAME", "a parameter to its default"),
        ("--put", "PATH=FILE", "a file, new or in the place of the old one"),
        ("--delete", "PATH", "a file"),
    ):
        edit.add_argument(option, metavar=metavar, help=what, dest="ops", action=_Op)

    lineage = command("lineage", "Show where the bundles of a store come from.")
    lineage.add_argument("store", type=Path, help="for example runs/quickstart/harness")
    lineage.add_argument(
        "name", nargs="?", help="a pointer or the beginning of an id: its ancestors"
    )

    verify = command("verify", "Check a bundle, or all of a store, and rehearse one step of it.")
    verify.add_argument("target", help=f"{REF}; or a store, for all of its bundles")
    verify.add_argument("--static", action="store_true", help="leave the rehearsal out")
    _sandbox(verify)

    run = command("run", "Run one task with a bundle and show the trace as it goes.")
    run.add_argument("bundle", help=REF)
    run.add_argument(
        "--policy", default="hand",
        help="hand (you answer), random (an admitted action), script:FILE (a reply a line), "
        "model:DIRECTORY (served by vLLM) (default: %(default)s)",
    )  # fmt: skip
    run.add_argument("--env", default="household", help="environment (default: %(default)s)")
    run.add_argument(
        "--env-option", action="append", default=[], metavar="KEY=VALUE",
        help="an option of the environment, for example max_receptacles=8",
    )  # fmt: skip
    run.add_argument("--split", default="evolve", help="split of the task (default: %(default)s)")
    run.add_argument("--task", default="0", help="its number or id (default: %(default)s)")
    run.add_argument("--instruction", help="a task in words, without an environment; see --tools")
    run.add_argument(
        "--tools", default="", metavar="NAME,…",
        help="built-in host tools to offer as well: shell, python, read_file, write_file, "
        "edit_file, search_files",
    )  # fmt: skip
    run.add_argument("--workdir", type=Path, help="directory of these tools (default: a new one)")
    run.add_argument("--seed", type=int, default=0)
    run.add_argument("--max-steps", type=int, help="default: the task's")
    run.add_argument("--trace", type=Path, metavar="FILE", help="write both traces here, as JSON")
    _sandbox(run)


def _sandbox(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sandbox", default="auto", choices=("auto", "bubblewrap", "landlock", "unsafe_local"),
        help="isolation of the bundle's own code and of tools (default: %(default)s)",
    )  # fmt: skip


class _Op(argparse.Action):
    """Keeps options of several names in one list, in the order given."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        ops = [*(getattr(namespace, self.dest) or ()), (str(option_string).lstrip("-"), values)]
        setattr(namespace, self.dest, ops)


def handle(arguments: argparse.Namespace) -> None:
    """Run the command. Raises HarnessCommandError, BundleError and others that name the input."""
    from coevo import harness_commands

    harness_commands.handle(arguments)
