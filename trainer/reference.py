"""The reference model M_0 of kl_beta: the base under the adapters, a whole copy, or a ZeRO-3 engine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from trainer import compat
from trainer.config import TrainerConfig
from trainer.logprobs import TokenScorer
from trainer.lora import base_only
from trainer.packing import MicroBatch


class Reference:
    """Scores micro-batches with M_0. Under ZeRO-3 a call is a collective over all ranks."""

    def __init__(
        self,
        scorer: TokenScorer,
        call: Callable[..., Any],
        context: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._scorer, self._call, self._context = scorer, call, context

    @classmethod
    def under_adapters(cls, scorer: TokenScorer, call: Callable[..., Any], model: Any) -> Reference:
        """The model in training without its adapters: no further memory."""
        return cls(scorer, call, lambda: base_only(model))

    @classmethod
    def load(cls, config: TrainerConfig, path: str, deepspeed: Any) -> Reference:
        """A copy of its own: whole on every rank, or sharded over them under ZeRO-3."""
        model = compat.load_model(path, config)
        model.requires_grad_(False)
        model.eval()
        scorer = TokenScorer(model)
        if config.zero_stage != 3:
            return cls(scorer, model.to(config.device))
        engine, *_ = deepspeed.initialize(model=model, config=compat.inference_config(config))
        engine.eval()
        return cls(scorer, engine)

    @torch.no_grad()
    def logprobs(
        self, micro: MicroBatch, temperature: float, device: torch.device | str
    ) -> torch.Tensor:
        """float32 [k]: log-probs of the sampled tokens under M_0."""
        with self._context():
            found, _ = self._scorer(self._call, micro, temperature, device)
        return found
