"""Token-budget micro-batches over ranks, balanced by cost; numpy only, the same on every rank.

Two layouts. *padded*: rows of similar length, right-padded; a causal model never looks right, so no
attention mask is needed and the fast causal kernel is used. *packed*: segments one after another in
a single row with positions that start again at 0; only with attention_mask=None and use_cache=False
does the model keep them apart. A packed row of n tokens costs n² attention unless the kernel knows
variable lengths, so many short segments run far faster padded under plain SDPA.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from trainer.batch import TrainBatch

Layout = Literal["packed", "padded"]

ATTENTION_EQUAL = 512
"""Length at which a token's attention costs about as much as the rest of a layer's work on it."""

PAD_ID = 0


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One forward pass of B rows and L columns, with k sampled tokens to score.

    input_ids: int64 [B, L]. position_ids: int64 [1, L] (packed) or None. rows: int64 [k], flat
    position in B·L whose hidden state predicts the token. labels: int64 [k], the token. token:
    int64 [k], its index in the batch. segment: int64 [k]. dummy: joins the graph with weight 0.
    """

    input_ids: np.ndarray
    position_ids: np.ndarray | None
    rows: np.ndarray
    labels: np.ndarray
    token: np.ndarray
    segment: np.ndarray
    dummy: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """Segments of every micro-batch of every rank: ranks[r][i] is an int64 array.

    dummies[r]: how many of rank r's last micro-batches are there only to make the counts equal:
    ZeRO-2 and ZeRO-3 run collectives in every backward pass, and a rank with fewer would hang them.
    """

    ranks: tuple[tuple[np.ndarray, ...], ...]
    dummies: tuple[int, ...]
    dropped: int
    tokens: int  # real tokens to be run
    padded_tokens: int  # tokens to be run, padding included

    @property
    def steps(self) -> int:
        return len(self.ranks[0])


def input_lengths(batch: TrainBatch) -> np.ndarray:
    """int64 [s]: tokens of each segment that must be run, 0 where nothing is sampled.

    Nothing after the last sampled token is needed, nor that token itself: its predecessor's hidden
    state predicts it.
    """
    positions = np.arange(len(batch.token_ids)) - np.repeat(
        batch.offsets[:-1], np.diff(batch.offsets)
    )
    if not batch.segments:
        return np.zeros(0, dtype=np.int64)
    return np.maximum.reduceat(np.where(batch.loss_mask, positions, 0), batch.offsets[:-1])


def cost(rows: int, length: int) -> float:
    """Relative cost of a forward pass: linear work plus quadratic attention."""
    return rows * length * (1.0 + length / ATTENTION_EQUAL)


