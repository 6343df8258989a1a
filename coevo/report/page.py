"""One self-contained HTML page from runs: skeleton, style, script and data in a single file."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from coevo.compare import compare
from coevo.report.data import payload
from coevo.runs import Run, load_run
from harness.atomic import write_atomic

_SCRIPTS = (
    "charts.js",
    "base.js",
    "sections.js",
    "lineage.js",
    "grid.js",
    "trace.js",
    "matrix.js",
    "events.js",
    "live.js",
    "main.js",
)
"""In this order: each uses names of those before it."""


def _package_text(name: str) -> str:
    return resources.files("coevo.report").joinpath(name).read_text(encoding="utf-8")


def encode_data(data: Any) -> str:
    """The page's data as JSON."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def embed(data: Any) -> str:
    """JSON that is safe inside <script>: run texts are a model's, and may hold '</script>'."""
    text = encode_data(data)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def render_report(
    runs: Sequence[Run | Path | str], title: str | None = None, reference: str | None = None
) -> str:
    """The page as text. Raises as `load_run` and `compare` do."""
    loaded = [run if isinstance(run, Run) else load_run(run) for run in runs]
    comparison = compare(loaded, reference)
    if title is None:
        title = " · ".join(dict.fromkeys(run.name for run in loaded))
    return page(payload(comparison, title))


def page(data: Mapping[str, Any]) -> str:
    """The page that draws what `payload` gave; one that is served may ask its own server."""
    return Template(_package_text("page.html")).substitute(
        title=html.escape(data["title"]),
        connect="; connect-src 'self'" if data["live"] else "",
        headline=html.escape(data["headline"]),
        paragraph=html.escape(data["paragraph"]),
        style=_package_text("style.css"),
        script="\n".join(_package_text(name) for name in _SCRIPTS),
        data=embed(data),
    )


def write_report(
    runs: Sequence[Run | Path | str],
    out: Path,
    *,
    title: str | None = None,
    reference: str | None = None,
) -> Path:
    """Write the report on `runs` (loaded, or directories) to `out`, whole or not at all."""
    text = render_report(runs, title, reference)
    write_atomic(out, text.encode())
    return out
