"""The small model of the quickstart: demonstrated, taught and cached on first use.

It is made in a process of its own (`python -m coevo.seed_model`), which prints one JSON line a step, so
that the driver needs no torch and the threads of the two do not meet.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coevo.config import RunConfig
from harness.atomic import sync_tree, write_json
from harness.bundle import Bundle, load
from harness.edit_json import from_json
from rollout.config import EnvironmentConfig
from rollout.envs import make_env
from trainer.warmstart_config import WarmstartConfig

if TYPE_CHECKING:
    from rollout.demonstrations import Demonstration

MARKER = "made.json"
Report = Callable[[str, int, int], None]
"""(phase, done, of)."""

_SOURCES = ("harness/processors/household_text.py", "harness/processors/last_user.py",
            "rollout/envs/household", "rollout/demonstrations.py", "trainer/sft.py",
            "trainer/warmstart.py")  # fmt: skip


class SeedModelError(RuntimeError):
    """The small model could not be made."""


def cache_root() -> Path:
    """Where made models are kept: $COEVO_CACHE, else the user's cache directory."""
    root = os.environ.get("COEVO_CACHE")
    if root:
        return Path(root)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "coevo"


def cache_key(config: WarmstartConfig, environment: EnvironmentConfig) -> str:
    """A hash of all that the model is made from: settings, harness, and the code that renders it."""
    parts: dict[str, Any] = {
        "config": config.model_dump(mode="json", exclude={"bundle", "threads"}),
        "environment": environment.model_dump(mode="json"),
        "bundle": load(config.bundle).id,
    }
    root = Path(__file__).resolve().parents[1]
    components = [c.entrypoint for c in load(config.bundle).components]
    for variation in config.variations:
        components += [e.get("component", {}).get("entrypoint") for e in variation.edits]
    renderers = {
        f"{entry.partition(':')[0].replace('.', '/')}.py"
        for entry in components
        if entry and entry.startswith("harness.")
    }
    for name in sorted(renderers.union(_SOURCES)):
        path = root / name
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        parts[name] = hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def seed_model(config: RunConfig, report: Report | None = None) -> tuple[Path, bool]:
    """The directory of the run's warm-started model, and whether it was made just now.

    Raises SeedModelError with the end of the maker's output where it fails.
    """
    assert config.policy.warmstart is not None
    out = cache_root() / "models" / cache_key(config.policy.warmstart, config.environment)
    if (out / MARKER).is_file():
        return out, False
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = out.with_name(f".{out.name}.{os.getpid()}")
    request = json.dumps(
        {
            "warmstart": config.policy.warmstart.model_dump(mode="json"),
            "environment": config.environment.model_dump(mode="json"),
            "out": str(beside),
        }
    )
    threads = str(config.policy.warmstart.threads)
    process = subprocess.Popen(
        [sys.executable, "-m", "coevo.seed_model"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": threads, "HF_HUB_OFFLINE": "1"},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(request)
    process.stdin.close()
    said: list[str] = []
    try:
        for line in process.stdout:
            if line.startswith('{"phase"'):
                step = json.loads(line)
                if report is not None:
                    report(step["phase"], step["done"], step["of"])
            else:
                said = [*said[-40:], line.rstrip()]
    except BaseException:
        process.kill()
        raise
    if process.wait() != 0 or not (beside / MARKER).is_file():
        shutil.rmtree(beside, ignore_errors=True)
        raise SeedModelError(
            f"making the model ended with code {process.returncode}:\n" + "\n".join(said[-15:])
        )
    sync_tree(beside)
    try:
        beside.rename(out)
    except OSError:
        if not (out / MARKER).is_file():
            raise
        shutil.rmtree(beside)  # another process made the same model meanwhile
    return out, True


def demonstrations(
    config: WarmstartConfig, environment: EnvironmentConfig, report: Report | None = None
) -> list[Demonstration]:
    """Turns of `config.episodes` solved episodes of the evolve split's scenes, fresh tasks."""
    # Here, because the driver that waits for this process needs neither torch nor transformers.
    # The household's expert and menu; another environment brings its own.
    from harness.processors.numbered_menu import menu_answer
    from rollout.demonstrations import Variation, demonstrate, vary
    from rollout.envs.household.oracle import Explorer

    if environment.name != "household":
        raise SeedModelError(
            f"environment {environment.name!r} has no expert to demonstrate; policy.warmstart needs "
            "environment.name household, or set policy.model"
        )
    options = {**environment.options, "counts": {"valid_seen": config.episodes}}
    # Other tasks than any split of the run: the seed moves, the scenes stay.
    options["seed"] = 1_000_003 + config.seed
    env = make_env(environment.name, **options)
    base = load(config.bundle)
    variations = [
        Variation(item.probability, from_json(list(item.edits))) for item in config.variations
    ]
    rng = random.Random(f"demonstrations/{config.seed}")
    built: dict[Bundle, Bundle] = {}

    async def collect() -> list[Demonstration]:
        turns: list[Demonstration] = []
        tasks = env.tasks("valid_seen")
        for index, task in enumerate(tasks):
            bundle = vary(base, variations, rng)
            bundle = built.setdefault(bundle, bundle)
            session = env.open(task, index)
            first = session.reset()
            expert = Explorer(task.view.instruction, first.choices, random.Random(index))
            turns += await demonstrate(
                session,
                task,
                bundle,
                expert,
                lambda command, prompt: menu_answer(command, prompt[-1].content),
                seed=index,
            )
            if report is not None and index % 50 == 49:
                report("demonstrate", index + 1, len(tasks))
        return turns

    return asyncio.run(collect())


def make(
    config: WarmstartConfig, environment: EnvironmentConfig, out: Path, report: Report
) -> None:
    """Demonstrate, teach, write `out` with its marker last."""
    turns = demonstrations(config, environment, report)

    from rollout.tokens import Renderer
    from trainer.warmstart import Example, make_tokenizer, warmstart

    plain = ["\n".join(m.content for m in t.messages) + "\n" + t.answer for t in turns[:6000]]
    tokenizer = make_tokenizer(plain, config.architecture.vocab)
    renderer = Renderer(tokenizer)
    examples = [Example(renderer.text(t.messages), t.answer) for t in turns]
    measured = warmstart(
        config, examples, tokenizer, out, lambda done, of: report("teach", done, of)
    )
    write_json(out / MARKER, {"schema": 1, **measured})


def _main() -> None:
    request = json.loads(sys.stdin.read())

    def report(phase: str, done: int, of: int) -> None:
        if phase != "teach" or done % 10 == 0 or done == of:
            print(json.dumps({"phase": phase, "done": done, "of": of}), flush=True)

    make(
        WarmstartConfig.model_validate(request["warmstart"]),
        EnvironmentConfig.model_validate(request["environment"]),
        Path(request["out"]),
        report,
    )


if __name__ == "__main__":
    _main()
