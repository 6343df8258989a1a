"""Feeds an event through every processor of a hook, and checks the hook's contract after each call.

Source: HarnessX §3. A call has one of five outcomes: pass, transform, split (every part goes
through the later processors, in order), intercept (no event is left) and interrupt (raised). A
breach of the contract raises; there is no mode that only warns.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Iterable
from itertools import islice
from time import perf_counter_ns
from typing import Any, Protocol

from harness.contract import READ_ONLY, SNAPSHOT, Breach, Snapshot, check
from harness.events import HOOKS
from harness.host import HostError
from harness.jsonvalue import FrozenMutation
from harness.processor import Context, Interrupt, Processor

MAX_YIELDS = 64
"""Events that one call of a processor may yield."""

INTERRUPT_STATUSES = ("completed", "truncated", "agent_error")
"""What a processor may end a run as: it cannot declare an infrastructure error (that is unscored)."""

ContextFactory = Callable[[str], Context]
Chain = tuple[tuple[str, Callable[..., Any], bool], ...]
"""(component, hook method, whether it is an async generator), in running order."""


class PipelineError(TypeError):
    """A hook method is no generator: the bundle cannot run."""


class HarnessFault(RuntimeError):
    """A processor broke the run: base of ContractViolation and ProcessorError."""

    def __init__(self, message: str, processor: str, hook: str) -> None:
        super().__init__(message)
        self.processor = processor
        self.hook = hook


class ContractViolation(HarnessFault):
    """A processor changed, or yielded, what its hook does not allow."""

    def __init__(self, processor: str, hook: str, field: str, detail: str) -> None:
        super().__init__(f"processor {processor!r} at {hook}: {field} {detail}", processor, hook)
        self.field = field
        self.detail = detail


class ProcessorError(HarnessFault):
    """A processor raised; `cause` is its exception."""

    def __init__(self, processor: str, hook: str, cause: BaseException) -> None:
        super().__init__(
            f"processor {processor!r} at {hook} raised {describe(cause)}",
            processor,
            hook,
        )
        self.cause = cause


def offers(processor: Processor) -> bool:
    """Whether the processor offers tools of its own."""
    return type(processor).own_tools is not Processor.own_tools


def describe(error: BaseException) -> str:
    """`Type: message`, also where a model's exception class cannot say its message."""
    try:
        message = str(error)[:2000]
    except Exception as broken:
        message = f"(its message raised {type(broken).__name__})"
    return f"{type(error).__name__}: {message}"


class Bound(Protocol):
    """What the pipeline needs of `harness.build.BoundProcessor`."""

    @property
    def id(self) -> str: ...

    @property
    def processor(self) -> Processor: ...


