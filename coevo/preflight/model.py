"""Checks of a model directory: what it is, its chat template, stop token, tool calls, context.

They need torch and transformers, and the driver of a run loads no torch: `examine` runs them in a
process of its own (`python -m coevo.preflight.model`), which prints one JSON line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coevo.model_shape import ModelError, ModelShape, read_config, shape_of_model, without_weights
from coevo.preflight.checks import Check, fail, ok, warn
from rollout.config import RolloutConfig
from rollout.policy.weights import WeightsError, checkpoint_files, read_index

if TYPE_CHECKING:
    from rollout.tokens import Renderer

THOUGHT = "<think>\nThe mug may be there.\n</think>\n\n"
TURNS = 4


@dataclass(frozen=True, slots=True)
class ModelReport:
    """shape: None where there is no model. probe: prompt ids to compare engine and trainer on."""

    checks: tuple[Check, ...]
    shape: ModelShape | None = None
    probe: tuple[tuple[int, ...], ...] = ()


def examine(directory: Path, rollout: RolloutConfig, weights: bool = True) -> ModelReport:
    """The checks of a model directory, made once a process. weights: without them it fails.

    Raises ModelError where the process that makes the checks ends without an answer."""
    return _examine(str(directory), rollout.model_dump_json(), weights)


@lru_cache(16)
def _examine(directory: str, rollout: str, weights: bool) -> ModelReport:
    request = json.dumps(
        {"directory": directory, "rollout": json.loads(rollout), "weights": weights}
    )
    done = subprocess.run(
        [sys.executable, "-m", "coevo.preflight.model"],
        input=request,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"checks"')]
    if done.returncode or not lines:
        raise ModelError(
            f"policy.model {directory!r} could not be examined:\n"
            + "\n".join(done.stderr.splitlines()[-8:])
        )
    answer = json.loads(lines[-1])
    return ModelReport(
        tuple(Check(**item) for item in answer["checks"]),
        None if answer["shape"] is None else ModelShape.from_json(answer["shape"]),
        tuple(tuple(ids) for ids in answer["probe"]),
    )


def model_checks(directory: Path, rollout: RolloutConfig, weights: bool = True) -> ModelReport:
    """As `examine`, in this process."""
    try:
        bare = without_weights(directory)
    except ModelError as error:
        return ModelReport((fail("model", str(error), "choose a causal language model"),))
    shape = shape_of_model(bare)
    names = {name for name, _ in bare.named_parameters()}
    checks = [_weights(directory, shape, names, weights), context_check(shape, rollout)]
    from rollout.capture import TokenError
    from rollout.tokens import PROBES, Renderer

    try:
        renderer = Renderer.from_pretrained(
            str(directory), rollout.tool_parser, rollout.template_options, rollout.template
        )
    except (TokenError, OSError, ValueError) as error:
        # The message says what to do; a directory without a tokenizer is an OSError or ValueError.
        checks.append(fail("chat template", str(error).splitlines()[0], TEMPLATE_HELP))
        return ModelReport(tuple(checks), shape)
    probe = tuple(tuple(renderer.prompt(messages)) for messages in PROBES)
    return ModelReport((*checks, *template_checks(renderer, shape)), shape, probe)


TEMPLATE_HELP = (
    "a chat model brings tokenizer.json and a chat template; for a base model set "
    "rollout.template: plain"
)


def _weights(directory: Path, shape: ModelShape, names: set[str], needed: bool) -> Check:
    """The files are there, whole, and hold a tensor for each parameter of that name.

    Publication is by name: what transformers renames while it loads would not reach the engine."""
    name = "model"
    what = f"{shape.architecture}, {shape.parameters / 1e6:,.1f} M parameters"
    if not needed and not any(directory.glob("*.safetensors")):
        return ok(name, f"{what}, without weights yet")
    try:
        files = checkpoint_files(directory)
        held = {tensor for file in files for tensor in read_index(file)}
    except WeightsError as error:
        return fail(name, f"{what}; {error}", "download it again, or save it with save_pretrained")
    if lacking := sorted(names - held):
        return warn(
            name,
            f"{what}; its files have no tensor {lacking[0]!r} (and {len(lacking) - 1} more): the names "
            "in the files are not those of the model, or a download is cut short",
            "modes frozen and harness work where the files are whole; training does not",
        )
    dtype = read_config(directory).get("dtype") or read_config(directory).get("torch_dtype")
    return ok(name, f"{what}, {len(files)} file{'s' * (len(files) > 1)}, {dtype or 'no dtype'}")


def context_check(shape: ModelShape, rollout: RolloutConfig) -> Check:
    """Prompt and answer fit what the model was made for."""
    asked = rollout.max_context + rollout.max_new_tokens
    found = (
        f"rollout.max_context {rollout.max_context} + max_new_tokens {rollout.max_new_tokens} = "
        f"{asked} tokens; the model's limit is {shape.positions or 'not stated'}"
    )
    if shape.positions is not None and asked > shape.positions:
        least = shape.positions - rollout.max_new_tokens
        return fail("context length", found, f"lower rollout.max_context to {least} or less")
    return ok("context length", found)


def template_checks(renderer: Renderer, shape: ModelShape) -> list[Check]:
    """Of a template that renders: stop token, what stays a prefix, tool calls, vocabulary."""
    stops = ", ".join(f"{renderer.text_of(i)!r} ({i})" for i in renderer.stop_ids)
    checks = [prefix_check(renderer), ok("stop token", f"sampling ends at {stops}")]
    if renderer.entries > shape.vocabulary:
        checks.append(
            fail(
                "tokenizer",
                f"{renderer.entries} entries, the model's vocabulary {shape.vocabulary}",
                "the tokenizer belongs to another model; use this model's own",
            )
        )
    if renderer.tool_parser == "none":
        checks.append(
            ok("tool calls", "none: the template writes no calls, the model acts by text")
        )
    else:
        checks.append(
            ok("tool calls", f"{renderer.tool_parser}: reads the call that the template writes")
        )
    return checks


def prefix_check(renderer: Renderer) -> Check:
    """A conversation of a few turns: does every prompt go on from the one before?

    A template that rewrites what stands before (that drops earlier thinking, say) makes each turn a
    segment of its own, whose context is computed and trained through again.
    """
    plain, whole, read = _talk(renderer, "")
    found = f"{TURNS} turns are {_segments(plain)}"
    if plain > 1:
        return warn(
            "chat template",
            f"{found}: the template rewrites earlier turns; {read} tokens are trained through "
            f"instead of {whole}",
            "training works, at that cost; a template whose turns only append avoids it",
        )
    if not renderer.thinks:
        return ok("chat template", f"{found}: each prompt extends the one before")
    thinking, whole, read = _talk(renderer, THOUGHT)
    if thinking > 1:
        return warn(
            "chat template",
            f"{found}, with thinking {_segments(thinking)}: the template drops earlier thinking; "
            f"{read} tokens are trained through instead of {whole}",
            "training works, at that cost; rollout.template_options: {enable_thinking: false} "
            "where the task needs no thinking",
        )
    return ok("chat template", f"{found}, with thinking, too: each prompt extends the one before")


def _segments(count: int) -> str:
    return "one segment" if count == 1 else f"{count} segments"


def _talk(renderer: Renderer, thought: str) -> tuple[int, int, int]:
    """(segments, tokens of the longest one, tokens of all) of a conversation of TURNS answers."""
    from harness.events import Message
    from rollout.capture import TokenCapture
    from rollout.policy.base import Sample

    capture = TokenCapture(1.0)
    messages = [Message("system", "You act in a house."), Message("user", "Find the mug.")]
    for turn in range(TURNS):
        answer = f"{thought}go to shelf {turn}"
        prompt = renderer.prompt(messages, (), capture)
        ids = (*renderer.encode(answer), renderer.stop_ids[-1])
        capture.add(prompt, Sample(ids, (-1.0,) * len(ids), "stop", 0))
        messages += [
            Message("assistant", renderer.decode(ids)),
            Message("user", f"On shelf {turn} there is no mug."),
        ]
    lengths = [len(s.token_ids) for s in capture.segments()]
    return len(lengths), max(lengths), sum(lengths)


def _main() -> None:
    request: dict[str, Any] = json.loads(sys.stdin.read())
    report = model_checks(
        Path(request["directory"]),
        RolloutConfig.model_validate(request["rollout"]),
        request["weights"],
    )
    answer = {
        "checks": [c.to_json() for c in report.checks],
        "shape": None if report.shape is None else report.shape.to_json(),
        "probe": report.probe,
    }
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _main()
