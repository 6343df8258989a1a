"""`coevo harness run` and `verify`: one episode by hand, by a script, by chance or by a model."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from coevo.harness_cli import HarnessCommandError
from coevo.harness_commands import SHORT, is_store, open_bundle, open_store
from coevo.harness_view import ShownHost, show_end
from harness.build import build
from harness.bundle import Bundle, BundleError
from harness.events import TaskView, ToolCallSpec
from harness.handbook import check as check_handbook
from harness.host import Host, HostError, ModelReply, ModelRequest, ToolReply, ToolRequest
from harness.metered import Budgets
from harness.processors.parse_repair import calls_in
from harness.sandbox import Ran, Sandbox, run_inprocess
from harness.store import StoreError
from harness.tools.builtin import UnknownTool, built_in
from harness.tools.confined import Confined
from harness.tools.registry import ToolHost, ToolRegistry
from harness.tools.workspace import Workspace
from rollout.envs import UnknownEnvironment, make_env
from rollout.envs.base import EnvError, Observation, Session
from rollout.policy.base import EngineError
from rollout.task import SPLITS, Task

Answer = Callable[[ModelRequest], ModelReply]
REHEARSED = ("harness_error", "contract_violation", "infra_error")


@dataclass(slots=True)
class Setup:
    """What is to be run: the task as the harness sees it, and its session where it has one."""

    view: TaskView
    task: Task | None = None
    session: Session | None = None
    first: ToolReply = ToolReply("")  # noqa: RUF009


class TaskHost:
    """A Host over an environment's session whose model is a function."""

    def __init__(self, answer: Answer, session: Session | None) -> None:
        self._answer = answer
        self._session = session

    async def model(self, request: ModelRequest) -> ModelReply:
        return self._answer(request)

    async def tool(self, request: ToolRequest) -> ToolReply:
        if self._session is None:
            return ToolReply(f"there is no tool {request.name!r}", True)
        try:
            return _reply(self._session.step(request.name, request.input))
        except EnvError as error:
            raise HostError("infra", f"environment: {error}") from error


def _reply(seen: Observation) -> ToolReply:
    return ToolReply(seen.text, seen.is_error, seen.choices, seen.done)


# --- policies that are functions ---


def random_policy(seed: int) -> Answer:
    """Any of the actions that are admitted; a word where there is none."""
    rng = random.Random(seed)

    def answer(request: ModelRequest) -> ModelReply:
        choices = next((m.choices for m in reversed(request.messages) if m.choices), ())
        return ModelReply(rng.choice(choices) if choices else "done")

    return answer


def script_policy(path: Path) -> Answer:
    """The lines of a file, one a model call: plain text, or `{"name": TOOL, "arguments": {…}}`.

    Raises HarnessCommandError; a script that ends early is an infrastructure error of the run.
    """
    try:
        lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise HarnessCommandError(f"--policy script:{path}: {error}") from error
    replies = iter(enumerate(lines))

    def answer(request: ModelRequest) -> ModelReply:
        at, line = next(replies, (0, None))
        if line is None:
            raise HostError("infra", f"the script has only {len(lines)} replies")
        return said(line, f"script-{at}")

    return answer


def hand_policy(console: Console) -> Answer:
    """What you type. Ctrl-D ends the run."""

    def answer(request: ModelRequest) -> ModelReply:
        try:
            line = console.input("[bold]your answer[/bold] (text, or a JSON tool call) > ")
        except EOFError as error:
            raise HarnessCommandError("ended by you") from error
        return said(line, f"hand-{request.step}")

    return answer


def said(line: str, call_id: str) -> ModelReply:
    """A reply as text, or as a tool call where it is a JSON object with `name` and `arguments`."""
    text, calls = calls_in(line, set(), call_id)
    calls = tuple(ToolCallSpec(call.call_id, call.name, call.input) for call in calls)
    return ModelReply(text, calls, "tool_calls" if calls else "stop", sampled_tokens=1)


