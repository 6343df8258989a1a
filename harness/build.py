"""From a bundle to its processors: entry points resolved, parameters checked, order decided.

Execution order: whatever `after` names runs before; otherwise the smaller (order, component id)
runs first. Nothing else counts, so the order is the same on every machine.
"""

from __future__ import annotations

import ast
import hashlib
import heapq
import importlib
import linecache
import sys
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType

from pydantic import ValidationError

from harness import functions
from harness.bundle import Bundle, BundleError, Component, File
from harness.component import nearest
from harness.jsonvalue import thaw
from harness.processor import Processor

_PRIVATE = "_harness_own"
_LOADING = threading.Lock()


class BuildError(BundleError):
    """A bundle whose parts do not make a harness. `problems`: every reason at once."""


@dataclass(frozen=True, slots=True)
class BoundProcessor:
    """A component's processor, ready to run.

    id: the component's. order, group, after, needs: in effect, class and manifest taken together.
    """

    id: str
    processor: Processor
    kind: str
    order: int
    group: str | None = None
    after: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


def build(
    bundle: Bundle,
    allow_own_code: bool,
    tools: Collection[str] | None = None,
    *,
    traced: bool = False,
) -> list[BoundProcessor]:
    """The processors of `bundle` in order of execution; components of pure data have none.

    allow_own_code: whether code of the bundle's own files may run in this process. True only
    inside the sandboxed harness process; else such a component is a problem.
    tools: names of the task's tools, for `needs` of the form `tool:NAME`; None leaves those to
    the caller (see `missing_tools`). traced: functions of own code report their calls (see
    harness.functions).

    Raises BuildError with every problem: entry points, parameters, kinds, two components of one
    singleton group, unmet needs, cycles of `after`.
    """
    where = f"bundle {bundle.id[:12]}"
    problems: list[str] = []
    bound: list[BoundProcessor] = []
    # A component that fails below is still there for the needs of the others.
    present = {name for item in bundle.components for name in (item.id, item.group) if name}
    for component in bundle.components:
        if component.entrypoint is None:
            if component.kind == "processor":
                problems.append(
                    f"component {component.id!r}: a processor has an entrypoint; name it"
                )
            continue
        cls = _resolve(bundle, component, allow_own_code, traced, problems)
        if cls is not None:
            if component.group is None and cls.singleton_group is not None:
                present.add(cls.singleton_group)
            _kind_problem(component, cls, problems)
            item = _bind(component, cls, problems)
            if item is not None:
                bound.append(item)
    data = [item for item in bundle.components if item.entrypoint is None]
    holders: list[BoundProcessor | Component] = [*bound, *data]
    problems += _group_problems(holders)
    needs = ((item.id, item.needs) for item in holders)
    problems += _need_problems(needs, present, tools)
    ordered = _sort(bound, problems)
    if problems:
        raise BuildError(problems, where)
    return ordered


def missing_tools(bound: Iterable[BoundProcessor], tools: Collection[str]) -> list[str]:
    """What the task's tools lack of what these processors need, one sentence each."""
    return _need_problems(((item.id, item.needs) for item in bound), None, tools)


def class_group(component: Component, files: Mapping[str, File]) -> str | None:
    """The singleton group in effect, found without running code of the bundle.

    The manifest's; else the class's: a built-in is imported, a file of the bundle is parsed and
    a plain `singleton_group = "..."` in the class body is read. None where it has none, or where
    the class cannot be found (`build` reports that). files: those of the component's bundle.
    """
    if component.group is not None or component.entrypoint is None:
        return component.group
    path = component.own_file
    if path is None:
        cls = _built_in(component, [])
        return cls.singleton_group if cls is not None else None
    file = files.get(path)
    name = component.entrypoint.rpartition(":")[2]
    return _group_in_source(file.content, name) if file is not None else None


