"""Hypothesis strategies for valid bundles and edits, over small pools so that they collide."""

from dataclasses import replace

from hypothesis import strategies as st

from harness.bundle import Bundle, Component, File
from harness.edit import (
    UNSET,
    AddComponent,
    DeleteFile,
    PutFile,
    RemoveComponent,
    ReplaceComponent,
    SetParam,
)

IDS = ("alpha", "beta", "gamma", "delta")
PATHS = ("prompts/a.md", "prompts/b.md", "skills/x/run.sh", "notes.txt")
GROUPS = ("window", "menu")

text = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
# Any JSON at all: for reading, writing and ids.
rich_params = st.dictionaries(st.sampled_from(("yes", "1", "<<", "=")) | text, values, max_size=3)
rich_file = st.builds(File, st.binary(max_size=12), st.booleans())

# A few values that are easily taken for one another: for the algebra of edits.
value = st.sampled_from((None, True, 1, 0, False, "1", (), {"k": (1,)}))
params = st.sampled_from(({}, {"a": 1}, {"a": True}, {"a": 1, "b": None}, {"b": ""}))
file = st.sampled_from((File(b""), File(b"x"), File(b"x", True), File(b"\xff\0"), File(b"y\n")))

component = st.builds(
    Component,
    id=st.sampled_from(IDS),
    kind=st.sampled_from(("prompt", "skill")),
    params=params,
    path=st.sampled_from((None, *PATHS)),
    order=st.sampled_from((None, 0, 100)),
    group=st.sampled_from((None, *GROUPS)),
    after=st.sampled_from(((), ("menu",), ("menu", "alpha"))),
)
components = st.lists(component, max_size=4, unique_by=lambda item: item.id)


def _bundle(parts, tree):
    """The bundle of these, without the paths that are not in the tree."""
    fixed = (item if item.path in tree else replace(item, path=None) for item in parts)
    return Bundle(tuple(fixed), tree)


bundles = st.builds(_bundle, components, st.dictionaries(st.sampled_from(PATHS), file, max_size=4))
rich_bundles = st.builds(
    lambda bundle, settings, tree: Bundle(
        tuple(
            replace(item, params=values)
            for item, values in zip(bundle.components, settings, strict=False)
        ),
        {**bundle.files, **tree},
    ),
    bundles,
    st.lists(rich_params, min_size=4, max_size=4),
    st.dictionaries(st.sampled_from(PATHS), rich_file, max_size=2),
)

edits = (
    st.builds(PutFile, st.sampled_from(PATHS), file)
    | st.builds(DeleteFile, st.sampled_from(PATHS))
    | st.builds(AddComponent, component)
    | st.builds(RemoveComponent, st.sampled_from(IDS))
    | st.builds(SetParam, st.sampled_from(IDS), st.sampled_from(("a", "b")), value | st.just(UNSET))
    | st.builds(ReplaceComponent, component, st.sampled_from((None, *IDS, *GROUPS)))
)
