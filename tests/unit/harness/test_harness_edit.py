"""Edits form an algebra: they invert, replay, compose, and `diff` finds them again."""

import json
import pickle

import pytest
from bundle_strategies import bundles, edits
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.bundle import Bundle, Component, File
from harness.edit import (
    UNSET,
    AddComponent,
    DeleteFile,
    EditError,
    PutFile,
    RemoveComponent,
    ReplaceComponent,
    SetParam,
    apply,
    compose,
    diff,
    invert,
    invert_all,
)
from harness.edit_json import from_json, to_json

BASE = Bundle(
    (
        Component("menu", "output_plumbing", group="menu", params={"limit": 5}),
        Component("prompt", "prompt", path="p.md"),
        Component(
            "window",
            "context_mgmt",
            "harness.processors.history_window:HistoryWindow",
            params={"turns": 4},
        ),
    ),
    {"p.md": File(b"Act.\n"), "run.sh": File(b"\xff\0", True)},
)


def fitting(bundle, edits):
    """The edits that fit the bundle, one after the other, each ending in a bundle."""
    kept = []
    for edit in edits:
        try:
            bundle = apply(bundle, edit)
        except EditError:
            continue
        kept.append(edit)
    return tuple(kept)


# Long enough that most of them hold several edits that fit.
sequences = st.tuples(bundles, st.lists(edits, max_size=16)).map(
    lambda case: (case[0], fitting(*case))
)


@given(sequences)
@settings(max_examples=150, deadline=None)
def test_every_edit_has_an_inverse(case):
    bundle, done = case
    for edit in done:
        after = apply(bundle, edit)
        assert apply(after, invert(bundle, edit)) == bundle
        bundle = after


@given(sequences)
@settings(max_examples=100, deadline=None)
def test_a_sequence_is_undone_last_first(case):
    bundle, done = case
    after = apply(bundle, done)
    assert apply(after, invert_all(bundle, done)) == bundle


@given(sequences)
@settings(max_examples=100, deadline=None)
def test_replayed_from_json_a_sequence_gives_the_same_id(case):
    bundle, done = case
    text = json.dumps(to_json(done), allow_nan=False)
    again = from_json(json.loads(text))
    assert again == done
    assert apply(bundle, again).id == apply(bundle, done).id


@given(sequences, st.integers(0, 6))
@settings(max_examples=100, deadline=None)
def test_a_composition_does_what_its_parts_do(case, cut):
    bundle, done = case
    whole = compose(done[:cut], done[cut:])
    assert len(whole) <= len(done)
    assert apply(bundle, whole) == apply(apply(bundle, done[:cut]), done[cut:])


@given(bundles, bundles)
@settings(max_examples=200, deadline=None)
def test_apply_of_diff_gives_the_other_bundle(a, b):
    done = diff(a, b)
    assert apply(a, done) == b
    assert apply(b, invert_all(a, done)) == a
    assert (done == ()) == (a == b)


def test_a_parameter_change_is_a_set_param_and_no_more():
    changed = apply(BASE, [SetParam("window", "turns", 6), SetParam("menu", "limit", UNSET)])
    assert diff(BASE, changed) == (SetParam("menu", "limit", UNSET), SetParam("window", "turns", 6))


def test_a_new_holder_of_a_singleton_group_is_a_replacement():
    other = Component("list", "output_plumbing", group="menu")
    after = apply(BASE, ReplaceComponent(other))
    assert [item.id for item in after.components] == ["list", "prompt", "window"]
    assert diff(BASE, after) == (ReplaceComponent(other, "menu"),)


def test_a_replacement_finds_the_group_of_a_built_in_class():
    other = Component("short", "context_mgmt", group="history_window")
    assert "window" not in [item.id for item in apply(BASE, ReplaceComponent(other)).components]


def test_a_replacement_finds_the_group_of_own_code_without_running_it():
    source = b"raise SystemExit\nclass Own:\n    singleton_group = 'menu'\n"
    own = Component("own", "processor", "own.py:Own")
    after = apply(BASE, [PutFile("own.py", File(source)), ReplaceComponent(own)])
    assert [item.id for item in after.components] == ["own", "prompt", "window"]


def test_without_a_group_a_replacement_goes_by_id():
    after = apply(BASE, ReplaceComponent(Component("prompt", "prompt", params={"x": 1})))
    assert after.component("prompt").params == {"x": 1}


def test_a_target_that_is_named_goes_before_the_group():
    other = Component("list", "output_plumbing", group="menu")
    after = apply(BASE, ReplaceComponent(other, target="prompt"))
    assert [item.id for item in after.components] == ["list", "menu", "window"]


