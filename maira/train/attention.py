"""Attention kernels for packed rows, registered with transformers.

A row concatenates samples, and no token attends to another sample. Neither kernel makes a mask of the squared length
of the row: `varlen` takes the offsets of the samples, `samples` arranges them as a padded batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from maira.model.modeling import MairaForConditionalGeneration
from maira.train.data.packing import PackedBatch
from radfact.errors import ErrorCode, InputError

_PLACE = "torch.nn.attention.varlen"
varlen_attn: Any = import_module(_PLACE).varlen_attn if find_spec(_PLACE) else None
_VARLEN_OPTIONS = frozenset(inspect.signature(varlen_attn).parameters if varlen_attn else ())
"""Options of the kernel for variable lengths: torch 2.11 has windows, but no grouped queries yet."""
VARLEN, SAMPLES = "maira_varlen", "maira_samples"
"""Names of the kernels in transformers."""


class PackedRow(NamedTuple):
    """The positions of the samples of a packed row; reaches the kernels as the language model's argument `row`."""

    starts: Tensor  # (samples + 1,) int32, the first token of each sample, and the end of the row; padding is a sample
    longest: int  # tokens of the longest sample
    # (samples, longest), the token at each position of the padded batch, without the row's padding; beyond the end of a
    # sample any token. This and `back` are empty for `varlen`.
    places: Tensor
    back: Tensor  # (tokens,), the index of each token in the flattened `places`


def register_kernels() -> None:
    for name, kernel in ((VARLEN, _varlen), (SAMPLES, _samples)):
        AttentionInterface.register(name, partial(_attend, kernel))
        AttentionMaskInterface.register(name, _mask)


def select_kernel(option: Literal["auto", "varlen", "samples"], device: torch.device, dtype: torch.dtype) -> str:
    missing = None
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0):
        missing = "a GPU with FlashAttention (Ampere or later)"
    elif dtype not in (torch.bfloat16, torch.float16):
        missing = "precision bf16"
    elif "window_size" not in _VARLEN_OPTIONS:
        missing = "torch 2.11 or later"
    if option == "varlen" and missing:
        raise InputError(f"varlen needs {missing}; use 'auto'", code=ErrorCode.MISSING_REQUIREMENT, field="attention")
    return SAMPLES if option == "samples" or missing else VARLEN


def set_kernel(model: MairaForConditionalGeneration, name: str) -> None:
    """Set the kernel of a MAIRA-2's language model; without a `row` (in generation) it is transformers' SDPA."""
    register_kernels()
    model.model.language_model.set_attn_implementation(name)


def packed_kwargs(name: str, batch: PackedBatch) -> dict[str, PackedRow]:
    # Numbers come from the batch: reading them from `starts` would synchronize with the device.
    tokens, starts, longest = batch.input_ids.shape[1], batch.starts, batch.longest
    if len(starts) == 1 or (name == VARLEN and batch.used_tokens < tokens):
        starts = F.pad(starts, (0, 1), value=tokens)
    if name == VARLEN:
        empty = starts.new_empty(0)
        return {"row": PackedRow(starts, longest, empty, empty)}
    within = torch.arange(longest, device=starts.device, dtype=starts.dtype)
    places = (starts[:-1, None] + within).clamp(max=tokens - 1)
    token = torch.arange(tokens, device=starts.device, dtype=starts.dtype)
    # Padding has no position in the batch: it gets the output of the first token, which nothing reads.
    sample = torch.searchsorted(starts[1:], token, right=True).clamp(max=len(starts) - 2)
    back = torch.where(token < starts[-1], sample * longest + token - starts[sample], 0)
    return {"row": PackedRow(starts, longest, places, back)}


def _varlen(query: Tensor, key: Tensor, value: Tensor, row: PackedRow, scale: float | None, dropout: float) -> Tensor:
    """Compute causal attention in one call of torch's kernel for variable lengths."""
    if dropout:
        raise ValueError("the kernel 'varlen' has no dropout of attention weights; leave attention_dropout at 0")
    # The rotary embedding leaves queries and keys in float32 if autocast keeps the residual stream so.
    q, k, v = (states.to(value.dtype) for states in (query, key, value))
    grouped: dict[str, Any] = {}
    if (groups := q.shape[1] // k.shape[1]) > 1:
        if "enable_gqa" in _VARLEN_OPTIONS:
            grouped["enable_gqa"] = True
        else:
            k, v = (states.repeat_interleave(groups, dim=1) for states in (k, v))
    lengths = (row.starts, row.starts, row.longest, row.longest)
    attended: Tensor = varlen_attn(q, k, v, *lengths, scale=scale, window_size=(-1, 0), **grouped)
    return attended


def _samples(query: Tensor, key: Tensor, value: Tensor, row: PackedRow, scale: float | None, dropout: float) -> Tensor:
    """Compute causal attention over the samples as a padded batch: what follows a sample is later than its tokens."""
    # (tokens, heads, width) -> (samples, longest, heads, width) -> (samples, heads, longest, width)
    q, k, v = (states[row.places].transpose(1, 2) for states in (query, key, value))
    grouped = q.shape[1] != k.shape[1]
    out = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True, scale=scale, enable_gqa=grouped)
    return out.transpose(1, 2).flatten(0, 1)[row.back]


def _attend(
    kernel: Callable[..., Tensor],
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    row: PackedRow | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Compute the attention (1, tokens, heads, width) by a kernel, or without a packed row by transformers' SDPA."""
    if row is None:
        options |= {"scaling": scaling, "dropout": dropout}
        attended: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return attended
    # (tokens, heads, width)
    return kernel(*(tensor[0].transpose(0, 1) for tensor in (query, key, value)), row, scaling, dropout)[None], None


def _mask(*, q_length: int, kv_length: int, attention_mask: Tensor | None = None, **options: Any) -> Tensor | None:
    """Return the mask of a batch that is not packed; None for a packed row."""
    if attention_mask is None and q_length == kv_length:
        return None
    mask: Tensor | None = sdpa_mask(q_length=q_length, kv_length=kv_length, attention_mask=attention_mask, **options)
    return mask