# --- the task ---


def setup(arguments: argparse.Namespace) -> Setup:
    """The task that the arguments name. Raises HarnessCommandError."""
    if arguments.instruction is not None:
        return Setup(TaskView(arguments.instruction, "none"))
    options = {}
    for item in arguments.env_option:
        name, found, value = item.partition("=")
        if not found:
            raise HarnessCommandError(f"--env-option {item}: KEY=VALUE is expected")
        options[name] = yaml.safe_load(value)
    try:
        env = make_env(arguments.env, **options)
    except (UnknownEnvironment, ValueError, TypeError) as error:
        raise HarnessCommandError(f"--env {arguments.env}: {error}") from error
    if arguments.split not in SPLITS:
        raise HarnessCommandError(
            f"--split {arguments.split}: one of {', '.join(SPLITS)} is expected"
        )
    tasks = env.tasks(arguments.split)
    named = [task for task in tasks if task.id == arguments.task]
    if arguments.task.isdigit() and int(arguments.task) < len(tasks):
        named = [tasks[int(arguments.task)]]
    if not named:
        raise HarnessCommandError(
            f"--task {arguments.task}: a number below {len(tasks)} or an id such as "
            f"{tasks[0].id} is expected"
        )
    session = env.open(named[0], arguments.seed)
    return Setup(named[0].view, named[0], session, _reply(session.reset()))


# --- running ---


async def run_bundle(
    bundle: Bundle,
    view: TaskView,
    first: ToolReply,
    host: Host,
    *,
    sandbox: str,
    seed: int,
    max_steps: int,
) -> Ran:
    """One episode: own code in the sandbox, built-in parts alone in this process."""
    options: dict[str, Any] = {
        "seed": seed,
        "budgets": Budgets(max_steps=max_steps),
        "trace_level": "full",
    }
    if not bundle.has_own_code:
        return await run_inprocess(bundle, view, first, host, **options)
    box = Sandbox(sandbox, slots=1)  # type: ignore[arg-type]
    try:
        return await box.run(bundle, view, first, host, **options)
    finally:
        await box.close()


def run_command(arguments: argparse.Namespace) -> None:
    """`coevo harness run`. Raises HarnessCommandError for what a user can mend."""
    asyncio.run(_run(arguments))


async def _run(arguments: argparse.Namespace) -> None:
    console = Console(highlight=False)
    bundle = open_bundle(arguments.bundle)
    if not bundle.has_own_code:
        build(bundle, allow_own_code=False)
    task = setup(arguments)
    if arguments.max_steps is not None and arguments.max_steps < 1:
        raise HarnessCommandError(f"--max-steps {arguments.max_steps}: 1 or more is expected")
    with tempfile.TemporaryDirectory(prefix="coevo-") as scratch:
        registry = _tools(arguments, Path(scratch))
        view = registry.offered(task.view)
        async with _model(arguments, task, console) as host:
            shown = ShownHost(ToolHost(host, registry), console)
            ran = await run_bundle(
                bundle,
                view,
                task.first,
                shown,
                sandbox=arguments.sandbox,
                seed=arguments.seed,
                max_steps=arguments.max_steps or view.max_steps,
            )
    score = task.session.score() if task.session is not None else None
    show_end(console, ran, score)
    if task.session is not None:
        task.session.close()
    if arguments.trace is not None:
        arguments.trace.write_text(json.dumps(ran.trace, indent=1) + "\n", encoding="utf-8")
        console.print(f"trace: {arguments.trace}", markup=False)


def _tools(arguments: argparse.Namespace, scratch: Path) -> ToolRegistry:
    names = [name for name in arguments.tools.split(",") if name]
    root = arguments.workdir or scratch
    if not root.is_dir():
        raise HarnessCommandError(f"--workdir {root}: there is no such directory")
    try:
        return built_in(names, Confined(Workspace(root), arguments.sandbox))
    except UnknownTool as error:
        raise HarnessCommandError(f"--tools {arguments.tools}: {error}") from error


