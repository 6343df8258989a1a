"""Processes forked ahead: used once, by an episode of their own kind, and never instead of the truth."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
from sandbox_bench import Bench, Echo, own

from harness.bundle import Bundle
from harness.sandbox import Limits, Sandbox, spares
from harness.sandbox.episode import Episode
from harness.sandbox.spares import Spares


def telling(module: str, expression: str) -> Bundle:
    """A bundle that shows the model `expression`; `module` runs when it is loaded."""
    return own(
        f"""
        import os, random, threading
        from dataclasses import replace
        from harness.processor import Processor
        {module}
        class Own(Processor):
            def before_model(self, event, ctx):
                last = replace(event.messages[-1], content=repr({expression}))
                yield replace(event, messages=(*event.messages[:-1], last))
        """
    )


COUNTING = telling("runs = []", "(runs.append(0), len(runs), os.getpid())[1:]")


class Watched(Bench):
    """A bench that can look at the spares of its sandbox."""

    @property
    def spares(self) -> Spares:
        assert self.sandbox._spares is not None
        return self.sandbox._spares

    @property
    def forks(self) -> int:
        assert self.sandbox._zygote is not None
        return self.sandbox._zygote._next

    def until(self, true: Callable[[], bool]) -> None:
        async def wait() -> None:
            while not true():
                await asyncio.sleep(0.01)

        self.runner.run(asyncio.wait_for(wait(), 60.0))

    def spare_of(self, bundle: Bundle) -> Episode:
        """The spare of that bundle, once it is there."""

        def those() -> list[Episode]:
            return [e for e, key in self.spares._ready.items() if key.bundle_id == bundle.id]

        self.until(lambda: bool(those()))
        return those()[0]

    def hears(self, bundle: Bundle, **options: object) -> list[str]:
        host = Echo()
        ran = self.episode(bundle, host, **options)
        assert ran.result.status == "completed", ran.result
        return [request.messages[-1].content for request in host.asked]


@pytest.fixture
def bench(runner: asyncio.Runner) -> Iterator[Watched]:
    sandbox = Sandbox("auto", slots=2)
    yield Watched(sandbox, runner)
    runner.run(sandbox.close())


def test_each_episode_has_a_process_of_its_own_that_was_ready_before_it(bench: Watched) -> None:
    seen = set()
    for episode in range(3):
        first, second = bench.hears(COUNTING)
        assert (first[:3], second[:3]) == ("(1,", "(2,")  # nothing of the last episode
        seen.add(first)
        bench.until(lambda: len(bench.spares._ready) == 1)
        # One to try the level out, one for the first episode, then only spares.
        assert bench.forks == 3 + episode
    assert len(seen) == 3


def test_a_spare_serves_only_its_bundle_its_limits_and_its_tracing(bench: Watched) -> None:
    bench.hears(COUNTING)
    spare = bench.spare_of(COUNTING)
    assert bench.hears(telling("", "1")) == ["1", "1"]
    bench.hears(COUNTING, limits=Limits(silent_s=19.0))
    ran = bench.episode(COUNTING, trace_level="full")
    assert ran.trace is not None
    assert len(ran.trace["harness"]) == 2
    assert spare._host is None


@pytest.mark.parametrize("trick", ["os.write(3, b'hello\\n')", "os._exit(1)"])
def test_a_spare_that_spoke_or_died_is_not_used(bench: Watched, trick: str) -> None:
    # Where its episode begins soon, as that of a process without a spare does, all is well.
    timer = f"timer = threading.Timer(1.0, lambda: {trick}); timer.start()"
    bundle = telling(timer, "(timer.cancel(), 1)[1]")
    assert bench.hears(bundle) == ["1", "1"]
    spare = bench.spare_of(bundle)
    bench.until(lambda: not spare.waiting)
    assert bench.hears(bundle) == ["1", "1"]
    assert spare._host is None


def test_spares_are_few_and_the_oldest_of_another_bundle_goes_first(bench: Watched) -> None:
    for i in range(6):
        bench.hears(telling(f"n = {i}", "n"))
        bench.until(lambda: not bench.spares._tasks)
        assert bench.spares._count == len(bench.spares._ready) <= 2


def test_a_spare_that_nobody_wants_is_ended(
    bench: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spares, "IDLE_S", 0.1)
    bench.hears(COUNTING)
    bench.until(lambda: bench.spares._count == 0)
    assert bench.hears(COUNTING)[0].startswith("(1,")


def test_what_a_module_draws_when_it_is_loaded_is_alike_in_every_episode(bench: Watched) -> None:
    drawing = telling("drawn = random.random()", "(drawn, random.random())")
    said = []
    for seed in (1, 1, 2):
        said.append(eval(bench.hears(drawing, seed=seed)[0]))
        bench.until(lambda: len(bench.spares._ready) == 1)
    assert said[0] == said[1]
    assert said[0][0] == said[2][0]
    assert said[0][1] != said[2][1]
