"""Attention within the samples of a packed row, as kernels that transformers' models can be told to use.

A row holds samples one behind the other, and no token may see one of another sample. Neither kernel makes a mask of
the row's length squared: `varlen` is told where samples begin, `samples` puts them side by side.
"""

from __future__ import annotations

import inspect
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
from radfact.errors import InputError

_PLACE = "torch.nn.attention.varlen"
varlen_attn: Any = import_module(_PLACE).varlen_attn if find_spec(_PLACE) else None
_VARLEN_OPTIONS = frozenset(inspect.signature(varlen_attn).parameters if varlen_attn else ())
"""What the kernel for sequences of any length understands: torch 2.11 has windows, and no shared heads yet."""
VARLEN, SAMPLES = "maira_varlen", "maira_samples"
"""Names under which transformers knows the kernels."""


class Row(NamedTuple):
    """Where the samples of a packed row are; reaches the kernels as the language model's argument `row`.

    Attributes:
        starts: (samples + 1,) int32, the first token of each sample, and the end of the row; padding is a sample.
        longest: tokens of the longest sample.
        places: (samples, longest), the token of each place where samples lie side by side, padding left out; what
            lies behind a sample's end is any token. Empty for `varlen`.
        back: (tokens,), the place of each token, counted through `places`; empty for `varlen`.
    """

    starts: Tensor
    longest: int
    places: Tensor
    back: Tensor


def register() -> None:
    """Make the kernels known to transformers."""
    for name, kernel in ((VARLEN, _varlen), (SAMPLES, _samples)):
        AttentionInterface.register(name, kernel)
        AttentionMaskInterface.register(name, _mask)


def choose(wanted: Literal["auto", "varlen", "samples"], device: torch.device, dtype: torch.dtype) -> str:
    """The name of the kernel to use.

    Args:
        wanted: as in a recipe; "auto" takes `varlen` where it runs.
        device, dtype: of the computation.

    Raises:
        InputError: `varlen` is wanted and does not run here.
    """
    missing = _missing_for_varlen(device, dtype)
    if wanted == "varlen" and missing:
        raise InputError(f"varlen needs {missing}; 'auto' takes what runs", field="attention")
    return SAMPLES if wanted == "samples" or missing else VARLEN


def use(model: MairaForConditionalGeneration, name: str) -> None:
    """Let a MAIRA's language model use a kernel; without a `row` (as in generation) it is transformers' own SDPA."""
    register()
    model.language_model.set_attn_implementation(name)


def packed(name: str, batch: PackedBatch) -> dict[str, Row]:
    """The keyword arguments with which the language model reads a packed row.

    Args:
        name: of the kernel.
        batch: the row.
    """
    tokens, starts = batch.input_ids.shape[1], batch.starts
    end = int(starts[-1])
    if len(starts) == 1 or (name == VARLEN and end < tokens):
        starts = F.pad(starts, (0, 1), value=tokens)
    if name == VARLEN:
        nowhere = starts.new_empty(0)
        return {"row": Row(starts, max(batch.longest, tokens - end), nowhere, nowhere)}
    longest = int(starts.diff().max())
    within = torch.arange(longest, device=starts.device, dtype=starts.dtype)
    places = (starts[:-1, None] + within).clamp(max=tokens - 1)
    token = torch.arange(tokens, device=starts.device, dtype=starts.dtype)
    # Padding has no place of its own: it reads the first one's outcome, and nothing reads what becomes of it.
    sample = torch.searchsorted(starts[1:], token, right=True).clamp(max=len(starts) - 2)
    back = torch.where(token < starts[-1], sample * longest + token - starts[sample], 0)
    return {"row": Row(starts, longest, places, back)}


def _missing_for_varlen(device: torch.device, dtype: torch.dtype) -> str | None:
    """What is missing for the kernel for samples of any length, in words; None if nothing is."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0):
        return "a GPU with FlashAttention (Ampere or later)"
    if dtype not in (torch.bfloat16, torch.float16):
        return "precision bf16"
    return None if "window_size" in _VARLEN_OPTIONS else "torch 2.11 or later"


def _varlen(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    row: Row | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Causal attention in one call of torch's kernel for sequences of any length, each as long as it is.

    Args:
        module: the attention layer.
        query: (1, heads, tokens, width).
        key, value: (1, key heads, tokens, width).
        attention_mask: of a batch that is not packed.
        scaling: of the scores.
        dropout: of the attention weights, which the kernel does not have.
        row: of a batch that is packed.

    Raises:
        ValueError: dropout is asked for.
    """
    if row is None:
        return _unpacked(module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **options)
    if dropout:
        raise ValueError("the kernel 'varlen' has no dropout of attention weights; leave attention_dropout at 0")
    # Rotation leaves queries and keys in float32 where autocast keeps the residual stream so.
    q, k, v = (states[0].transpose(0, 1).to(value.dtype) for states in (query, key, value))
    grouped: dict[str, Any] = {}
    if (groups := q.shape[1] // k.shape[1]) > 1:
        if "enable_gqa" in _VARLEN_OPTIONS:
            grouped["enable_gqa"] = True
        else:
            k, v = (states.repeat_interleave(groups, dim=1) for states in (k, v))
    out = varlen_attn(
        q, k, v, row.starts, row.starts, row.longest, row.longest, scale=scaling, window_size=(-1, 0), **grouped
    )
    return out[None], None


def _samples(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    row: Row | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Causal attention over samples laid side by side; arguments as for `_varlen`.

    What lies behind a sample's end is later than all of it, so causality alone keeps it out of sight.
    """
    if row is None:
        return _unpacked(module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **options)
    # (tokens, heads, width) -> (samples, longest, heads, width) -> (samples, heads, longest, width)
    q, k, v = (states[0].transpose(0, 1)[row.places].transpose(1, 2) for states in (query, key, value))
    grouped = q.shape[1] != k.shape[1]
    out = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True, scale=scaling, enable_gqa=grouped)
    return out.transpose(1, 2).flatten(0, 1)[row.back][None], None


def _unpacked(*states: Any, **options: Any) -> tuple[Tensor, None]:
    """Attention of a batch that is not packed, such as generation's."""
    attended: tuple[Tensor, None] = sdpa_attention_forward(*states, **options)
    return attended


def _mask(*, q_length: int, kv_length: int, attention_mask: Tensor | None = None, **options: Any) -> Tensor | None:
    """The mask of a batch that is not packed; none for a row, whose mask would have its length squared."""
    if attention_mask is None and q_length == kv_length:
        return None
    mask: Tensor | None = sdpa_mask(q_length=q_length, kv_length=kv_length, attention_mask=attention_mask, **options)
    return mask
