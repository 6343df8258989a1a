"""Log-probs of sampled tokens only: hidden states are selected before the head sees them.

In a segment of about a hundred context tokens with a few sampled ones, the head would otherwise
spend most of its work on positions without loss. A forward hook on the backbone keeps the rows that
predict sampled tokens; TRL's fused head then turns them into log-probs of logits / temperature in
fp32, in tiles, so that no [tokens, vocab] tensor stands in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from trainer import compat
from trainer.batch import TrainBatch
from trainer.packing import Layout, MicroBatch, collate, input_lengths


class TokenScorer:
    """Scores the sampled tokens of micro-batches with one model, at any temperature.

    Attach it before the model is wrapped by DeepSpeed, so that the hook runs inside the engine's.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._plain = model.forward
        self._fused: dict[float, Any] = {}
        self._rows: torch.Tensor | None = None
        model.base_model.register_forward_hook(self._select)

    def _select(self, _module: Any, _args: Any, output: Any) -> Any:
        if self._rows is not None:
            hidden = output.last_hidden_state
            output.last_hidden_state = hidden.reshape(-1, hidden.shape[-1])[self._rows][None]
        return output

    def _use(self, temperature: float) -> None:
        # The temperature is fixed when the head is fused: one patched forward for each.
        if temperature not in self._fused:
            self._model.forward = self._plain
            compat.add_fused_head(self._model, temperature)
            self._fused[temperature] = self._model.forward
        self._model.forward = self._fused[temperature]

    def __call__(
        self,
        call: Callable[..., Any],
        micro: MicroBatch,
        temperature: float,
        device: torch.device | str,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs and entropies, float32 [k]. `call` is the model or the engine around it."""
        self._use(temperature)
        arguments: dict[str, Any] = {
            "input_ids": torch.from_numpy(micro.input_ids).to(device),
            "attention_mask": None,
        }
        if micro.position_ids is not None:
            arguments["position_ids"] = torch.from_numpy(micro.position_ids).to(device)
        labels = torch.from_numpy(micro.labels).to(device)
        self._rows = torch.from_numpy(micro.rows).to(device)
        try:
            out = call(**arguments, **compat.fused_arguments(labels))
        finally:
            self._rows = None
            self._model.forward = self._plain
        return out.log_probs[0].float(), out.entropy[0].float()


def sequences_batch(sequences: list[list[int]], temperature: float = 1.0) -> TrainBatch:
    """A batch that scores every token but the first of each sequence (length ≥ 2)."""
    lengths = [len(s) for s in sequences]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    mask = np.ones(int(offsets[-1]), dtype=bool)
    mask[offsets[:-1]] = False
    count = len(sequences)
    return TrainBatch(
        token_ids=np.concatenate([np.asarray(s, dtype=np.int32) for s in sequences]),
        loss_mask=mask,
        behaviour=np.zeros(len(mask), dtype=np.float32),
        offsets=offsets,
        trajectory=np.arange(count),
        group=np.arange(count),
        advantage=np.zeros(count, dtype=np.float32),
        temperature=temperature,
    )


def parity(
    scorer: TokenScorer,
    call: Callable[..., Any],
    vocabulary: int,
    device: torch.device | str,
    seed: int,
) -> dict[Layout, float]:
    """Largest |Δ log-prob| of each layout against every sequence run alone.

    A model whose sequences leak into each other when packed (linear attention, convolutions), or
    that looks right past the causal mask when padded, shows here before it trains wrongly.
    """
    rng = np.random.default_rng(seed)
    lengths = [9, 33, 5, 17]
    batch = sequences_batch([rng.integers(0, vocabulary, n).tolist() for n in lengths])
    needed = input_lengths(batch)

    def run(segments: list[int], layout: Layout) -> np.ndarray:
        micro = collate(batch, needed, segments, layout)
        with torch.no_grad():
            values, _ = scorer(call, micro, 1.0, device)
        return values.cpu().numpy()

    alone = np.concatenate([run([i], "padded") for i in range(len(lengths))])
    every = list(range(len(lengths)))
    layouts: tuple[Layout, ...] = ("packed", "padded")
    return {layout: float(np.abs(run(every, layout) - alone).max()) for layout in layouts}
