"""The Ray worker: many episodes at once in one process, streamed back as they finish."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.bundle import Bundle, load
from harness.runloop import RunResult
from harness.sandbox.launcher import Sandbox
from harness.trace import Level
from rollout.config import EnvironmentConfig, RolloutConfig
from rollout.conversation import ChatPolicy, Policy, TokenPolicy
from rollout.envs import make_env
from rollout.episode import EpisodeResult, Limits, run_episode, trajectory_of
from rollout.lockstep import Batcher, Immediate, Lockstep
from rollout.logs import Kept, Said
from rollout.policy.base import ChatEngine, PolicyEngine
from rollout.spec import EpisodeSpec
from rollout.tokens import Renderer


class RolloutWorker:
    """Runs episodes against one engine. Holds environment, verifier, tokenizer and sandbox.

    tokenizer: directory of the policy's tokenizer, None for a chat engine. engine: one whose handle
    travels to this process.
    """

    def __init__(
        self,
        environment: EnvironmentConfig,
        config: RolloutConfig,
        tokenizer: str | None,
        engine: PolicyEngine | ChatEngine,
    ) -> None:
        self._config = config
        self._log = Kept.install()
        self._env = make_env(environment.name, **environment.options)
        self._renderer = (
            None
            if tokenizer is None
            else Renderer.from_pretrained(
                tokenizer, config.tool_parser, config.template_options, config.template
            )
        )
        self._engine: Any = engine
        self._sandbox = Sandbox(config.sandbox, slots=config.concurrency)
        self._bundles: dict[Path, Bundle] = {}
        self._limits = Limits(
            max_new_tokens=config.max_new_tokens,
            max_steps=config.max_steps,
            wall_s=config.wall_s,
        )

    async def level(self) -> str:
        """Start the sandbox and name the isolation level that episodes get."""
        return await self._sandbox.start()

    async def run(
        self, specs: Sequence[EpisodeSpec], bundles: str, trace: Level
    ) -> AsyncIterator[tuple[int, EpisodeResult]]:
        """Yield (index in `specs`, result) in the order in which episodes finish.

        bundles: directory of harness bundles, one a harness id; each is verified when it is loaded.

        Episode i runs in slot i modulo `concurrency`, so with lockstep scheduling the engine's
        batches depend on the episodes only.
        """
        slots = min(self._config.concurrency, len(specs))
        batcher: Batcher = (
            Lockstep(self._engine)
            if self._config.scheduling == "lockstep"
            else Immediate(self._engine)
        )
        finished: asyncio.Queue[tuple[int, EpisodeResult] | BaseException] = asyncio.Queue()
        policy = self._policy(batcher)
        limits = replace(self._limits, trace=trace)

        async def one(slot: int, spec: EpisodeSpec) -> EpisodeResult:
            bundle = self._bundle(Path(bundles) / spec.harness_id)
            deadline = asyncio.timeout(self._config.episode_deadline_s)
            try:
                async with deadline:
                    return await run_episode(
                        slot,
                        spec,
                        env=self._env,
                        bundle=bundle,
                        runner=self._sandbox.run,
                        policy=policy,
                        limits=limits,
                    )
            except TimeoutError:
                if not deadline.expired():
                    raise
                return self._late(spec)

        async def serve(slot: int) -> None:
            try:
                for index in range(slot, len(specs), slots):
                    finished.put_nowait((index, await one(slot, specs[index])))
            except BaseException as error:  # handed to the caller, who raises it
                finished.put_nowait(error)
                raise
            finally:
                batcher.leave(slot)

        for slot in range(slots):
            batcher.enter(slot)
        tasks = [asyncio.create_task(serve(slot)) for slot in range(slots)]
        try:
            for _ in specs:
                item = await finished.get()
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def alive(self) -> list[Said]:
        """Answered while the event loop turns: a stopped process or a blocking call is found out.
        What was logged since the last call."""
        return self._log.fetch()

    async def close(self) -> None:
        await self._sandbox.close()

    def _late(self, spec: EpisodeSpec) -> EpisodeResult:
        """The record of an episode whose deadline passed; its harness process is gone by now."""
        limit = self._config.episode_deadline_s or 0.0
        reason = f"past its deadline of {limit:g} s (rollout.episode_deadline_s)"
        result = RunResult("infra_error", reason, 0, "")
        return EpisodeResult(trajectory_of(spec, result, "", None, None, limit))

    def _policy(self, batcher: Batcher) -> Policy:
        temperature = self._config.temperature
        if self._renderer is None:
            return ChatPolicy(self._engine, temperature)
        return TokenPolicy(self._renderer, batcher, temperature, self._config.max_context)

    def _bundle(self, path: Path) -> Bundle:
        if path not in self._bundles:
            self._bundles[path] = load(path, expect_id=path.name)
        return self._bundles[path]
