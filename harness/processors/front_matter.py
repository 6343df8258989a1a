"""Markdown files with a YAML head between two `---` lines: skills and memory notes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import yaml

MARK = "---"


class FrontMatterError(ValueError):
    """A file whose head cannot be read; the message names the file."""


@dataclass(frozen=True, slots=True)
class Page:
    """name, description: of the head; the file's stem and the body's first line without one."""

    path: str
    name: str
    description: str
    body: str

    @property
    def text(self) -> str:
        """All that a search looks at."""
        return f"{self.name}\n{self.description}\n{self.body}"


def page(path: str, content: bytes) -> Page:
    """The page of one file. Raises FrontMatterError."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FrontMatterError(f"{path}: not UTF-8 text (byte {error.start})") from error
    head: object = {}
    body = text
    if text.startswith(MARK + "\n"):
        raw, found, body = text[len(MARK) + 1 :].partition(f"\n{MARK}\n")
        if not found:
            raise FrontMatterError(f"{path}: the head has no end; close it with a line {MARK}")
        try:
            head = yaml.safe_load(raw) or {}
        except yaml.YAMLError as error:
            raise FrontMatterError(f"{path}: the head is no YAML: {error}") from error
    if not isinstance(head, dict):
        raise FrontMatterError(f"{path}: the head is a {type(head).__name__}, not a mapping")
    body = body.strip()
    stem = path.rsplit("/", 1)[-1].removesuffix(".md")
    first = body.split("\n", 1)[0].lstrip("# ").strip()
    return Page(path, str(head.get("name", stem)), str(head.get("description", first)), body)


def pages(files: Mapping[str, bytes], folder: str) -> list[Page]:
    """The `.md` files below `folder` of a bundle, by path. Raises FrontMatterError."""
    inside = folder.rstrip("/") + "/"
    return [
        page(path, content)
        for path, content in sorted(files.items())
        if path.startswith(inside) and path.endswith(".md")
    ]
