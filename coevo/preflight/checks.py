"""What a check before a run found: fine, dubious or impossible, and what to change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table

Status = Literal["ok", "warn", "fail"]

_STYLE = {"ok": "green", "warn": "yellow", "fail": "bold red"}


@dataclass(frozen=True, slots=True)
class Check:
    """change: what to do about a warning or a failure."""

    name: str
    status: Status
    found: str
    change: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def ok(name: str, found: str) -> Check:
    return Check(name, "ok", found)


def warn(name: str, found: str, change: str) -> Check:
    return Check(name, "warn", found, change)


def fail(name: str, found: str, change: str) -> Check:
    return Check(name, "fail", found, change)


def failures(checks: Iterable[Check]) -> list[str]:
    """One line each: what was found, and what to do."""
    return [f"{c.name}: {c.found}; {c.change}" for c in checks if c.status == "fail"]


def print_checks(checks: Sequence[Check], console: Console) -> None:
    """A table, and a line that counts."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("check", "", "found, and what to change"):
        table.add_column(title, overflow="fold")
    for check in checks:
        style = _STYLE[check.status]
        text = escape(check.found)
        if check.change:
            text += f"\n[{style}]→ {escape(check.change)}[/]"
        table.add_row(check.name, f"[{style}]{check.status}[/]", text)
    console.print(table)
    counts = {s: sum(c.status == s for c in checks) for s in ("ok", "warn", "fail")}
    console.print(f"{counts['ok']} ok, {counts['warn']} to look at, {counts['fail']} to mend")
