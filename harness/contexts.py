"""The contexts of one run: one a component, made when it is first asked for."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from harness.events import TaskView
from harness.host import Host
from harness.processor import Context
from harness.trace import Trace


class Contexts:
    """`contexts(component)` is its Context; the same one during the whole run.

    task: may be replaced until the first context is made. seed: seeds each component's own rng.
    """

    def __init__(
        self,
        task: TaskView,
        host: Host,
        seed: int,
        files: Mapping[str, bytes],
        trace: Trace | None,
    ) -> None:
        self.task, self._host, self._seed, self._trace = task, host, seed, trace
        self._files = MappingProxyType(dict(files))
        self._shared: dict[str, Any] = {}
        self._made: dict[str, Context] = {}

    def __call__(self, component: str) -> Context:
        context = self._made.get(component)
        if context is None:
            context = self._made[component] = Context(
                task=self.task,
                component=component,
                rng=random.Random(f"{self._seed}:{component}"),
                host=self._host,
                files=self._files,
                shared=self._shared,
            )
            if self._trace:
                context.note = partial(self._trace.note, component)
        return context
