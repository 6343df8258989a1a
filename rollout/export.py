"""Data sets from the replay buffer: successful segments to imitate, pairs to prefer by.

Columns are those that TRL's trainers read (`input_ids` and `labels`; `prompt`, `chosen`,
`rejected`); each row says which task, harness and policy version it is from.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from rollout.buffer import ReplayBuffer
from rollout.trajectory import Role, Trajectory

Kind = Literal["sft", "preference"]
Decode = Callable[[Sequence[int]], str]
IGNORED = -100
"""Label of a token that carries no loss, as PyTorch's cross entropy has it."""

_IDS = pa.list_(pa.int32())
_SOURCE = [
    ("task_id", pa.string()),
    ("round", pa.int32()),
    ("harness_id", pa.string()),
    ("policy_version", pa.int32()),
    ("reward", pa.float64()),
]
SCHEMAS: Mapping[Kind, pa.Schema] = {
    "sft": pa.schema(
        [("input_ids", _IDS), ("labels", _IDS), ("text", pa.string()), ("id", pa.string()),
         ("segment", pa.int32()), ("role", pa.string()), *_SOURCE]
    ),
    "preference": pa.schema(
        [("prompt_ids", _IDS), ("chosen_ids", _IDS), ("rejected_ids", _IDS), ("prompt", pa.string()),
         ("chosen", pa.string()), ("rejected", pa.string()), ("task_id", pa.string()),
         *((f"{side}_{name}", kind) for side in ("chosen", "rejected")
           for name, kind in (("id", pa.string()), *_SOURCE[1:]))]
    ),
}  # fmt: skip
TEXT = {"sft": ("text",), "preference": ("prompt", "chosen", "rejected")}


class ExportError(ValueError):
    """What was asked for cannot be exported."""


@dataclass(frozen=True, slots=True)
class Exported:
    """rows: of SCHEMAS[kind], without the text columns where no tokenizer was given. rounds: that
    were read. deleted: rounds whose token data retention had deleted."""

    kind: Kind
    rows: pa.Table
    rounds: tuple[int, ...]
    deleted: tuple[int, ...]


def export(
    buffer: ReplayBuffer,
    kind: Kind,
    rounds: Collection[int] | None = None,
    roles: Collection[Role] = ("incumbent", "candidate"),
    decode: Decode | None = None,
) -> Exported:
    """Rows of the buffer's trajectories of `rounds` (None: all) and `roles`.

    sft: one row a segment of a successful episode; labels are the sampled tokens. preference: one
    row a context that several episodes of a task met and went on from differently: what the one
    with the best reward sampled there against what the one with the worst did.

    Raises ExportError for held-out episodes, and where there is no row to export.
    """
    if "heldout" in roles:
        raise ExportError(
            "export: role 'heldout' is asked for; held-out episodes measure, they are never exported"
        )
    there = [number for number in buffer.rounds() if rounds is None or number in rounds]
    deleted = tuple(number for number in there if not buffer.has_tokens(number))
    read = tuple(number for number in there if number not in deleted)

    def trajectories() -> Iterator[Trajectory]:
        for number in read:
            for trajectory in buffer.trajectories(number, tokens=True):
                if trajectory.role == "heldout":
                    raise ExportError(f"export: trajectory {trajectory.id!r} is held out")
                if trajectory.role in roles:
                    yield trajectory

    rows = list(_sft(trajectories()) if kind == "sft" else _preference(trajectories()))
    if not rows:
        why = (
            "no episode succeeded"
            if kind == "sft"
            else "no two episodes of a task with different rewards acted differently in one context"
        )
        raise ExportError(
            f"export {kind}: rounds {list(read)} give no row: {why}"
            + (f"; token data of rounds {list(deleted)} was deleted" if deleted else "")
        )
    schema = SCHEMAS[kind]
    if decode is None:
        schema = pa.schema([field for field in schema if field.name not in TEXT[kind]])
    else:
        for row in rows:
            row |= _texts(kind, row, decode)
    return Exported(kind, pa.Table.from_pylist(rows, schema=schema), read, deleted)


def _sft(trajectories: Iterator[Trajectory]) -> Iterator[dict[str, Any]]:
    for trajectory in trajectories:
        if not trajectory.success or trajectory.outcome.kind != "completed":
            continue
        for number, segment in enumerate(trajectory.segments):
            if segment.loss_mask.any():
                yield {
                    "input_ids": segment.token_ids,
                    "labels": np.where(segment.loss_mask, segment.token_ids, IGNORED).astype("i4"),
                    "id": trajectory.id,
                    "segment": number,
                    "role": trajectory.role,
                    "task_id": trajectory.task_id,
                    **_source(trajectory),
                }


@dataclass(frozen=True, slots=True)
class _Choice:
    trajectory: Trajectory
    sampled: np.ndarray


def _preference(trajectories: Iterator[Trajectory]) -> Iterator[dict[str, Any]]:
    met: dict[tuple[str, bytes], list[_Choice]] = {}
    for trajectory in trajectories:
        for segment in trajectory.segments:
            edges = np.flatnonzero(np.diff(segment.loss_mask.astype(np.int8), prepend=0, append=0))
            for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
                context = segment.token_ids[:begin].tobytes()
                choice = _Choice(trajectory, segment.token_ids[begin:end])
                met.setdefault((trajectory.task_id, context), []).append(choice)
    for (task_id, context), choices in met.items():
        best = max(choices, key=lambda c: (c.trajectory.reward, c.trajectory.id))
        worst = min(choices, key=lambda c: (c.trajectory.reward, c.trajectory.id))
        same = best.sampled.tolist() == worst.sampled.tolist()
        if best.trajectory.reward > worst.trajectory.reward and not same:
            sides = {"chosen": best, "rejected": worst}
            yield {
                "task_id": task_id,
                "prompt_ids": np.frombuffer(context, np.int32),
                **{f"{side}_ids": choice.sampled for side, choice in sides.items()},
                **{f"{side}_id": choice.trajectory.id for side, choice in sides.items()},
                **{
                    f"{side}_{name}": value
                    for side, choice in sides.items()
                    for name, value in _source(choice.trajectory).items()
                },
            }


def _source(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "round": trajectory.round,
        "harness_id": trajectory.harness_id,
        "policy_version": trajectory.policy_version,
        "reward": trajectory.reward,
    }


def _texts(kind: Kind, row: Mapping[str, Any], decode: Decode) -> dict[str, str]:
    if kind == "sft":
        return {"text": decode(row["input_ids"].tolist())}
    return {name: decode(row[f"{name}_ids"].tolist()) for name in TEXT[kind]}