def _resolve(
    bundle: Bundle, component: Component, allow_own_code: bool, traced: bool, problems: list[str]
) -> type[Processor] | None:
    path = component.own_file
    if path is None:
        return _built_in(component, problems)
    if not allow_own_code:
        problems.append(
            f"component {component.id!r}: {path!r} is code of the bundle itself and does not run "
            "in this process; build it in the sandboxed harness process"
        )
        return None
    try:
        module = load_own(bundle, path, traced)
    # The one place where a model's code is imported: it may raise anything at all.
    except (Exception, SystemExit) as error:
        text = " ".join(str(error).split())[:500]
        line = _own_line(error, own_filename(bundle, path))
        problems.append(
            f"component {component.id!r}: {path!r}{line} cannot be loaded: "
            f"{type(error).__name__}: {text}"
        )
        return None
    return _class_of(component, module, problems)


def _built_in(component: Component, problems: list[str]) -> type[Processor] | None:
    assert component.entrypoint is not None
    module_name = component.entrypoint.partition(":")[0]
    # `Component` admits only the prefix `harness.` here.
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise  # a dependency of ours is missing: not the bundle's fault
        problems.append(f"component {component.id!r}: there is no built-in module {module_name!r}")
        return None
    return _class_of(component, module, problems)


def _class_of(
    component: Component, module: ModuleType, problems: list[str]
) -> type[Processor] | None:
    assert component.entrypoint is not None
    name = component.entrypoint.rpartition(":")[2]
    found = vars(module).get(name)
    if isinstance(found, type) and issubclass(found, Processor) and found is not Processor:
        return found
    what = "there is no" if found is None else f"{name!r} is a {type(found).__name__}, not a"
    known = sorted(
        key
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Processor) and value is not Processor
    )
    problems.append(
        f"component {component.id!r}: entrypoint {component.entrypoint!r}: {what} Processor "
        f"class{nearest(name, known)}"
    )
    return None


def load_own(bundle: Bundle, path: str, traced: bool = False) -> ModuleType:
    """The module of a bundle's own file, run from its bytes under a private name, once a bundle.

    The module is entered in `sys.modules` (dataclasses and pydantic look annotations up there)
    and its source in `linecache`, so that tracebacks show it. Raises whatever the code raises.
    """
    content = bundle.files[path].content
    digest = hashlib.sha256(path.encode()).hexdigest()[:8]
    name = f"{_PRIVATE}.b{bundle.id[:16]}.f{digest}{'t' if traced else ''}"
    filename = own_filename(bundle, path)
    with _LOADING:
        if name in sys.modules:
            return sys.modules[name]
        if traced:
            code = functions.instrument(content, filename)
        else:
            code = compile(content, filename, "exec", dont_inherit=True)
        module = ModuleType(name)
        module.__file__ = filename
        text = content.decode("utf-8", errors="replace")
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        if traced:
            module.__dict__[functions.DECORATOR] = functions.traced
        sys.modules[name] = module
        try:
            exec(code, module.__dict__)
        except BaseException:
            del sys.modules[name]
            raise
        return module


def own_filename(bundle: Bundle, path: str) -> str:
    """The file name that code objects of a bundle's own file carry: `<bundle 0123456789ab>/path`."""
    return f"<bundle {bundle.id[:12]}>/{path}"


def _own_line(error: BaseException, filename: str) -> str:
    """` line N` where the error arose in the file itself."""
    if isinstance(error, SyntaxError) and error.filename == filename:
        return f" line {error.lineno}"
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == filename:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f" line {line}" if line is not None else ""


def _group_in_source(content: bytes, class_name: str) -> str | None:
    try:
        parsed = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for node in parsed.body:
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            for line in node.body:
                match line:
                    case (
                        ast.Assign(
                            targets=[ast.Name(id="singleton_group")],
                            value=ast.Constant(value=str(group)),
                        )
                        | ast.AnnAssign(
                            target=ast.Name(id="singleton_group"),
                            value=ast.Constant(value=str(group)),
                        )
                    ):
                        return group
    return None


