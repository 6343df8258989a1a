"""Memory that a run needs, by what it is for: pure formulas over a model's shape. Imports no torch.

Sources: ZeRO (Rajbhandari et al. 2020) for weights, gradients and optimiser states over ranks; the KV
cache of multi-head attention with grouped keys; activations counted from what autograd keeps of a
decoder layer with fused attention (Korthikanti et al. 2022 count the same without grouped keys and
gated MLPs). docs/models.md writes the formulas out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from coevo.config import RunConfig
from coevo.model_shape import ModelShape
from trainer.config import TrainerConfig

GIB = 1 << 30

ELEMENT = {"float32": 4, "float16": 2, "bfloat16": 2, "fp32": 4, "bf16": 2}
"""Bytes of a number."""

CONTEXT = 2 * GIB
"""Assumed on a GPU a process: CUDA context, kernels, NCCL's buffers, an engine's CUDA graphs. Not
measured."""

PROCESS = int(0.8 * GIB)
"""Host memory of a process that has imported torch and an engine, without weights; measured."""

BUCKET = 500_000_000
"""Elements of DeepSpeed's reduce buffer (`reduce_bucket_size`), allocated whole at stages 1 to 3."""

LIVE = 1_000_000_000
"""Parameters that ZeRO-3 gathers at once at most (`stage3_max_live_parameters`)."""

HEADROOM = 0.92
"""Share of a GPU that is planned with; the rest is for fragmentation."""

Parts = dict[str, int]
"""What it is for -> bytes."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Bytes of the run by place. engine, trainer: on each GPU (device cuda) or in the host for all
    of them (device cpu). host: besides, on a node. Colocated, engine and trainer share each GPU."""

    engine: Parts
    trainer: Parts
    host: Parts
    colocated: bool

    @property
    def gpu(self) -> int:
        """The most that any one GPU must hold. A sleeping engine keeps its context only."""
        engine, trainer = sum(self.engine.values()), sum(self.trainer.values())
        if self.colocated:
            return max(engine, trainer + (CONTEXT if trainer else 0))
        return max(engine, trainer)


def engine_parts(shape: ModelShape, config: RunConfig) -> Parts:
    """Of one engine worker, tensor-parallel over `tensor_parallel` GPUs.

    The cache is `kv_cache_bytes` on each. Prefill keeps the widest layer's inputs and outputs of a
    batch's tokens; sampling two fp32 copies of the logits of `max_num_seqs` rows.
    """
    engine = config.policy.engine
    served = engine.resolved("", max_model_len(config), 0)
    size, ways = ELEMENT[engine.dtype], engine.tensor_parallel
    width = shape.heads * shape.head_dim + 2 * shape.kv_heads * shape.head_dim
    layer = 2 * shape.hidden + max(width, 2 * shape.intermediate) // ways
    parts = {
        "weights": shape.parameters * size // ways,
        "KV cache": engine.kv_cache_bytes,
        "prefill": served.batched_tokens * layer * size,
        "logits": 2 * 4 * engine.max_num_seqs * shape.vocabulary,
    }
    if engine.lora is not None:
        parts["adapters"] = shape.lora_parameters(engine.lora.rank, "all-linear") * size // ways
    return parts


def trainer_parts(shape: ModelShape, config: TrainerConfig, longest: int) -> tuple[Parts, Parts]:
    """(of one rank's device, what it keeps offloaded in the host's memory).

    longest: tokens of the longest segment, which is alone where it exceeds `micro_batch_tokens`.
    """
    size, ranks, stage = ELEMENT[config.dtype], config.world_size, config.zero_stage
    trained = shape.parameters
    if config.lora is not None:
        trained = shape.lora_parameters(config.lora.rank, config.lora.targets)
    held = shape.parameters + (trained if config.lora is not None else 0)

    def shard(count: int, from_stage: int) -> int:
        return count // ranks if stage >= from_stage else count

    weights = shard(held * size, 3)
    # bf16: gradients are accumulated in fp32 beside the bf16 ones of the backward pass.
    gradients = shard(trained * 4, 2) + (shard(trained * size, 2) if size < 4 else 0)
    # AdamW's two moments; ZeRO keeps an fp32 master copy, of fp32 weights too.
    states = shard(trained * (12 if stage else 8), 1)
    device: Parts = {"activations": activations(shape, config, longest)}
    host: Parts = {}
    if config.offload.params == "cpu":
        host["offloaded weights"] = weights
    else:
        device["weights"] = weights
    device["gradients"] = gradients
    if config.offload.optimizer == "cpu":
        host["offloaded optimizer"] = states
    else:
        device["optimizer"] = states
    if stage and ranks > 1:
        device["reduce buffer"] = BUCKET * (4 if stage == 1 else size)
    if stage == 3:
        device["gathered weights"] = min(held, LIVE) * size if ranks > 1 else 0
    if config.kl_beta > 0 and config.lora is None:
        device["reference model"] = shard(shape.parameters * size, 3)
    return {k: v for k, v in device.items() if v}, host