def _bins_padded(lengths: np.ndarray, segments: np.ndarray, budget: int) -> list[np.ndarray]:
    """Runs of the length-sorted segments whose padded size stays within the budget."""
    order = segments[np.lexsort((segments, -lengths[segments]))]
    bins, start = [], 0
    while start < len(order):
        rows = max(1, budget // int(lengths[order[start]]))
        bins.append(order[start : start + rows])
        start += rows
    return bins


def _bins_packed(lengths: np.ndarray, segments: np.ndarray, budget: int) -> list[np.ndarray]:
    """Best-fit decreasing into rows of at most `budget` tokens."""
    order = segments[np.lexsort((segments, -lengths[segments]))]
    open_bins: list[list[int]] = []
    by_room: dict[int, list[int]] = {}
    rooms: list[int] = []  # sorted distinct rooms
    for segment in order:
        size = int(lengths[segment])
        at = int(np.searchsorted(rooms, size)) if rooms else 0
        if at < len(rooms):
            room = rooms[at]
            index = by_room[room].pop()
            if not by_room[room]:
                del by_room[room]
                rooms.pop(at)
            open_bins[index].append(int(segment))
        else:
            room = max(budget, size)
            index = len(open_bins)
            open_bins.append([int(segment)])
        left = room - size
        if left > 0:
            if left not in by_room:
                rooms.insert(int(np.searchsorted(rooms, left)), left)
            by_room.setdefault(left, []).append(index)
    return [np.array(sorted(b), dtype=np.int64) for b in open_bins]


def plan_micro_batches(
    lengths: np.ndarray,
    segments: np.ndarray,
    *,
    budget: int,
    ranks: int,
    layout: Layout,
    varlen: bool = False,
) -> Plan:
    """Micro-batches of `segments` (indices) over `ranks`, each of at most `budget` tokens.

    lengths: int64 [s], of `input_lengths`. Pure: the same arguments give the same plan, so that
    each rank computes its own part alone. The heaviest micro-batch goes first to the rank with the
    least work.
    """
    chosen = np.asarray(segments, dtype=np.int64)
    live = chosen[lengths[chosen] > 0]
    make = _bins_packed if layout == "packed" else _bins_padded
    bins = make(lengths, live, budget)
    if layout == "padded" and 0 < len(bins) < ranks <= len(live):
        # Too few full micro-batches to go round: cut finer, so that no rank idles.
        share = int(np.ceil(len(live) / ranks))
        bins = [b[i : i + share] for b in bins for i in range(0, len(b), share)]

    def size(b: np.ndarray) -> int:
        if layout == "packed":
            return int(lengths[b].sum())
        return len(b) * int(lengths[b].max())

    def price(b: np.ndarray) -> float:
        if layout == "packed":
            if varlen:
                return float(sum(cost(1, int(x)) for x in lengths[b]))
            return cost(1, int(lengths[b].sum()))
        return cost(len(b), int(lengths[b].max()))

    heap = [(0.0, r) for r in range(ranks)]
    parts: list[list[np.ndarray]] = [[] for _ in range(ranks)]
    for b in sorted(bins, key=lambda b: (-price(b), int(b[0]))):
        load, rank = heapq.heappop(heap)
        parts[rank].append(b)
        heapq.heappush(heap, (load + price(b), rank))
    most = max((len(p) for p in parts), default=0)
    dummies = tuple(most - len(p) for p in parts)
    if most:
        shortest = live[[int(np.argmin(lengths[live]))]]
        for part, missing in zip(parts, dummies, strict=True):
            part.extend([shortest] * missing)
    return Plan(
        ranks=tuple(tuple(p) for p in parts),
        dummies=dummies,
        dropped=len(chosen) - len(live),
        tokens=int(lengths[live].sum()),
        padded_tokens=sum(size(b) for b in bins),
    )


def split_steps(
    batch: TrainBatch, steps: int, minibatches: int, seed: int, first_step: int
) -> list[np.ndarray]:
    """bool [t] for each of `steps` optimiser steps: the trajectories it takes.

    Task groups stay whole, because their advantages balance each other. Groups are shuffled anew in
    each pass over the buffer, by the seed and the number of the step.
    """
    t = len(batch.advantage)
    if minibatches == 1:
        return [np.ones(t, dtype=bool) for _ in range(steps)]
    groups, counts = np.unique(batch.group, return_counts=True)
    out: list[np.ndarray] = []
    while len(out) < steps:
        order = np.random.default_rng([seed, first_step + len(out)]).permutation(len(groups))
        heap = [(0, m) for m in range(minibatches)]
        part = np.zeros(int(groups.max(initial=0)) + 1, dtype=np.int64)
        for g in order:
            load, m = heapq.heappop(heap)
            part[groups[g]] = m
            heapq.heappush(heap, (load + int(counts[g]), m))
        out.extend(part[batch.group] == m for m in range(minibatches))
    return out[:steps]


def collate(
    batch: TrainBatch,
    lengths: np.ndarray,
    segments: Sequence[int] | np.ndarray,
    layout: Layout,
    dummy: bool = False,
) -> MicroBatch:
    """The arrays of one forward pass over `segments`."""
    chosen = np.asarray(segments, dtype=np.int64)
    n = lengths[chosen]
    width = int(n.sum()) if layout == "packed" else int(n.max())
    starts = np.concatenate([[0], np.cumsum(n)[:-1]])
    within = np.arange(int(n.sum())) - np.repeat(starts, n)
    source = np.repeat(batch.offsets[chosen], n) + within
    # Where token `within` of each segment stands in the flattened rows.
    place = within + np.repeat(starts if layout == "packed" else np.arange(len(n)) * width, n)
    sampled = batch.loss_mask[source + 1]
    total = width if layout == "packed" else len(n) * width
    ids = np.full(total, PAD_ID, dtype=np.int64)
    ids[place] = batch.token_ids[source]
    token = source[sampled] + 1
    return MicroBatch(
        input_ids=ids.reshape(1 if layout == "packed" else len(n), width),
        position_ids=within[None].astype(np.int64) if layout == "packed" else None,
        rows=place[sampled],
        labels=batch.token_ids[token].astype(np.int64),
        token=token,
        segment=np.repeat(chosen, n)[sampled],
        dummy=dummy,
    )
