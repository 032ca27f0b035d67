"""How many requests fit into the memory of an accelerator at a time."""

from __future__ import annotations

from typing import Any

PREFILL_TOKENS = 16_384
"""Tokens of a batch, over all of its rows, that pass the language model together while prompts are read."""
_SPARE = 0.9
"""Share of the free memory that is counted on; the rest is for what allocators and kernels take."""


def rows_that_fit(free: int, length: int, config: Any, itemsize: int) -> int:
    """How many sequences can be generated together, at least one.

    A row keeps keys and values of all of its tokens, one layer's twice while that layer's grow, the embeddings of its
    prompt, and its scores, of which there are up to four copies in float32. Whatever the rows, a stretch of
    `PREFILL_TOKENS` passes the layers: three tensors as wide as the MLP, eight as wide as the model, and the
    attention's mask.

    Args:
        free: bytes.
        length: of the longest row, prompt and answer, in tokens.
        config: of the language model.
        itemsize: bytes of a number of its weights.
    """
    head = config.head_dim or config.hidden_size // config.num_attention_heads
    keys_and_values = 2 * (config.num_hidden_layers + 1) * config.num_key_value_heads * head
    row = length * (keys_and_values + config.hidden_size) * itemsize + 4 * 4 * config.vocab_size
    stretch = (3 * config.intermediate_size + 8 * config.hidden_size + length) * itemsize + length
    return max(1, int((free * _SPARE - PREFILL_TOKENS * stretch) / row))