def test_only_the_end_of_a_sequence_has_to_be_a_bundle():
    assert "p.md" not in apply(BASE, [DeleteFile("p.md"), RemoveComponent("prompt")]).files
    with pytest.raises(EditError, match=r"component 'prompt': path 'p\.md' is not in the bundle"):
        apply(BASE, DeleteFile("p.md"))


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (AddComponent(Component("menu", "prompt")), "already has that id"),
        (RemoveComponent("mneu"), "there is none; did you mean 'menu'"),
        (SetParam("windo", "turns", 1), "did you mean 'window'"),
        (DeleteFile("q.md"), r"did you mean 'p\.md'"),
        (ReplaceComponent(Component("x", "prompt")), "no such component or singleton group"),
        (ReplaceComponent(Component("x", "prompt"), "y"), "replace 'y' by 'x'"),
        (ReplaceComponent(Component("prompt", "prompt"), "menu"), "already has a component"),
    ],
)
def test_an_edit_that_does_not_fit_names_itself(edit, reason):
    with pytest.raises(EditError, match=reason):
        apply(BASE, edit)
    if not isinstance(edit, AddComponent | ReplaceComponent):
        with pytest.raises(EditError, match=reason):
            invert(BASE, edit)


def test_a_group_held_twice_is_not_replaced_by_guess():
    twice = Bundle(tuple(Component(id, "config", group="g") for id in "ab"))
    with pytest.raises(EditError, match="name the id to replace"):
        apply(twice, ReplaceComponent(Component("c", "config", group="g")))


def test_a_value_that_is_not_json_is_refused():
    with pytest.raises(EditError, match="component 'a': params\\.x: nan"):
        SetParam("a", "x", float("nan"))


def test_true_and_one_are_different_values():
    assert SetParam("a", "x", True) != SetParam("a", "x", 1)
    assert SetParam("a", "x", 1.0) == SetParam("a", "x", 1)
    assert SetParam("a", "x", UNSET) != SetParam("a", "x", None)


def test_composition_leaves_out_what_is_overwritten():
    one, two = File(b"1"), File(b"2")
    edits = (
        SetParam("window", "turns", 5),
        PutFile("n", one),
        SetParam("window", "other", 1),
        SetParam("window", "turns", 6),
        PutFile("n", two),
    )
    assert compose(edits) == (
        SetParam("window", "other", 1),
        SetParam("window", "turns", 6),
        PutFile("n", two),
    )
    kept = (SetParam("a", "x", 1), RemoveComponent("a"), AddComponent(Component("a", "config")))
    assert compose(kept, SetParam("a", "x", 2)) == (*kept, SetParam("a", "x", 2))


def test_composition_keeps_a_file_that_a_replacement_in_between_reads_its_group_from():
    edits = (
        PutFile("own.py", File(b"class Own:\n    singleton_group = 'menu'\n")),
        ReplaceComponent(Component("own", "processor", "own.py:Own")),
        PutFile("own.py", File(b"class Own: pass\n")),
    )
    assert compose(edits) == edits
    assert "menu" not in [item.id for item in apply(BASE, compose(edits)).components]


def test_unset_survives_pickling():
    assert pickle.loads(pickle.dumps(SetParam("a", "x", UNSET))).value is UNSET


def test_file_bytes_are_text_where_they_are_utf8():
    edits = (PutFile("a", File("é\r\n".encode())), PutFile("b", File(b"\xff", True)))
    assert to_json(edits) == [
        {"op": "put_file", "path": "a", "text": "é\r\n", "executable": False},
        {"op": "put_file", "path": "b", "base64": "/w==", "executable": True},
    ]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"op": "add_componnet"}, "did you mean 'add_component'"),
        ("x", "op None is unknown"),
        ({"op": "remove_component"}, "'id' is missing"),
        ({"op": "remove_component", "id": 3}, "id 3 must be a str"),
        ({"op": "delete_file", "path": "a", "x": 1}, "'x' is unknown"),
        ({"op": "set_param", "id": "a", "name": "x"}, "exactly one of 'unset' and 'value'"),
        ({"op": "set_param", "id": "a", "name": "x", "unset": False}, "unset is true"),
        ({"op": "put_file", "path": "a", "text": "", "base64": ""}, "exactly one of"),
        ({"op": "put_file", "path": "a", "base64": "!"}, "put_file"),
        ({"op": "add_component", "component": {"id": "a", "kind": "promt"}}, "did you mean"),
        ({"op": "add_component", "component": {"id": "a", "knd": "prompt"}}, "kind missing"),
        ({"op": "add_component", "component": {"id": "a", "kind": "prompt", "x": 1}}, "'x'"),
    ],
)
def test_json_that_is_no_edit_is_refused_with_its_position(record, reason):
    with pytest.raises(EditError, match=reason) as caught:
        from_json([{"op": "delete_file", "path": "a"}, record])
    assert str(caught.value).startswith("edits[1]")
