"""Three-way merge: disjoint changes combine in either order, the rest is shown, never guessed."""

import pickle

import pytest
from bundle_strategies import bundles, edits
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.bundle import Bundle, Component, File
from harness.edit import (
    AddComponent,
    DeleteFile,
    EditError,
    PutFile,
    RemoveComponent,
    ReplaceComponent,
    SetParam,
    apply,
)
from harness.merge import MergeConflict, merge

BASE = Bundle(
    (
        Component("menu", "output_plumbing", group="menu", params={"limit": 5}),
        Component("prompt", "prompt", path="p.md", params={"a": 1, "b": 1}),
    ),
    {"p.md": File(b"Act.\n"), "n.txt": File(b"n")},
)


def changed(bundle, edits):
    for edit in edits:
        try:
            bundle = apply(bundle, edit)
        except EditError:
            continue
    return bundle


few = st.lists(edits, max_size=6)
sides = st.tuples(bundles, few, few).map(
    lambda case: (case[0], changed(case[0], case[1]), changed(case[0], case[2]))
)


def merged(base, ours, theirs):
    try:
        return merge(base, ours, theirs)
    except MergeConflict as error:
        return {(item.what, item.name) for item in error.conflicts}, error.problems


@given(sides)
@settings(max_examples=100, deadline=None)
def test_merge_commutes(case):
    base, ours, theirs = case
    assert merged(base, ours, theirs) == merged(base, theirs, ours)


@given(sides)
@settings(max_examples=100, deadline=None)
def test_a_side_that_changed_nothing_has_no_say(case):
    base, ours, _ = case
    assert merge(base, ours, base) == merge(base, base, ours) == merge(base, ours, ours) == ours


def test_disjoint_edits_merge_to_both_in_either_order():
    one = [SetParam("menu", "limit", 9), PutFile("new.md", File(b"x"))]
    two = [SetParam("prompt", "a", 2), DeleteFile("n.txt"), AddComponent(Component("k", "skill"))]
    both = apply(apply(BASE, one), two)
    assert merge(BASE, apply(BASE, one), apply(BASE, two)) == both
    assert merge(BASE, apply(BASE, two), apply(BASE, one)) == both


def test_the_parameters_of_a_component_are_one_unit():
    ours, theirs = apply(BASE, SetParam("prompt", "a", 2)), apply(BASE, SetParam("prompt", "b", 2))
    with pytest.raises(MergeConflict) as caught:
        merge(BASE, ours, theirs)
    (conflict,) = caught.value.conflicts
    assert (conflict.what, conflict.name) == ("component", "prompt")
    assert (conflict.base, conflict.ours, conflict.theirs) == tuple(
        side.component("prompt") for side in (BASE, ours, theirs)
    )
    for text in ('base   {"id":"prompt"', '"a":2,"b":1', '"a":1,"b":2'):
        assert text in str(caught.value)


def test_a_removal_against_a_change_is_a_conflict():
    ours = apply(BASE, [RemoveComponent("menu"), DeleteFile("n.txt")])
    theirs = apply(BASE, [SetParam("menu", "limit", 1), PutFile("n.txt", File(b"m"))])
    with pytest.raises(MergeConflict) as caught:
        merge(BASE, ours, theirs)
    assert [(item.what, item.ours) for item in caught.value.conflicts] == [
        ("component", None),
        ("file", None),
    ]
    assert "(absent)" in str(caught.value)


def test_an_executable_bit_is_part_of_the_file():
    ours = apply(BASE, PutFile("n.txt", File(b"n", True)))
    theirs = apply(BASE, PutFile("n.txt", File(b"m")))
    with pytest.raises(MergeConflict, match="1 bytes, executable"):
        merge(BASE, ours, theirs)


def test_two_newcomers_of_one_singleton_group_are_a_conflict():
    ours, theirs = (
        apply(BASE, ReplaceComponent(Component(id, "output_plumbing", group="menu"))) for id in "xy"
    )
    with pytest.raises(MergeConflict) as caught:
        merge(BASE, ours, theirs)
    (conflict,) = caught.value.conflicts
    assert (conflict.what, conflict.name) == ("group", "menu")
    assert [conflict.base.id, conflict.ours.id, conflict.theirs.id] == ["menu", "x", "y"]


def test_sides_that_are_no_bundle_together_are_refused():
    ours = apply(BASE, DeleteFile("n.txt"))
    theirs = apply(BASE, AddComponent(Component("k", "skill", path="n.txt")))
    with pytest.raises(MergeConflict, match=r"path 'n\.txt' is not in the bundle") as caught:
        merge(BASE, ours, theirs)
    assert pickle.loads(pickle.dumps(caught.value)).problems == caught.value.problems
