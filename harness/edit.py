"""Typed edits of a bundle: apply, invert, compose, and the edits that lead from one to another.

Source: the substitution algebra of HarnessX §3. Every edit has an inverse; a sequence is applied
as one, so only its end has to be a valid bundle.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from harness.build import class_group
from harness.bundle import Bundle, BundleError, Component, File
from harness.component import nearest
from harness.jsonvalue import canonical, freeze


class EditError(ValueError):
    """An edit that does not fit its bundle; the message names the edit and what it expected."""


class _Unset:
    """The type of UNSET; there is one value, which survives pickling."""

    def __repr__(self) -> str:
        return "UNSET"

    def __reduce__(self) -> str:
        return "UNSET"


UNSET: Final = _Unset()
"""As the value of SetParam: the parameter is left to the class's default."""


@dataclass(frozen=True, slots=True)
class AddComponent:
    """Add a component under an id that the bundle does not have."""

    component: Component


@dataclass(frozen=True, slots=True)
class ReplaceComponent:
    """Put `component` in the place of another.

    target: the component id, else the singleton group, to replace. None: the holder of the new
    component's singleton group, else the component of the same id.
    """

    component: Component
    target: str | None = None


@dataclass(frozen=True, slots=True)
class RemoveComponent:
    id: str


@dataclass(frozen=True, slots=True, eq=False)
class SetParam:
    """Set one parameter of a component to a JSON value, or to UNSET."""

    id: str
    name: str
    value: Any

    def __post_init__(self) -> None:
        if self.value is not UNSET:
            problems: list[str] = []
            value = freeze(self.value, f"component {self.id!r}: params.{self.name}", problems)
            if problems:
                raise EditError("; ".join(problems))
            object.__setattr__(self, "value", value)

    def __eq__(self, other: object) -> bool:
        # Canonical text tells True from 1, which `==` does not.
        return isinstance(other, SetParam) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[str, str, str]:
        return self.id, self.name, _value_key(self.value)


@dataclass(frozen=True, slots=True)
class PutFile:
    """Write a file, new or in the place of the old one."""

    path: str
    file: File


@dataclass(frozen=True, slots=True)
class DeleteFile:
    path: str


Edit = AddComponent | ReplaceComponent | RemoveComponent | SetParam | PutFile | DeleteFile


def apply(bundle: Bundle, edits: Edit | Iterable[Edit]) -> Bundle:
    """The bundle after the edits, in order.

    Raises EditError when an edit does not fit, or when the result is no bundle (then chained to
    the BundleError, whose problems it repeats).
    """
    draft = _Draft(bundle)
    for edit in _sequence(edits):
        draft.apply(edit)
    return draft.done()


def invert(bundle: Bundle, edit: Edit) -> Edit:
    """The edit that takes `apply(bundle, edit)` back to `bundle`. Raises EditError as `apply`."""
    return _Draft(bundle).invert(edit)


def invert_all(bundle: Bundle, edits: Iterable[Edit]) -> tuple[Edit, ...]:
    """The edits that undo a whole sequence, last first."""
    draft, undo = _Draft(bundle), []
    for edit in edits:
        undo.append(draft.invert(edit))
        draft.apply(edit)
    return tuple(reversed(undo))


def compose(*parts: Edit | Iterable[Edit]) -> tuple[Edit, ...]:
    """One sequence that does what the parts do one after the other.

    A SetParam or PutFile that a later one overwrites, with nothing in between that depends on it,
    is left out.
    """
    out: list[Edit] = []
    for edit in (edit for part in parts for edit in _sequence(part)):
        for at in range(len(out) - 1, -1, -1):
            earlier = out[at]
            if _overwrites(edit, earlier):
                del out[at]
                break
            if not _independent(edit, earlier):
                break
        out.append(edit)
    return tuple(out)


def diff(a: Bundle, b: Bundle) -> tuple[Edit, ...]:
    """The edits with `apply(a, diff(a, b)) == b`: components by id, then files by path.

    A component whose parameters alone differ gives a SetParam a parameter. One that leaves as
    another of its singleton group arrives gives one ReplaceComponent.
    """
    old = {item.id: item for item in a.components}
    new = {item.id: item for item in b.components}
    gone = {id: item for id, item in old.items() if id not in new}
    fresh = {id: item for id, item in new.items() if id not in old}
    edits: list[Edit] = []
    for id, target in _successors(a, gone, b, fresh).items():
        edits.append(ReplaceComponent(fresh.pop(id), target))
        del gone[target]
    edits += (RemoveComponent(id) for id in gone)
    for id in (id for id in old if id in new):
        if old[id] == new[id]:
            continue
        if replace(old[id], params=new[id].params) == new[id]:
            edits += _param_edits(old[id], new[id])
        else:
            edits.append(ReplaceComponent(new[id], id))
    edits += (AddComponent(item) for item in fresh.values())
    edits += (DeleteFile(path) for path in a.files if path not in b.files)
    edits += (PutFile(path, file) for path, file in b.files.items() if a.files.get(path) != file)
    return tuple(edits)


def _value_key(value: Any) -> str:
    """A text that is equal for equal JSON values only, whatever the order of their keys."""
    if value is UNSET:
        return "UNSET"
    return canonical(value)


