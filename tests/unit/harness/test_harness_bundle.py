"""A bundle is a value: one id whatever its spelling, and every refusal named at once."""

import os
import pickle
import random
from dataclasses import FrozenInstanceError

import pytest
import yaml
from bundle_strategies import bundles, rich_bundles
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.bundle import Bundle, BundleError, Component, File, dump, load
from harness.jsonvalue import thaw

SEED = Bundle(
    (
        Component("prompt", "prompt", path="prompts/system.md", params={"style": "terse"}),
        Component(
            "window",
            "context_mgmt",
            "harness.processors.history_window:HistoryWindow",
            params={"turns": 4},
        ),
    ),
    {"prompts/system.md": File(b"You act.\n"), "skills/go.sh": File(b"#!/bin/sh\n", True)},
)
MANIFEST = "schema: 1\ncomponents:\n- {id: a, kind: prompt}\n"


def write(root, manifest=MANIFEST, **files):
    root.mkdir(exist_ok=True)
    (root / "harness.yaml").write_text(manifest)
    for name, text in files.items():
        (root / name).write_text(text)
    return root


def problems(root):
    with pytest.raises(BundleError) as caught:
        load(root)
    return caught.value.problems


def test_the_id_is_pinned_so_that_stored_harnesses_keep_their_names():
    # sha256 of the canonical text, worked out with sha256sum rather than with this code.
    assert SEED.id == "9fadc09065cab4336b9056e751d2a5e2a2ce8006fa2ae7113cffd694ec7b7874"


@given(rich_bundles)
@example(Bundle((Component("a", "config", params={"k": {"\x85": "\u2028 a\n"}}),)))
@settings(max_examples=60, deadline=None)
def test_load_after_dump_is_the_same_bundle(tmp_path_factory, bundle):
    target = tmp_path_factory.mktemp("b") / "bundle"
    dump(bundle, target)
    again = load(target, expect_id=bundle.id)
    assert again == bundle
    assert hash(again) == hash(bundle)
    assert [path.name for path in target.parent.iterdir()] == ["bundle"]


@given(rich_bundles, st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_the_id_ignores_the_order_of_keys_components_and_files(bundle, rng):
    def shuffled(value):
        if isinstance(value, dict):
            items = [(key, shuffled(item)) for key, item in value.items()]
            rng.shuffle(items)
            return dict(items)
        return [shuffled(item) for item in value] if isinstance(value, list) else value

    parts = [
        Component(**{**item.record(), "params": shuffled(thaw(item.params))})
        for item in bundle.components
    ]
    rng.shuffle(parts)
    again = Bundle(tuple(parts), shuffled(dict(bundle.files)))
    assert (again.id, again) == (bundle.id, bundle)


@given(bundles, bundles)
@settings(max_examples=100, deadline=None)
def test_two_bundles_are_equal_exactly_when_their_ids_are(a, b):
    assert (a == b) == (a.id == b.id)


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (1, 1.0, True),
        (0, -0.0, True),
        (0.1, 1e-1, True),
        (1, True, False),
        ("1", 1, False),
        ([1], [1.0], True),
        (None, "", False),
        (2**53 + 1, float(2**53), False),
    ],
)
def test_a_number_has_one_normal_form(a, b, same):
    first, second = (Bundle((Component("x", "config", params={"p": v}),)) for v in (a, b))
    assert (first.id == second.id) is same
    assert (first == second) is same


def test_every_part_of_a_file_is_in_the_id():
    ids = {
        Bundle((), {path: File(content, executable)}).id
        for path in ("a", "b")
        for content in (b"", b"x")
        for executable in (False, True)
    }
    assert len(ids) == 8


def test_a_bundle_cannot_be_changed_in_place():
    with pytest.raises(FrozenInstanceError):
        SEED.components = ()
    with pytest.raises(TypeError, match="frozen"):
        SEED.files["x"] = File(b"")
    with pytest.raises(TypeError, match="frozen"):
        SEED.component("window").params["turns"] = 5


def test_later_changes_of_a_callers_dict_do_not_reach_the_bundle():
    given = {"list": [1]}
    part = Component("x", "config", params=given)
    given["list"].append(2)
    assert part.params == {"list": (1,)}


def test_bundles_and_their_errors_survive_pickling():
    assert pickle.loads(pickle.dumps(SEED)) == SEED
    error = BundleError(["one", "two"], "here")
    assert pickle.loads(pickle.dumps(error)).problems == ("one", "two")


def test_dump_does_not_overwrite(tmp_path):
    dump(SEED, tmp_path / "x")
    with pytest.raises(FileExistsError, match="choose another path"):
        dump(SEED, tmp_path / "x")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_modes_do_not_depend_on_the_umask(tmp_path):
    old = os.umask(0o077)
    try:
        dump(SEED, tmp_path / "x")
    finally:
        os.umask(old)
    assert (tmp_path / "x/skills/go.sh").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "x/harness.yaml").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "x/skills").stat().st_mode & 0o777 == 0o755


