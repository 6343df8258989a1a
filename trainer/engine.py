"""One rank of the trainer: a DeepSpeed engine and the loop around it."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from trainer import compat
from trainer.batch import TrainBatch, normaliser
from trainer.checkpoint import load_shards, save_shards
from trainer.config import TrainerConfig
from trainer.errors import TrainerError
from trainer.flops import count_flops, peak_flops
from trainer.logprobs import TokenScorer, parity, sequences_batch
from trainer.lora import adapter_name, add_lora, plain_weights
from trainer.objective import HISTOGRAM_BINS, SUMS, Tokens, policy_loss, ratio_quantiles
from trainer.optimizer import Clip, make_optimizer, warmup
from trainer.packing import (
    Layout,
    MicroBatch,
    Plan,
    collate,
    input_lengths,
    plan_micro_batches,
    split_steps,
)
from trainer.reference import Reference

PARITY_TOLERANCE = {"fp32": 1e-4, "bf16": 0.25}
"""Largest |Δ log-prob| between a layout and separate runs. bf16 sums in another order differ by
hundredths; sequences that leak into each other differ by more than one."""


class TrainerEngine:
    """A rank's engine. Every method is a collective: all ranks call it with the same arguments.

    RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT must be set, as torch expects them.
    """

    def __init__(self, config: TrainerConfig, model_path: str) -> None:
        self.config = config
        self.model_path = model_path
        self.rank = int(os.environ["RANK"])
        self.world_size = int(os.environ["WORLD_SIZE"])
        if self.world_size != config.world_size:
            raise TrainerError(
                f"trainer.world_size is {config.world_size} but WORLD_SIZE is {self.world_size}",
                self.rank,
            )
        if config.device == "cuda" and not torch.cuda.is_available():
            raise TrainerError(
                "trainer.device is 'cuda' but torch sees no GPU; set device: cpu, or install the "
                "CUDA build: pip install 'coevo[gpu]'",
                self.rank,
            )
        torch.manual_seed(config.seed)
        deepspeed = compat.deepspeed_module(config.device)
        if not dist.is_initialized():
            backend = "gloo" if config.device == "cpu" else "nccl"
            deepspeed.init_distributed(dist_backend=backend, verbose=False)
        compat.forget_zero3()
        settings = compat.deepspeed_config(config)
        self._zero3 = compat.remember_zero3(settings)
        self._reference: Reference | None = None
        if config.kl_beta > 0 and config.lora is None:
            path = config.reference_path or model_path
            self._reference = Reference.load(config, path, deepspeed)
        model = compat.load_model(model_path, config)
        if config.lora is not None:
            add_lora(model, config.lora, config.seed)
        model.train()
        self._scorer = TokenScorer(model)
        optimizer = make_optimizer(model, config)
        self._clip = Clip(optimizer, config.grad_clip) if compat.plain_optimizer(config) else None
        self.engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=optimizer,
            lr_scheduler=warmup(optimizer, config),
            config=settings,
        )
        self.device = self.engine.device
        if config.kl_beta > 0 and config.lora is not None:
            self._reference = Reference.under_adapters(self._scorer, self.engine, model)
        self.step = 0
        self.parity = parity(
            self._scorer, self.engine, self.vocabulary, self.device, seed=config.seed
        )
        self.layout, self.layout_reason = self._choose_layout()
        self._flops = count_flops(model)
        self.peak_flops = peak_flops(self.device, config.dtype)

    # ---- set-up

    def _choose_layout(self) -> tuple[Layout, str]:
        limit = PARITY_TOLERANCE[self.config.dtype]
        asked = self.config.packing
        shown = ", ".join(f"{k} {v:.2g}" for k, v in self.parity.items())
        if asked == "packed" and self.parity["packed"] > limit:
            raise TrainerError(
                f"trainer.packing is 'packed' but packed sequences differ from separate ones by "
                f"{self.parity['packed']:.3g} in log-prob (limit {limit}): this model does not keep "
                "packed sequences apart; set packing: padded",
                self.rank,
            )
        if asked == "packed":
            return "packed", f"asked for; max |Δ log-prob| against separate: {shown}"
        varlen = compat.has_varlen_attention(self.config.attn_implementation)
        if asked == "auto" and varlen and self.parity["packed"] <= limit:
            return (
                "packed",
                f"variable-length attention; max |Δ log-prob| against separate: {shown}",
            )
        if self.parity["padded"] > limit:
            raise TrainerError(
                f"padded sequences differ from separate ones by {self.parity['padded']:.3g} in "
                f"log-prob (limit {limit}): the model looks at padding to the right, or its kernels "
                "are not deterministic enough; is it a causal language model?",
                self.rank,
            )
        if asked == "padded":
            reason = "asked for"
        elif varlen:
            reason = "the model does not keep packed sequences apart"
        else:
            reason = (
                f"attention {self.config.attn_implementation!r} costs the square of a packed row"
            )
        return "padded", f"{reason}; max |Δ log-prob| against separate: {shown}"

    @property
    def vocabulary(self) -> int:
        return int(self.engine.module.config.get_text_config().vocab_size)

    # ---- forward passes

    def _plan(self, lengths: np.ndarray, segments: np.ndarray) -> Plan:
        return plan_micro_batches(
            lengths,
            segments,
            budget=self.config.micro_batch_tokens,
            ranks=self.world_size,
            layout=self.layout,
            varlen=compat.has_varlen_attention(self.config.attn_implementation),
        )

    def _micro_batches(
        self, batch: TrainBatch, lengths: np.ndarray, plan: Plan
    ) -> Iterator[MicroBatch]:
        mine = plan.ranks[self.rank]
        real = len(mine) - plan.dummies[self.rank]
        for i, segments in enumerate(mine):
            yield collate(batch, lengths, segments, self.layout, dummy=i >= real)

    def token_logprobs(
        self, batch: TrainBatch, segments: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Log-probs of this rank's share of the sampled tokens: (index int64 [k], float32 [k])."""
        lengths = input_lengths(batch)
        chosen = np.arange(batch.segments) if segments is None else segments
        index: list[np.ndarray] = [np.zeros(0, dtype=np.int64)]
        values: list[np.ndarray] = [np.zeros(0, dtype=np.float32)]
        with torch.no_grad():
            for micro in self._micro_batches(batch, lengths, self._plan(lengths, chosen)):
                found, _ = self._scorer(self.engine, micro, batch.temperature, self.device)
                if not micro.dummy:
                    index.append(micro.token)
                    values.append(found.cpu().numpy())
        return np.concatenate(index), np.concatenate(values)

    def score(self, sequences: list[list[int]]) -> list[list[float]]:
        """Log-probs at temperature 1 of tokens 1… of each sequence, the same on every rank."""
        short = [i for i, s in enumerate(sequences) if len(s) < 2]
        if short:
            raise TrainerError(
                f"score: sequence {short[0]} has {len(sequences[short[0]])} tokens; a log-prob needs "
                "at least 2",
                self.rank,
            )
        batch = sequences_batch(sequences)
        lengths = input_lengths(batch)
        out: list[list[float]] = []
        with torch.no_grad():
            for i in range(len(sequences)):
                micro = collate(batch, lengths, [i], "padded")
                found, _ = self._scorer(self.engine, micro, 1.0, self.device)
                out.append([float(x) for x in found.cpu()])
        return out

    def _sequence_log_ratios(self, batch: TrainBatch, segments: np.ndarray) -> torch.Tensor:
        """float32 [t]: mean log π_θ/π_b of each trajectory, over all its segments on all ranks."""
        index, values = self.token_logprobs(batch, segments)
        owner = np.repeat(batch.trajectory, np.diff(batch.offsets))[index]
        sums = np.bincount(
            owner, weights=values - batch.behaviour[index], minlength=len(batch.advantage)
        )
        total = self._reduced(torch.from_numpy(sums))
        return (total / torch.from_numpy(np.maximum(batch.sampled_by_trajectory(), 1))).float()

    def _reduced(self, values: torch.Tensor, op: Any = dist.ReduceOp.SUM) -> torch.Tensor:
        moved = values.to(self.device)
        if self.world_size > 1:
            dist.all_reduce(moved, op=op)
        return moved.cpu()

    # ---- training

    def train(self, batch: TrainBatch) -> list[dict[str, float]]:
        """One round: `steps_per_round` optimiser steps over the batch; the metrics of each."""
        lengths = input_lengths(batch)
        parts = split_steps(
            batch,
            self.config.steps_per_round,
            self.config.minibatches,
            self.config.seed,
            self.step,
        )
        return [self.train_step(batch, chosen, lengths) for chosen in parts]

    def train_step(
        self,
        batch: TrainBatch,
        chosen: np.ndarray | None = None,
        lengths: np.ndarray | None = None,
    ) -> dict[str, float]:
        """One optimiser step over the trajectories `chosen` (bool [t]; all when None).

        Metrics hold over all ranks, of the segments that were run. `skipped` is 1 where no segment
        had an advantage, and then nothing is changed.
        """
        started = time.perf_counter()
        config = self.config
        lengths = input_lengths(batch) if lengths is None else lengths
        chosen = np.ones(len(batch.advantage), dtype=bool) if chosen is None else chosen
        weights, denominator = normaliser(batch, chosen, config.aggregation, config.constant_length)
        live = chosen & (batch.advantage != 0) if config.kl_beta == 0 else chosen
        segments = np.flatnonzero(live[batch.trajectory] & (lengths > 0))
        plan = self._plan(lengths, segments)
        if plan.steps == 0:
            self.step += 1
            return {"step": float(self.step), "skipped": 1.0, "denominator": denominator}
        means = (
            self._sequence_log_ratios(batch, segments).to(self.device)
            if config.ratio == "sequence"
            else None
        )
        sums = torch.zeros(len(SUMS), dtype=torch.float64, device=self.device)
        histogram = torch.zeros(HISTOGRAM_BINS, dtype=torch.int64, device=self.device)
        peak = torch.zeros((), device=self.device)
        scale = self.world_size / denominator  # DeepSpeed averages gradients over ranks
        for micro in self._micro_batches(batch, lengths, plan):
            tokens = self._tokens(batch, micro, weights, means)
            loss = policy_loss(tokens, config)
            self.engine.backward(loss.total * (0.0 if micro.dummy else scale), scale_wrt_gas=False)
            if not micro.dummy:
                sums += loss.sums
                histogram += loss.histogram
                peak = torch.maximum(peak, loss.peak)
        rate = self.engine.get_lr()[0]
        self.engine.step()
        self.step += 1
        norm = self._grad_norm()
        if not math.isfinite(norm):
            raise TrainerError(
                f"gradient norm is {norm} at optimiser step {self.step}: the weights of this process "
                "are lost; resume from the last checkpoint with a smaller lr or a ratio_mask",
                self.rank,
            )
        found = dict(zip(SUMS, self._reduced(sums).tolist(), strict=True))
        n = max(found["tokens"], 1.0)
        elapsed = time.perf_counter() - started
        return {
            "step": float(self.step),
            "skipped": 0.0,
            "lr": float(rate),
            "grad_norm": norm,
            "loss": found["loss"] / denominator,
            "kl_mismatch": found["kl_mismatch"] / n,
            "abs_dlogp": found["abs_dlogp"] / n,
            "max_abs_dlogp": float(self._reduced(peak, dist.ReduceOp.MAX)),
            "kept_fraction": found["kept"] / n,
            "clip_fraction": found["clipped"] / n,
            "entropy": found["entropy"] / n,
            "kl_reference": found["kl_reference"] / n,
            **ratio_quantiles(self._reduced(histogram)),
            "sampled_tokens": found["tokens"],
            "denominator": denominator,
            "segments": float(len(segments)),
            "micro_batches": float(plan.steps * self.world_size - sum(plan.dummies)),
            "padding_fraction": 1.0 - plan.tokens / plan.padded_tokens,
            "seconds": elapsed,
            "tokens_per_s": plan.tokens / elapsed,
            **self._utilisation(lengths[segments], int(found["tokens"]), elapsed),
        }

    def _utilisation(self, lengths: np.ndarray, sampled: int, elapsed: float) -> dict[str, float]:
        """`mfu`, the share of the ranks' peak; nothing where the model or the device is not known."""
        if self._flops is None or self.peak_flops is None:
            return {}
        return {
            "mfu": self._flops(lengths, sampled) / (elapsed * self.peak_flops * self.world_size)
        }

    def _tokens(
        self,
        batch: TrainBatch,
        micro: MicroBatch,
        weights: np.ndarray,
        means: torch.Tensor | None,
    ) -> Tokens:
        owner = batch.trajectory[micro.segment]

        def put(values: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(values).to(self.device)

        reference = None
        if self._reference is not None:
            reference = self._reference.logprobs(micro, batch.temperature, self.device)
        logprobs, entropy = self._scorer(self.engine, micro, batch.temperature, self.device)
        return Tokens(
            logprobs=logprobs,
            behaviour=put(batch.behaviour[micro.token]),
            advantage=put(batch.advantage[owner]),
            weight=put(weights[owner]),
            old=None if batch.old is None else put(batch.old[micro.token]),
            sequence_log_ratio=None if means is None else means[put(owner)],
            reference=reference,
            entropy=entropy,
        )

    def _grad_norm(self) -> float:
        if self._clip is not None:
            return self._clip.norm
        return float(self.engine.get_global_grad_norm())

    # ---- weights

    def named_weights(
        self, device: torch.device | str = "cpu"
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """(name, whole tensor on `device`) of every parameter by name, a tied head once, on rank 0;
        with LoRA the update is merged in.

        Other ranks iterate too, because ZeRO-3 gathers parameter by parameter; they get empty
        tensors. Only one whole parameter at a time stands in device memory.
        """
        for weight in plain_weights(self.engine.module):
            with compat.gathered(weight.parts, self.config.zero_stage):
                if self.rank == 0:
                    yield weight.name, weight.tensor().to(device, copy=True).contiguous()
                else:
                    yield weight.name, torch.empty(0)

    def adapter_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """As `named_weights`, of the adapters alone, named as in a peft adapter file."""
        for name, parameter in self.engine.module.named_parameters():
            if parameter.requires_grad:
                with compat.gathered([parameter], self.config.zero_stage):
                    if self.rank == 0:
                        whole = parameter.detach().to("cpu", copy=True).contiguous()
                        yield adapter_name(name), whole
                    else:
                        yield adapter_name(name), torch.empty(0)

    def save_shards(self, directory: Path, extra: dict[str, Any]) -> None:
        """This rank's part of a checkpoint: weights, optimiser, schedule, step, RNG, `extra`."""
        save_shards(self.engine, directory, self.step, extra)

    def load_shards(self, directory: Path, universal: bool = False) -> dict[str, Any]:
        """Restore what `save_shards` wrote, or `to_universal` made of it; returns `extra`."""
        self.step, extra = load_shards(self.engine, directory, universal)
        return extra

    def close(self) -> None:
        """Leave the group of ranks in order; without it gloo and NCCL may hang at exit."""
        if dist.is_initialized():
            dist.barrier()
            dist.destroy_process_group()
