"""`coevo eval`: any harness under any policy, on any split or environment."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from coevo.base_policy import checked_base, model_fingerprint
from coevo.commands import base_model, versions
from coevo.config import RunConfig, load_config, parse_config
from coevo.errors import InputError
from coevo.eval_pairs import PolicyFile, task_count
from coevo.eval_record import EvalRecord, HarnessSource, PolicySource
from coevo.eval_session import run_measured
from coevo.eval_sources import Source, harness_bundle, harness_source, policy_source
from coevo.live import LiveTable, short, with_interval
from coevo.records import Evaluation, Tokens
from coevo.rollouts import TaskSource
from coevo.sealed import SealedReads
from harness.atomic import write_json
from harness.build import build, missing_tools
from harness.bundle import Bundle, dump
from rollout.task import SealedRead, Split

if TYPE_CHECKING:
    from coevo.stack import Stack


@dataclass(frozen=True)
class Served:
    """A policy that can be served. base: directory of M_0, None for a hosted model."""

    base: Path | None
    file: PolicyFile
    about: PolicySource


def run(arguments: argparse.Namespace) -> None:
    """`coevo eval`. Raises InputError, RunError, ConfigError or BundleError for bad input."""
    console = Console(highlight=False)
    output: Path = arguments.output
    if output.exists():
        raise InputError(f"{output} exists; choose another -o")
    harness, policy = harness_source(arguments.harness), policy_source(arguments.policy)
    bundle = harness_bundle(harness)
    config = _config(arguments, harness, policy)
    served = _policy(policy, config, console)
    config = _with_policy(config, policy, served, bundle)
    split: Split = arguments.split
    n = task_count(arguments.n, config)
    reads: list[SealedRead] = []
    tasks = _tasks(config, bundle, split, n, _journals(harness, policy, reads))
    evaluation, tokens = _measure(config, served, bundle, harness, tasks, split, n, output, console)
    record = EvalRecord(
        harness=HarnessSource(id=bundle.id, source=arguments.harness, round=harness.round),
        policy=served.about,
        environment=config.environment.model_dump(mode="json"),
        rollout=config.rollout.model_dump(mode="json"),
        split=split,
        n=n,
        repeats=config.evaluation.repeats,
        seed=config.seed,
        result=evaluation.result,
        reward=_mean_reward(evaluation),
        tokens=Tokens(prompt=tokens[0], sampled=tokens[1]),
        outcomes=dict(Counter(e.outcome for e in evaluation.episodes)),
        episodes=evaluation.episodes,
        reads=tuple(asdict(read) for read in reads),
        versions=versions(),
    )
    write_json(output, record.to_json())
    console.print(
        f"harness {short(bundle.id)} under {served.about.source} on {config.environment.name}, "
        f"split {split}: {with_interval(record.result)} (n = {record.result.n}), 95%\n"
        f"result: {output}"
    )


def _mean_reward(evaluation: Evaluation) -> float | None:
    rewards = [e.reward for e in evaluation.episodes if e.scored]
    return sum(rewards) / len(rewards) if rewards else None


# --- settings ---


def _config(arguments: argparse.Namespace, harness: Source, policy: Source) -> RunConfig:
    """--config, else the policy's run, else the harness's; then --env and the overrides."""
    pairs = policy.pairs or harness.pairs
    if arguments.config is not None:
        file = arguments.config
    elif pairs is not None:
        file = pairs.dir.path / "config.yaml"
    else:
        raise InputError(
            "neither --harness nor --policy is a run whose settings could be taken; give --config, "
            "for example configs/quickstart.yaml"
        )
    chosen = ["mode=frozen"]
    if arguments.env is not None and arguments.env != load_config(file).environment.name:
        environment = {"name": arguments.env, "options": {}}
        chosen.append(f"environment={json.dumps(environment)}")
    return load_config(file, [*chosen, *arguments.overrides])


def _policy(found: Source, config: RunConfig, console: Console) -> Served:
    run = found.in_run()
    if run is None:
        fingerprint = model_fingerprint(found.path)
        about = PolicySource(fingerprint=fingerprint, source=found.text, model=str(found.path))
        return Served(found.path, PolicyFile(0, fingerprint), about)
    pairs, at = run
    own = pairs.dir.config()
    base = base_model(own, console)
    if base is None:
        assert own.policy.api is not None
        name = own.policy.api.model
        about = PolicySource(fingerprint="", source=found.text, model=name, round=at.round)
        return Served(None, PolicyFile(0, ""), about)
    file = pairs.policy(at.policy_version, checked_base(pairs.run.path, base))
    about = PolicySource(
        fingerprint=file.fingerprint, source=found.text, model=str(base), version=file.version,
        round=at.round,
    )  # fmt: skip
    return Served(base, file, about)


def _with_policy(config: RunConfig, found: Source, served: Served, bundle: Bundle) -> RunConfig:
    """The configuration that serves this policy: engine settings stay, adapters are its run's."""
    data = config.model_dump(mode="json")
    own = found.pairs.dir.config() if found.pairs is not None else None
    if served.base is None:
        assert own is not None
        data["policy"] = own.policy.model_dump(mode="json")
    else:
        lora = own.policy.engine.lora if own is not None else None
        engine = data["policy"]["engine"] | {"lora": lora.model_dump(mode="json") if lora else None}
        data["policy"] = {"model": str(served.base), "engine": engine}
    return parse_config(data, found.text)


