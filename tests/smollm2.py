"""SmolLM2-135M-Instruct as a function of tensors alone: the step of a prompt or of one token, with the cache
of keys and values among its arguments and results.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
CACHE_LENGTH = 128
PROMPT = "Why is the sky blue?"


def load() -> tuple[Any, Any]:
    """The tokenizer and the model, as examples/generate.py loads them."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        import generate
    finally:
        sys.path.remove(str(EXAMPLES))
    return generate.load()


class Step:
    """Called with `ids` [1, n], the number of tokens in the cache, and per layer keys and values
    [1, heads, CACHE_LENGTH, width]; returns the logits [1, 1, vocabulary] of the last token, keys, values.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.config = model.config

    def empty_cache(self) -> list[torch.Tensor]:
        config = self.config
        sizes = (1, config.num_key_value_heads, CACHE_LENGTH, config.head_dim)
        return [torch.zeros(sizes, dtype=self.model.dtype) for _ in range(config.num_hidden_layers)]

    @torch.no_grad()
    def __call__(
        self,
        ids: torch.Tensor,
        length: torch.Tensor,
        keys: list[torch.Tensor],
        values: list[torch.Tensor],
    ) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
        from transformers import StaticCache

        cache = StaticCache(config=self.config, max_cache_len=CACHE_LENGTH)
        for layer, key, value in zip(cache.layers, keys, values, strict=True):
            layer.keys, layer.values = key.clone(), value.clone()
            layer.device = key.device
            layer.cumulative_length = length.clone()
            layer.is_initialized = True
        positions = length + torch.arange(ids.shape[1], device=ids.device)
        # Given, not made by the model: its own depends on the length's value.
        mask = torch.arange(CACHE_LENGTH, device=ids.device) <= positions[:, None]
        output = self.model(
            input_ids=ids,
            position_ids=positions[None],
            attention_mask=mask[None, None],
            cache=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits, [layer.keys for layer in cache.layers], [layer.values for layer in cache.layers]