def test_a_dumped_bundle_holds_no_path_of_the_machine(tmp_path):
    dump(SEED, tmp_path / "x")
    assert str(tmp_path) not in (tmp_path / "x/harness.yaml").read_text()


def test_a_changed_file_is_found_by_the_expected_id(tmp_path):
    dump(SEED, tmp_path / "x")
    (tmp_path / "x/prompts/system.md").write_text("You cheat.\n")
    with pytest.raises(BundleError, match=f"expected {SEED.id}"):
        load(tmp_path / "x", expect_id=SEED.id)


def test_a_symbolic_link_is_refused(tmp_path):
    root = write(tmp_path / "x")
    (root / "link").symlink_to("/etc/passwd")
    (root / "folder").symlink_to("/etc")
    assert problems(root) == (
        "file 'folder' is a symbolic link; put the file itself in the bundle",
        "file 'link' is a symbolic link; put the file itself in the bundle",
    )


def test_a_linked_manifest_is_refused_and_not_also_called_missing(tmp_path):
    root = write(tmp_path / "x")
    (root / "harness.yaml").rename(tmp_path / "real.yaml")
    (root / "harness.yaml").symlink_to("../real.yaml")
    assert problems(root) == (
        "file 'harness.yaml' is a symbolic link; put the file itself in the bundle",
    )


def test_a_pipe_is_refused_without_waiting_for_it(tmp_path):
    root = write(tmp_path / "x")
    os.mkfifo(root / "pipe")
    assert problems(root) == ("file 'pipe' is not a regular file; remove it",)


def test_a_path_that_is_not_utf8_is_refused(tmp_path):
    root = write(tmp_path / "x")
    with open(os.fsencode(root) + b"/\xff", "w"):
        pass
    assert problems(root) == ("file '\\udcff' is not UTF-8; rename the file",)


def test_a_file_over_a_mebibyte_is_refused_and_one_of_a_mebibyte_is_not(tmp_path):
    root = write(tmp_path / "x")
    (root / "big").write_bytes(b"x" * (1 << 20))
    load(root)
    (root / "big").write_bytes(b"x" * ((1 << 20) + 1))
    assert problems(root) == (
        "file 'big' has 1048577 bytes, more than 1048576; shorten or split it",
    )
    with pytest.raises(BundleError, match="1048577 bytes"):
        Bundle((), {"big": File(b"x" * ((1 << 20) + 1))})


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/etc/passwd", "is absolute"),
        ("C:/x", "is absolute"),
        ("../x", "climbs"),
        ("a/../../x", "climbs"),
        ("a//b", "empty or '.' step"),
        ("./a", "empty or '.' step"),
        ("a/", "empty or '.' step"),
        ("", "non-empty"),
        ("a\\b", "backslash"),
        ("a\nb", "control character"),
        ("a\0b", "control character"),
        ("x" * 256, "too long"),
        ("harness.yaml", "reserved"),
        ("Harness.YAML", "reserved"),
        ("\udcff", "not UTF-8"),
    ],
)
def test_a_file_path_that_is_not_plain_is_refused(path, reason):
    with pytest.raises(BundleError, match=reason):
        Bundle((), {path: File(b"")})


@pytest.mark.parametrize("path", ["/etc/passwd", "../x"])
@pytest.mark.parametrize("key", ["path", "entrypoint"])
def test_a_component_does_not_reach_outside_its_bundle(path, key):
    value = path if key == "path" else f"{path}.py:X"
    with pytest.raises(BundleError, match=f"component 'a': {key}"):
        Component("a", "prompt", **{key: value})


@pytest.mark.parametrize(
    "paths",
    [("A.md", "a.md"), ("Dir/x", "dir/y"), ("caf\u00e9", "cafe\u0301"), ("a", "a/b"), ("a", "A/b")],
)
def test_paths_that_collide_somewhere_are_refused(paths):
    with pytest.raises(BundleError, match=r"collides with|both a file and a folder"):
        Bundle((), {path: File(b"") for path in paths})


def test_an_unknown_kind_names_the_nearest():
    with pytest.raises(BundleError, match="unknown kind 'promt'; did you mean 'prompt'"):
        Component("a", "promt")


def test_ids_are_unique():
    with pytest.raises(BundleError, match="component 'a': the id is used twice"):
        Bundle((Component("a", "prompt"), Component("a", "skill")))


def test_files_that_a_component_names_must_be_there():
    files = {"skills/x/SKILL.md": File(b"")}
    Bundle((Component("a", "skill", path="skills/x"),), files)
    with pytest.raises(BundleError) as caught:
        Bundle(
            (
                Component("a", "skill", path="skills/y"),
                Component("b", "processor", entrypoint="own.py:Own"),
            ),
            files,
        )
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize(
    "entrypoint", ["os:system", "own:Own", "harness:X", "harness.x", "x.py:", 3]
)
def test_an_entrypoint_is_a_built_in_or_a_file_of_the_bundle(entrypoint):
    with pytest.raises(BundleError, match="must be 'harness\\.module:Class'"):
        Component("a", "processor", entrypoint=entrypoint)


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), {1: 2}, {1, 2}, b"x", 2**63, object(), "\ud800"]
)
def test_a_parameter_that_is_not_json_is_refused(value):
    with pytest.raises(BundleError, match="component 'a': params\\.deep"):
        Component("a", "config", params={"deep": [{"x": value}]})