def _kind_problem(component: Component, cls: type[Processor], problems: list[str]) -> None:
    """An edit counts as its component's kind, so the manifest may not contradict the class."""
    if cls.kind not in (Processor.kind, component.kind):
        problems.append(
            f"component {component.id!r}: kind is {component.kind!r}, but {cls.__name__} is a "
            f"{cls.kind!r}; write kind: {cls.kind}"
        )


def _bind(component: Component, cls: type[Processor], problems: list[str]) -> BoundProcessor | None:
    where = f"component {component.id!r}"
    try:
        processor = cls.model_validate(thaw(component.params))
    except ValidationError as error:
        known = tuple(cls.model_fields)
        for item in error.errors(include_url=False, include_context=False):
            name = ".".join(str(step) for step in item["loc"]) or "(all)"
            if item["type"] == "extra_forbidden":
                problems.append(f"{where}: params.{name}: unknown parameter{nearest(name, known)}")
            else:
                given = repr(item["input"])[:120]
                problems.append(f"{where}: params.{name} = {given}: {item['msg']}")
        return None
    return BoundProcessor(
        id=component.id,
        processor=processor,
        kind=component.kind,
        order=cls.order if component.order is None else component.order,
        group=cls.singleton_group if component.group is None else component.group,
        after=tuple(sorted({*cls.after, *component.after})),
        needs=tuple(sorted({*cls.needs, *component.needs})),
    )


def _group_problems(holders: Iterable[BoundProcessor | Component]) -> list[str]:
    members: dict[str, list[str]] = {}
    for item in holders:
        if item.group is not None:
            members.setdefault(item.group, []).append(item.id)
    return [
        f"components {', '.join(map(repr, sorted(ids)))} are all of the singleton group {group!r}; "
        "keep one"
        for group, ids in sorted(members.items())
        if len(ids) > 1
    ]


def _need_problems(
    needs: Iterable[tuple[str, tuple[str, ...]]],
    present: Collection[str] | None,
    tools: Collection[str] | None,
) -> list[str]:
    problems = []
    for id, names in needs:
        for name in names:
            if name.startswith("tool:"):
                if tools is not None and name[5:] not in tools:
                    problems.append(
                        f"component {id!r} needs the tool {name[5:]!r}, which the task does not "
                        f"offer{nearest(name[5:], sorted(tools))}"
                    )
            elif present is not None and name not in present:
                problems.append(
                    f"component {id!r} needs a component or group {name!r}, which the bundle "
                    f"lacks{nearest(name, sorted(present))}"
                )
    return problems


def _sort(bound: list[BoundProcessor], problems: list[str]) -> list[BoundProcessor]:
    """Topological by `after`, ties by (order, id); a cycle is added to `problems`."""
    by_id = {item.id: item for item in bound}
    named: dict[str, set[str]] = {}
    for item in bound:
        named.setdefault(item.id, set()).add(item.id)
        if item.group is not None:
            named.setdefault(item.group, set()).add(item.id)
    before = {item.id: {id for name in item.after for id in named.get(name, ())} for item in bound}
    waiting = {id: len(earlier) for id, earlier in before.items()}
    ready = [(item.order, item.id) for item in bound if not waiting[item.id]]
    heapq.heapify(ready)
    ordered: list[BoundProcessor] = []
    while ready:
        _, id = heapq.heappop(ready)
        ordered.append(by_id[id])
        for later in bound:
            if id in before[later.id]:
                waiting[later.id] -= 1
                if not waiting[later.id]:
                    heapq.heappush(ready, (later.order, later.id))
    left = set(by_id) - {item.id for item in ordered}
    if left:
        cycle = _cycle(left, before)
        problems.append(f"`after` runs in a circle: {' after '.join(map(repr, cycle))}; break it")
    return ordered


def _cycle(left: set[str], before: dict[str, set[str]]) -> list[str]:
    """One cycle among the ids left over: each of them has a predecessor that is left over too."""
    path = [min(left)]
    while path[-1] not in path[:-1]:
        path.append(min(before[path[-1]] & left))
    return path[path.index(path[-1]) :]