class _Draft:
    """A bundle in the making: not yet checked as a whole."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.components = {item.id: item for item in bundle.components}
        self.files = dict(bundle.files)

    def done(self) -> Bundle:
        try:
            return Bundle(tuple(self.components.values()), self.files)
        except BundleError as error:
            raise EditError(f"the edits do not end in a bundle: {error}") from error

    def apply(self, edit: Edit) -> None:
        match edit:
            case AddComponent(component):
                if component.id in self.components:
                    raise EditError(
                        f"add component {component.id!r}: the bundle already has that id; "
                        "replace it or take another id"
                    )
                self.components[component.id] = component
            case ReplaceComponent(component):
                old = self._target(edit)
                if component.id != old and component.id in self.components:
                    raise EditError(
                        f"replace {old!r} by {component.id!r}: the bundle already has a component "
                        f"{component.id!r}; take another id or remove that one first"
                    )
                del self.components[old]
                self.components[component.id] = component
            case RemoveComponent(id):
                self._component(id, "remove")
                del self.components[id]
            case SetParam(id, name, value):
                component = self._component(id, f"set {name!r} of")
                params = dict(component.params)
                if value is not UNSET:
                    params[name] = value
                elif name in params:
                    del params[name]
                self.components[id] = replace(component, params=params)
            case PutFile(path, file):
                self.files[path] = file
            case DeleteFile(path):
                self._file(path)
                del self.files[path]

    def invert(self, edit: Edit) -> Edit:
        match edit:
            case AddComponent(component):
                return RemoveComponent(component.id)
            case ReplaceComponent(component):
                return ReplaceComponent(self.components[self._target(edit)], component.id)
            case RemoveComponent(id):
                return AddComponent(self._component(id, "remove"))
            case SetParam(id, name):
                params = self._component(id, f"set {name!r} of").params
                return SetParam(id, name, params.get(name, UNSET))
            case PutFile(path):
                return PutFile(path, self.files[path]) if path in self.files else DeleteFile(path)
            case DeleteFile(path):
                return PutFile(path, self._file(path))

    def _component(self, id: str, verb: str) -> Component:
        if id not in self.components:
            raise EditError(f"{verb} component {id!r}: there is none{nearest(id, self.components)}")
        return self.components[id]

    def _file(self, path: str) -> File:
        if path not in self.files:
            raise EditError(f"delete file {path!r}: there is none{nearest(path, self.files)}")
        return self.files[path]

    def _target(self, edit: ReplaceComponent) -> str:
        """The id of the component that the edit replaces."""
        new = edit.component
        if edit.target is not None and edit.target in self.components:
            return edit.target
        group = edit.target if edit.target is not None else self._group(new)
        if group is not None:
            held = [id for id, item in self.components.items() if self._group(item) == group]
            if len(held) > 1:
                raise EditError(
                    f"replace by {new.id!r}: components {', '.join(map(repr, held))} are all of "
                    f"the singleton group {group!r}; name the id to replace"
                )
            if held:
                return held[0]
        if edit.target is None and new.id in self.components:
            return new.id
        raise EditError(
            f"replace {edit.target or group or new.id!r} by {new.id!r}: there is no such component "
            f"or singleton group{nearest(edit.target or new.id, self.components)}"
        )

    def _group(self, component: Component) -> str | None:
        return class_group(component, self.files)


def _sequence(edits: Edit | Iterable[Edit]) -> Iterable[Edit]:
    return (edits,) if isinstance(edits, Edit) else edits


def _successors(
    a: Bundle, gone: dict[str, Component], b: Bundle, fresh: dict[str, Component]
) -> dict[str, str]:
    """id that arrives -> id that leaves, where each is the only one of their singleton group."""

    def by_group(bundle: Bundle, items: dict[str, Component]) -> dict[str, list[str]]:
        out: dict[str, list[str]] = {}
        for id, item in items.items():
            group = class_group(item, bundle.files)
            if group is not None:
                out.setdefault(group, []).append(id)
        return out

    left, arrived = by_group(a, gone), by_group(b, fresh)
    return {
        arrived[group][0]: ids[0]
        for group, ids in left.items()
        if len(ids) == 1 and len(arrived.get(group, ())) == 1
    }


def _param_edits(old: Component, new: Component) -> Iterable[Edit]:
    for name in sorted({*old.params, *new.params}):
        edit = SetParam(old.id, name, new.params.get(name, UNSET))
        if edit != SetParam(old.id, name, old.params.get(name, UNSET)):
            yield edit


def _overwrites(later: Edit, earlier: Edit) -> bool:
    match later, earlier:
        case SetParam(id, name), SetParam(other_id, other_name):
            return (id, name) == (other_id, other_name)
        case PutFile(path), PutFile(other):
            return path == other
    return False


def _independent(a: Edit, b: Edit) -> bool:
    """Whether the two may change places, judged without a bundle, hence with caution.

    A replacement may look a singleton group up in the files, so it commutes with nothing.
    """
    if isinstance(a, ReplaceComponent) or isinstance(b, ReplaceComponent):
        return False
    if isinstance(a, SetParam) and isinstance(b, SetParam):
        return (a.id, a.name) != (b.id, b.name)
    return _touched(a) != _touched(b)


def _touched(edit: Edit) -> Sequence[str]:
    match edit:
        case AddComponent(component) | ReplaceComponent(component):
            return ("component", component.id)
        case RemoveComponent(id) | SetParam(id):
            return ("component", id)
        case PutFile(path) | DeleteFile(path):
            return ("file", path)