@asynccontextmanager
async def _model(
    arguments: argparse.Namespace, task: Setup, console: Console
) -> AsyncIterator[Host]:
    name, _, value = arguments.policy.partition(":")
    if name == "model" and value:
        if not Path(value, "config.json").is_file():
            raise HarnessCommandError(f"--policy {arguments.policy}: {value} has no config.json")
        try:
            from coevo.harness_model import model_answers
        except ImportError as error:
            raise HarnessCommandError(
                f"{error}. The engines are not installed: run `make install`, or "
                "`pip install 'coevo[cpu]'` (`coevo[gpu]` on CUDA machines)"
            ) from error
        try:
            async with model_answers(value, arguments.seed) as model:
                yield _Served(model, TaskHost(random_policy(0), task.session))
        except EngineError as error:
            raise HarnessCommandError(f"--policy {arguments.policy}: {error}") from error
        return
    if name == "hand" and not value:
        answer = hand_policy(console)
    elif name == "random" and not value:
        answer = random_policy(arguments.seed)
    elif name == "script" and value:
        answer = script_policy(Path(value))
    else:
        raise HarnessCommandError(
            f"--policy {arguments.policy}: hand, random, script:FILE or model:DIRECTORY is expected"
        )
    yield TaskHost(answer, task.session)


class _Served:
    """Model calls of one host, tool calls of another."""

    def __init__(self, model: Callable[[ModelRequest], Any], tools: TaskHost) -> None:
        self._model = model
        self._tools = tools

    async def model(self, request: ModelRequest) -> ModelReply:
        reply: ModelReply = await self._model(request)
        return reply

    async def tool(self, request: ToolRequest) -> ToolReply:
        return await self._tools.tool(request)


# --- verifying ---


def verify_command(arguments: argparse.Namespace) -> None:
    """`coevo harness verify`. Raises HarnessCommandError naming every bundle that fails."""
    path = Path(arguments.target)
    if path.is_dir() and is_store(path):
        store = open_store(path)
        targets = [f"{path}@{id}" for id in store.ids()]
        store.records()
    else:
        targets = [arguments.target]
    bad = []
    for target in targets:
        name = target.rpartition("@")[2][:SHORT] if len(targets) > 1 else target
        try:
            bundle = open_bundle(target)  # checks the id
            name = bundle.id[:SHORT]
            problem = _problem(bundle, arguments)
        except (BundleError, StoreError) as error:
            problem = str(error)
        print(f"{name}: {problem or 'ok'}")
        if problem:
            bad.append(name)
    if bad:
        raise HarnessCommandError(f"{len(bad)} of {len(targets)} do not run: {', '.join(bad)}")


def _problem(bundle: Bundle, arguments: argparse.Namespace) -> str:
    """Why the bundle cannot run; empty where it can. Raises BundleError."""
    check_handbook(bundle)
    if not bundle.has_own_code:
        build(bundle, allow_own_code=False)
    if arguments.static:
        return ""
    env = make_env("household", counts={"evolve": 1})
    task = env.tasks("evolve")[0]
    session = env.open(task, 0)
    first = _reply(session.reset())
    # `needs` may name tools of other tasks; here it is only asked whether the bundle runs.
    named = {need[5:] for item in bundle.components for need in item.needs if need[:5] == "tool:"}
    known = {tool.name for tool in task.view.tools}
    more = tuple(replace(task.view.tools[0], name=name) for name in sorted(named - known))
    view = replace(task.view, tools=(*task.view.tools, *more))
    host = TaskHost(random_policy(0), session)
    ran = asyncio.run(
        run_bundle(bundle, view, first, host, sandbox=arguments.sandbox, seed=0, max_steps=1)
    )
    session.close()
    return f"{ran.result.status}: {ran.result.reason}" if ran.result.status in REHEARSED else ""