def test_endless_nesting_is_refused(tmp_path):
    value: list = []
    value.append(value)
    with pytest.raises(BundleError, match="nested more than"):
        Component("a", "config", params={"x": value})
    root = write(tmp_path / "x", "schema: 1\nx: " + "[" * 2000)
    assert "nested too deep" in problems(root)[0]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"id": "a b"}, "id 'a b' must be"),
        ({"id": 3}, "id 3 must be"),
        ({"group": "x/y"}, "group 'x/y'"),
        ({"order": True}, "order True must be an integer"),
        ({"order": 1.5}, "order 1.5"),
        ({"after": "window"}, "after 'window' must be a list"),
        ({"needs": ["tool:"]}, "needs"),
        ({"params": [1]}, "params"),
    ],
)
def test_a_field_of_the_wrong_form_is_refused(fields, reason):
    with pytest.raises(BundleError, match=reason):
        Component(**{"id": "a", "kind": "config", **fields})


@pytest.mark.parametrize(
    ("manifest", "reason"),
    [
        ("", "must be a mapping"),
        ("- a", "must be a mapping"),
        ("schema: 2\n", "schema is 2, expected 1"),
        ("schema: true\n", "schema is True, expected 1"),
        ("components: []\n", "schema is None"),
        ("schema: 1\ncomponent: []\n", "unknown key 'component'; did you mean 'components'"),
        ("schema: 1\ncomponents: {}\n", "must be a list"),
        ("schema: 1\ncomponents: [a]\n", r"components\[0\]: must be a mapping"),
        ("schema: 1\ncomponents: [{kind: prompt}]\n", "id missing"),
        ("schema: 1\ncomponents: [{id: a, kind: prompt, parms: {}}]\n", "did you mean 'params'"),
        ("schema: 1\nschema: 1\n", "written twice"),
        ("schema: 1\ncomponents: [{id: a, id: b, kind: prompt}]\n", "'id' is written twice"),
        ("schema: 1\ncomponents: &x [*x]\n", "alias \\*x is not allowed"),
        ("schema: 1\ncomponents: [!!python/object:os.system {}]\n", "not valid YAML"),
        ("schema: 1\ncomponents: [{id: a, kind: config, params: {d: 2024-01-01}}]", "quote it"),
        ("schema: 1\ncomponents: [{id: a, kind: config, params: {d: .inf}}]", "not a JSON number"),
        ("schema: [", "not valid YAML"),
        ("schema: \x01", "not valid YAML"),
    ],
)
def test_a_manifest_that_says_something_else_is_refused(tmp_path, manifest, reason):
    with pytest.raises(BundleError, match=reason):
        load(write(tmp_path / "x", manifest))


def test_a_manifest_that_is_not_utf8_or_not_there_is_refused(tmp_path):
    root = write(tmp_path / "x")
    (root / "harness.yaml").write_bytes(b"\xff")
    assert problems(root) == ("harness.yaml: not UTF-8 text (byte 0)",)
    (root / "harness.yaml").unlink()
    assert problems(root) == ("harness.yaml is missing; a bundle has one at its root",)
    with pytest.raises(BundleError, match="is not a directory"):
        load(tmp_path / "nowhere")


def test_all_problems_are_reported_at_once(tmp_path):
    root = write(
        tmp_path / "x",
        "schema: 1\nextra: 1\ncomponents:\n"
        "- {id: a, kind: promt, zap: 1}\n"
        "- {id: b, kind: skill, path: skills/none}\n"
        "- {id: b, kind: skill}\n",
        **{"A.md": "", "a.md": ""},
    )
    (root / "link").symlink_to("a.md")
    found = problems(root)
    expected = ["symbolic", "'extra'", "'zap'", "'promt'", "collides", "skills/none", "twice"]
    assert len(found) == len(expected)
    for word in expected:
        assert sum(word in text for text in found) == 1


def test_a_manifest_written_by_hand_has_the_id_of_the_dumped_one(tmp_path):
    dump(SEED, tmp_path / "x")
    raw = yaml.safe_load((tmp_path / "x/harness.yaml").read_text())
    raw["components"] = [dict(reversed(entry.items())) for entry in reversed(raw["components"])]
    raw["components"][0]["params"] = {"turns": 4.0}
    (tmp_path / "x/harness.yaml").write_text(yaml.safe_dump(raw, default_flow_style=True))
    (tmp_path / "x/empty").mkdir()
    assert load(tmp_path / "x").id == SEED.id


def test_random_bytes_as_a_manifest_never_escape_as_another_error(tmp_path):
    rng = random.Random(7)
    root = write(tmp_path / "x")
    for _ in range(200):
        text = bytearray(MANIFEST.encode())
        for _ in range(rng.randint(1, 4)):
            text[rng.randrange(len(text))] = rng.randrange(256)
        (root / "harness.yaml").write_bytes(text)
        try:
            load(root)
        except BundleError:
            pass