def activations(shape: ModelShape, config: TrainerConfig, longest: int) -> int:
    """What autograd keeps of a micro-batch, fused attention assumed.

    A layer keeps, a token: b(6h + 3q + 2k + 4f) + 8h bytes, where b is the element's, h the hidden
    width, q and k those of queries and keys, f the MLP's; 8h are the fp32 copies of two norms. With
    checkpointing only b·h, and one layer whole while it is recomputed.
    """
    size = ELEMENT[config.dtype]
    q, k = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    layer = size * (6 * shape.hidden + 3 * q + 2 * k + 4 * shape.intermediate) + 8 * shape.hidden
    kept = shape.layers * layer
    if config.gradient_checkpointing:
        kept = shape.layers * size * shape.hidden + layer
    return max(config.micro_batch_tokens, longest) * kept


def plan(shape: ModelShape, config: RunConfig) -> Plan:
    """The whole run's. What arms of an experiment share a stack for is counted for every mode."""
    engine, resources = config.policy.engine, config.resources
    trainer = config.trainer
    per_engine = engine_parts(shape, config)
    per_rank, offloaded = trainer_parts(shape, trainer, max_model_len(config))
    if not config.trains:
        per_rank, offloaded = {}, {}
    ranks = min(trainer.world_size, _ranks_of_a_node(config)) if config.trains else 0
    host: Parts = {k: v * ranks for k, v in offloaded.items()}
    host["object store"] = resources.object_store_bytes
    processes = engine.replicas + config.rollout.workers + 1 + ranks
    host["processes"] = processes * PROCESS
    if config.trains:
        # Rank 0 gathers what it publishes.
        host["published weights"] = shape.parameters * ELEMENT[trainer.dtype]
    if engine.device == "cuda":
        if config.colocated and engine.lora is not None:  # level-1 sleep keeps the base weights
            host["sleeping engine"] = per_engine["weights"] * ranks
        return Plan(
            {**per_engine, "context": CONTEXT},
            {**per_rank, "context": CONTEXT} if per_rank else {},
            host,
            config.colocated,
        )
    return Plan(
        {k: v * engine.replicas for k, v in per_engine.items()},
        {k: v * ranks for k, v in per_rank.items() if k != "reduce buffer"},
        host,
        config.colocated,
    )


def host_bytes(plan: Plan, device: str) -> int:
    """Of the machine's memory in all; on device cpu engine and trainer live there, too."""
    parts: Iterable[Parts] = (
        (plan.host, plan.engine, plan.trainer) if device == "cpu" else (plan.host,)
    )
    return sum(sum(p.values()) for p in parts)


def max_model_len(config: RunConfig) -> int:
    """Tokens of prompt and answer together."""
    return config.rollout.max_context + config.rollout.max_new_tokens


def kv_tokens(shape: ModelShape, config: RunConfig) -> int:
    """Tokens of context that one engine's cache holds."""
    engine = config.policy.engine
    # More tensor-parallel workers than key heads hold copies.
    ways = min(engine.tensor_parallel, shape.kv_heads)
    return engine.kv_cache_bytes * ways // shape.kv_bytes_per_token(ELEMENT[engine.dtype])


TOKEN_BYTES = 17
"""Of the buffer, a token: id, mask, two log-probs, version."""


def disk_parts(shape: ModelShape, config: RunConfig) -> Parts:
    """What the run will have written at its end, at most: the weights and trainer states that
    `storage` keeps, one more of each being written, and the buffer's tokens were every context full."""
    trainer, storage = config.trainer, config.storage
    size, rounds = ELEMENT[trainer.dtype], config.rounds
    episodes = rounds * config.tasks.per_round * config.tasks.samples
    parts = {"buffer": episodes * max_model_len(config) * TOKEN_BYTES}
    if not config.trains:
        return parts
    trained = shape.parameters
    published = trained
    if trainer.lora is not None:
        trained = shape.lora_parameters(trainer.lora.rank, trainer.lora.targets)
        published = trained if trainer.lora.publish == "adapter" else shape.parameters
    states = trained * (size + (12 if trainer.zero_stage else 8))
    return {
        **parts,
        "weights of each round": published
        * size
        * min(rounds, (storage.policy_weights or rounds) + 1),
        "trainer states": min(rounds, storage.trainer_checkpoints + 1) * states,
    }


def shown(parts: Parts) -> str:
    """ "weights 15.3 + gradients 3.8 GiB", the largest first."""
    ranked = sorted(parts.items(), key=lambda item: -item[1])
    big = [f"{name} {size / GIB:.1f}" for name, size in ranked if size >= 0.05 * GIB]
    return (" + ".join(big) or "under 0.1") + " GiB"


def _ranks_of_a_node(config: RunConfig) -> int:
    """Ranks that lie on one node at most."""
    if config.cluster is None or config.trainer.device == "cpu":
        return config.trainer.world_size
    return max(1, config.cluster.gpus_per_node)
