"""The tool registry, the file tools and their directory: what they do, and what they refuse."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from part_bench import CHAT, Scripted

from harness.host import ModelRequest, ToolRequest
from harness.tools.builtin import BUILT_IN, UnknownTool, built_in
from harness.tools.confined import Confined
from harness.tools.registry import HostTool, Input, ToolFailure, ToolHost, ToolRegistry
from harness.tools.workspace import MAX_FILE_BYTES, Workspace


class SumInput(Input):
    a: int
    b: int = 1


class Sum(HostTool[SumInput]):
    name = "sum"
    description = "Adds."
    input = SumInput

    async def run(self, given: SumInput) -> str:
        if given.a < 0:
            raise ToolFailure("a is negative")
        return str(given.a + given.b)


def test_a_tool_has_a_json_schema_from_its_input() -> None:
    assert Sum().spec.parameters == {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "default": 1}},
        "required": ["a"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("name", "given", "text", "error"),
    [
        ("sum", {"a": 2}, "3", False),
        ("sum", {"a": -1}, "a is negative", True),
        ("sum", {"b": "x"}, "a: Field required", True),
        ("sum", {"a": 1, "c": 2}, "c: Extra inputs are not permitted", True),
        ("sumo", {}, "there is no tool 'sumo'; did you mean 'sum'?", True),
    ],
)
def test_a_call_has_a_result_or_an_error_that_the_model_can_read(
    name: str, given: dict[str, Any], text: str, error: bool
) -> None:
    reply = asyncio.run(ToolRegistry([Sum()]).call(name, given))
    assert (text in reply.content, reply.is_error) == (True, error)


def test_names_are_unique_in_a_registry_and_against_the_task() -> None:
    with pytest.raises(ValueError, match="'sum' is registered twice"):
        ToolRegistry([Sum(), Sum()])
    view = ToolRegistry([Sum()]).offered(CHAT)
    assert [tool.name for tool in view.tools] == ["read", "sum"]
    with pytest.raises(ValueError, match="has tools sum of its own"):
        ToolRegistry([Sum()]).offered(view)


def test_a_tool_host_answers_its_own_and_hands_the_rest_on() -> None:
    inner = Scripted(["yes"])
    host = ToolHost(inner, ToolRegistry([Sum()]))

    async def both() -> list[str]:
        mine = await host.tool(ToolRequest(0, "c", "sum", {"a": 1}))
        other = await host.tool(ToolRequest(0, "c", "read", {"path": "x"}))
        return [mine.content, other.content, (await host.model(ModelRequest(0, ()))).content]

    assert asyncio.run(both()) == ["2", "fine", "yes"]
    assert [request.name for request in inner.called] == ["read"]


@pytest.fixture
def registry(tmp_path: Path) -> ToolRegistry:
    names = [name for name in BUILT_IN if name not in ("shell", "python")]
    return built_in(names, Confined(Workspace(tmp_path)))


def call(registry: ToolRegistry, name: str, **given: Any) -> str:
    reply = asyncio.run(registry.call(name, given))
    return f"{'error: ' if reply.is_error else ''}{reply.content}"


def test_files_are_written_read_edited_and_found(registry: ToolRegistry, tmp_path: Path) -> None:
    assert call(registry, "write_file", path="a/b.txt", content="one\ntwo\none\n") == (
        "wrote 12 bytes to a/b.txt"
    )
    assert call(registry, "read_file", path="a/b.txt", first=2, lines=1) == (
        "    2  two\n[lines 2-2 of 3]"
    )
    assert "holds that text 2 times" in call(
        registry, "edit_file", path="a/b.txt", old="one", new="1"
    )
    assert call(registry, "edit_file", path="a/b.txt", old="one", new="1", all=True) == (
        "replaced 2 in a/b.txt"
    )
    assert (tmp_path / "a/b.txt").read_text() == "1\ntwo\n1\n"
    assert call(registry, "search_files", pattern="two") == "a/b.txt:2: two"
    assert call(registry, "search_files", pattern="two", path="a") == "a/b.txt:2: two"
    assert call(registry, "search_files", pattern="two", files="*.py") == "nothing found"
    assert call(registry, "read_file", path=f"{tmp_path}/a/b.txt", first=3) == "    3  1"


def test_a_rewritten_file_keeps_its_executable_bit(registry: ToolRegistry, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("#!/bin/sh\necho 1\n")
    (tmp_path / "run.sh").chmod(0o755)
    call(registry, "edit_file", path="run.sh", old="1", new="2")
    assert (tmp_path / "run.sh").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(
    ("tool", "given", "reason"),
    [
        ("read_file", {"path": "../secret"}, "outside the working directory"),
        ("read_file", {"path": "/etc/passwd"}, "outside the working directory"),
        ("read_file", {"path": "a\0b"}, "outside"),
        ("read_file", {"path": ""}, "the path is empty"),
        ("read_file", {"path": "none"}, "there is no such file"),
        ("read_file", {"path": "link"}, "a symbolic link, which is not followed"),
        ("read_file", {"path": "linked/passwd"}, "not followed"),
        ("read_file", {"path": "folder"}, "not a regular file"),
        ("read_file", {"path": "fifo"}, "not a regular file"),
        ("read_file", {"path": "binary"}, "not UTF-8 text"),
        ("read_file", {"path": "big"}, "more than"),
        ("read_file", {"path": "text", "first": 9}, "has 1 lines"),
        ("write_file", {"path": "link", "content": "x"}, "not a regular file"),
        ("write_file", {"path": "linked/x", "content": "x"}, "not followed"),
        ("write_file", {"path": "../x", "content": "x"}, "outside"),
        ("write_file", {"path": "text/x", "content": "x"}, "not a folder"),
        ("write_file", {"path": "x", "content": "x" * (MAX_FILE_BYTES + 1)}, "more than"),
        ("edit_file", {"path": "text", "old": "zzz", "new": ""}, "does not hold that text"),
        ("search_files", {"pattern": "root", "path": "linked"}, "not followed"),
        ("search_files", {"pattern": "root", "path": "../"}, "outside"),
    ],
)
def test_what_leads_outside_or_makes_no_sense_is_refused(
    registry: ToolRegistry, tmp_path: Path, tool: str, given: dict[str, Any], reason: str
) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "linked").symlink_to("/etc")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "binary").write_bytes(b"\xff\x00")
    (tmp_path / "text").write_text("one\n")
    with open(tmp_path / "big", "wb") as stream:
        stream.truncate(MAX_FILE_BYTES + 1)
    before = sorted(os.listdir(tmp_path))
    said = call(registry, tool, **given)
    assert said.startswith("error: ")
    assert reason in said
    assert sorted(os.listdir(tmp_path)) == before


@given(path=st.text(alphabet="ab./\\\0 ", max_size=12))
def test_no_path_leaves_the_directory(tmp_path_factory: pytest.TempPathFactory, path: str) -> None:
    outer = tmp_path_factory.mktemp("outer")
    (outer / "in").mkdir()
    try:
        Workspace(outer / "in").write(path, "x")
    except ToolFailure:
        pass
    assert os.listdir(outer) == ["in"]


def test_an_unknown_built_in_is_named_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UnknownTool, match="did you mean 'shell'"):
        built_in(["shel"], Confined(Workspace(tmp_path)))


def test_a_workspace_is_a_directory_that_is_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Workspace(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        Workspace(tmp_path / "file")