class Pipeline:
    """The processors of one bundle, by hook, in the order given.

    Stateless: one pipeline may serve many episodes at once. Raises PipelineError where a hook method
    is neither a generator nor an async generator.
    """

    def __init__(self, bound: Iterable[Bound], max_yields: int = MAX_YIELDS) -> None:
        self.max_yields = max_yields
        bound = tuple(bound)
        self._chains: dict[str, tuple[Chain, tuple[str, tuple[str, ...]]]] = {}
        # Components that answer tool calls of their own (see harness.owntools).
        self.offering = tuple((item.id, item.processor) for item in bound if offers(item.processor))
        for hook in HOOKS:
            chain = []
            for item in bound:
                method = getattr(item.processor, hook, None)
                if method is None:
                    continue
                asynchronous = inspect.isasyncgenfunction(method)
                if not asynchronous and not inspect.isgeneratorfunction(method):
                    raise PipelineError(
                        f"processor {item.id!r}: {hook} is no generator; write it with `yield` "
                        "(no yield at all would intercept)"
                    )
                chain.append((item.id, method, asynchronous))
            entry = (hook, tuple(component for component, _, _ in chain))
            self._chains[hook] = (tuple(chain), entry)

    def components(self, hook: str) -> tuple[str, ...]:
        """Ids of the processors that define `hook`, in running order."""
        return self._chains[hook][1][1]

    async def run(
        self,
        hook: str,
        event: Any,
        contexts: ContextFactory,
        record: Callable[[Any], None] | None = None,
    ) -> list[Any]:
        """The events left of `event` after all processors of `hook`; [] where one intercepted.

        `contexts` gives a component's Context by its id. `record` takes what
        `harness.harness_trace` describes. Raises ContractViolation, ProcessorError, Interrupt, and HostError from a
        host call of a processor.
        """
        chain, entry = self._chains[hook]
        if not chain:
            return [event]
        snapshot = SNAPSHOT[hook]
        events = [event]
        if record:
            record(entry)
            record(perf_counter_ns())
        for component, method, asynchronous in chain:
            context = contexts(component)
            left: list[Any] = []
            alone = len(events) == 1
            for given in events:
                before = snapshot(given)
                try:
                    if asynchronous:
                        yielded = await self._drain(method(given, context))
                    else:
                        yielded = list(islice(method(given, context), self.max_yields + 1))
                    if len(yielded) == 1 and yielded[0] is given and snapshot(given) == before:
                        left.append(given)
                        if record:
                            if alone:
                                record(perf_counter_ns())
                            else:
                                record((component, "pass", "", perf_counter_ns()))
                        continue
                    parts, outcome = self._checked(hook, given, before, yielded)
                    left += parts
                # A processor is a model's code: whatever it raises is its own failure, sys.exit
                # included. Cancellation is not among these: it is the caller's.
                except (Exception, SystemExit) as error:
                    fault = fault_of(error, component, hook)
                    if record:
                        record((component, outcome_of(fault), describe(error), perf_counter_ns()))
                    if fault is error:
                        raise
                    raise fault from error
                if record:
                    record((component, outcome, "", perf_counter_ns()))
            events = left
            if len(events) > self.max_yields:  # splits of splits multiply
                raise ContractViolation(
                    component,
                    hook,
                    "event",
                    f"was split into {len(events)} parts; at most {self.max_yields} are handled",
                )
            if not events:
                break
        return events

    async def _drain(self, parts: AsyncGenerator[Any, None]) -> list[Any]:
        yielded = []
        async for part in parts:
            yielded.append(part)
            if len(yielded) > self.max_yields:
                break
        return yielded

    def _checked(
        self, hook: str, event: Any, before: Snapshot, yielded: list[Any]
    ) -> tuple[list[Any], str]:
        """What is left of `event` after the contract's check, and the outcome. Raises Breach."""
        if len(yielded) > self.max_yields:
            raise Breach("event", f"yielded more than {self.max_yields} times in one call")
        if SNAPSHOT[hook](event) != before:
            raise Breach("event", "was changed in place; yield dataclasses.replace(...) instead")
        if len(yielded) == 1:
            checked, changed = check(hook, before, yielded[0])
            return [checked], "transform" if changed else "pass"
        if hook in READ_ONLY:
            raise Breach(
                "event", f"yielded {len(yielded)} times; {hook} yields its event exactly once"
            )
        parts = [check(hook, before, part)[0] for part in yielded]
        return parts, "split" if parts else "intercept"


def fault_of(error: BaseException, component: str, hook: str) -> BaseException:
    """What to raise for what a processor raised: the error itself where it is one of ours."""
    if isinstance(error, HostError | HarnessFault):
        return error
    if isinstance(error, Breach):
        return ContractViolation(component, hook, error.field, error.detail)
    if isinstance(error, FrozenMutation):
        return ContractViolation(component, hook, "event", str(error))
    if isinstance(error, Interrupt):
        if error.status in INTERRUPT_STATUSES and isinstance(error.reason, str):
            return error
        return ContractViolation(
            component,
            hook,
            "status",
            f"of an Interrupt is {error.status!r} for {error.reason!r}; one of "
            f"{', '.join(INTERRUPT_STATUSES)} with a text is expected",
        )
    return ProcessorError(component, hook, error)


def outcome_of(error: BaseException) -> str:
    """The outcome under which the harness trace keeps a call that ended in `error`."""
    if isinstance(error, Interrupt):
        return "interrupt"
    return "violation" if isinstance(error, ContractViolation) else "error"
