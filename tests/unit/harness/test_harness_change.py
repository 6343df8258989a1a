"""Changes are counted from the diff, one an attributable component, and shown as text."""

from bundle_strategies import bundles
from hypothesis import given, settings

from harness.bundle import KINDS, Bundle, Component, File
from harness.change import Change, describe, render_diff, summary
from harness.edit import (
    UNSET,
    AddComponent,
    DeleteFile,
    PutFile,
    RemoveComponent,
    ReplaceComponent,
    SetParam,
    apply,
    diff,
)

BASE = Bundle(
    (
        Component("menu", "output_plumbing", group="menu", params={"limit": 5, "style": "x"}),
        Component("search", "skill", path="skills/search"),
        Component("twin", "skill", path="skills"),
    ),
    {
        "skills/search/SKILL.md": File(b"one\ntwo\n"),
        "skills/search/run.sh": File(b"#!\n", True),
        "skills/note.md": File(b"n"),
        "loose.txt": File(b"l"),
    },
)


def changes(*edits):
    return summary(BASE, apply(BASE, edits)).changes


def test_nothing_changed_counts_nothing():
    found = summary(BASE, BASE)
    assert (found.count, found.kinds) == (0, ())


def test_all_parameters_of_a_component_are_one_change():
    edits = (SetParam("menu", "limit", 6), SetParam("menu", "style", UNSET))
    assert changes(*edits) == (Change("menu", "output_plumbing", "set"),)


def test_the_files_of_a_component_count_with_it():
    edits = (
        PutFile("skills/search/SKILL.md", File(b"x")),
        DeleteFile("skills/search/run.sh"),
        SetParam("search", "n", 1),
    )
    files = ("skills/search/run.sh", "skills/search/SKILL.md")
    assert changes(*edits) == (Change("search", "skill", "set", files),)


def test_a_file_of_two_components_counts_once_with_the_first_or_with_the_one_that_changed():
    edit = PutFile("skills/search/SKILL.md", File(b"x"))
    files = ("skills/search/SKILL.md",)
    assert changes(edit) == (Change("search", "skill", "files", files),)
    assert changes(edit, SetParam("twin", "n", 1)) == (Change("twin", "skill", "set", files),)


def test_a_component_and_its_files_come_and_go_as_one_change():
    own = Component("own", "processor", "own.py:Own")
    added = apply(BASE, [PutFile("own.py", File(b"")), AddComponent(own)])
    assert summary(BASE, added).changes == (Change("own", "processor", "add", ("own.py",)),)
    assert summary(added, BASE).changes == (Change("own", "processor", "remove", ("own.py",)),)


def test_a_replacement_takes_the_files_of_both():
    first = apply(
        BASE,
        [PutFile("a.py", File(b"")), AddComponent(Component("a", "memory", "a.py:A", group="g"))],
    )
    second = apply(
        first,
        [
            PutFile("b.py", File(b"")),
            ReplaceComponent(Component("b", "memory", "b.py:B", group="g")),
            DeleteFile("a.py"),
        ],
    )
    assert summary(first, second).changes == (Change("b", "memory", "replace", ("a.py", "b.py")),)


def test_a_file_of_nobody_is_a_change_of_kind_files():
    found = summary(BASE, apply(BASE, [DeleteFile("loose.txt"), PutFile("y", File(b""))]))
    assert found.changes == (
        Change(None, "files", "files", ("loose.txt",)),
        Change(None, "files", "files", ("y",)),
    )
    assert (found.count, found.kinds) == (2, ("files",))


def test_a_change_of_kind_counts_as_the_new_kind():
    edit = ReplaceComponent(Component("menu", "client_tool", group="menu"))
    assert changes(edit) == (Change("menu", "client_tool", "replace"),)


@given(bundles, bundles)
@settings(max_examples=100, deadline=None)
def test_every_edited_file_and_component_is_in_exactly_one_change(a, b):
    found = summary(a, b)
    edits = diff(a, b)
    paths = [path for change in found.changes for path in change.files]
    assert sorted(paths) == sorted(e.path for e in edits if isinstance(e, PutFile | DeleteFile))
    ids = [change.component for change in found.changes if change.component]
    assert len(set(ids)) == len(ids)
    assert found.count <= len(edits)
    assert set(found.kinds) <= set(KINDS)
    assert (render_diff(a, b) == "") == (a == b)


def test_an_edit_reads_as_one_line():
    part = Component("w", "context_mgmt", "harness.processors.x:W", params={"t": 1})
    assert [
        describe(edit)
        for edit in (
            AddComponent(part),
            ReplaceComponent(part, "old"),
            RemoveComponent("w"),
            SetParam("w", "t", "a\nb"),
            SetParam("w", "t", UNSET),
            PutFile("a.sh", File(b"12", True)),
            DeleteFile("a.sh"),
        )
    ] == [
        'add w (context_mgmt, harness.processors.x:W) {"t":1}',
        'replace old by w (context_mgmt, harness.processors.x:W) {"t":1}',
        "remove w",
        'set w.t = "a\\nb"',
        "unset w.t",
        "write a.sh (2 bytes, executable)",
        "delete a.sh",
    ]


def test_the_difference_is_a_unified_diff():
    after = apply(
        BASE,
        [
            SetParam("menu", "limit", 6),
            SetParam("menu", "new", True),
            PutFile("skills/search/SKILL.md", File(b"one\nthree")),
            PutFile("skills/search/run.sh", File(b"#!\n")),
            PutFile("bin", File(b"\0\1")),
            PutFile("empty", File(b"")),
            DeleteFile("loose.txt"),
        ],
    )
    assert render_diff(BASE, after) == (
        "set menu.limit = 6 (was 5)\n"
        "set menu.new = true (was (default))\n"
        "--- a/loose.txt\n"
        "+++ /dev/null\n"
        "@@ -1 +0,0 @@\n"
        "-l\n"
        "\\ No newline at end of file\n"
        "bin: binary, none -> 2 bytes\n"
        "--- /dev/null\n"
        "+++ b/empty\n"
        "--- a/skills/search/SKILL.md\n"
        "+++ b/skills/search/SKILL.md\n"
        "@@ -1,2 +1,2 @@\n"
        " one\n"
        "-two\n"
        "+three\n"
        "\\ No newline at end of file\n"
        "skills/search/run.sh: no longer executable\n"
    )