# --- tasks ---


def _journals(harness: Source, policy: Source, reads: list[SealedRead]) -> Any:
    """Keeps a read in `reads` and in the journals of the runs that take part."""
    runs = {s.pairs.run.path.resolve() for s in (harness, policy) if s.pairs is not None}
    journals = [SealedReads(path / "sealed_reads.jsonl") for path in sorted(runs)]

    def keep(read: SealedRead) -> None:
        reads.append(read)
        for journal in journals:
            journal.add(read)

    return keep


def _tasks(config: RunConfig, bundle: Bundle, split: Split, n: int, keep: Any) -> TaskSource:
    """Raises InputError where the environment, the split or the harness do not fit."""
    try:
        tasks = TaskSource(config.environment, config.seed, keep)
        tasks.check_size(split, n)
    except (ValueError, TypeError) as error:
        raise InputError(f"environment {config.environment.name}: {error}") from error
    known = tasks.evolve()
    if known and not bundle.has_own_code:
        tools = [tool.name for tool in known[0].view.tools]
        missing = missing_tools(build(bundle, allow_own_code=False), tools)
        if missing:
            raise InputError(f"the harness does not fit environment {config.environment.name}: "
                             f"{'; '.join(missing)}")  # fmt: skip
    return tasks


def _measure(
    config: RunConfig,
    served: Served,
    bundle: Bundle,
    harness: Source,
    tasks: TaskSource,
    split: Split,
    n: int,
    output: Path,
    console: Console,
) -> tuple[Evaluation, list[int]]:
    with _bundles(bundle, harness, output) as bundles:

        async def work(stack: Stack) -> tuple[Evaluation, list[int]]:
            from coevo.eval_measure import PairMeasurer

            await stack.begin(config)
            with LiveTable(console=console) as live:
                measurer = PairMeasurer(config, stack, tasks, bundles, live, "eval")
                return await measurer.measure(
                    bundle, served.file, split, n, {"policy_source": served.about.source}
                )

        return run_measured(config, served.base, console, work, "Nothing was written.")


@contextmanager
def _bundles(bundle: Bundle, harness: Source, output: Path) -> Iterator[Path]:
    """A directory with the harness by its id, where the workers see it too: beside the output."""
    if harness.pairs is not None:
        yield harness.pairs.dir.bundles
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as scratch:
        dump(bundle, Path(scratch) / bundle.id)
        yield Path(scratch).resolve()
