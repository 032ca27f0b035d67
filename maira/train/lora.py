"""Low-rank adapters (LoRA, Hu et al. 2021), optionally over weights in 4 bits (QLoRA), and trained rows of tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from maira.model.config import MairaConfig
from maira.model.tokens import ADDED_TOKENS, IMAGE, added_ids
from maira.train.config.run_config import LoraOptions, MairaLoraOptions
from radfact.errors import InputError

_LOW_RANK = re.compile(r"(?P<layer>.+)\.lora_(?P<half>[AB])\.default\.weight")
_ROWS = re.compile(r"(?P<layer>.+)\.token_adapter\.trainable_tokens_delta\.default")
_WRAPPED = re.compile(r"(\.token_adapter)?\.base_layer(?=\.)")
_MISPLACED = f"the tokens from {ADDED_TOKENS[0]} to {ADDED_TOKENS[-1]} do not stand in order before {IMAGE}"
_REMEDY = "add them so, as maira assemble does, or set it to false"


def add(model: Any, lora: LoraOptions, dtype: torch.dtype, rows: Sequence[int] = ()) -> None:
    """Add adapters to a language model in place, and freeze its other weights except rows of tokens."""
    # Imported here, since peft imports all quantization libraries, and most runs have no adapters.
    from peft import inject_adapter_in_model
    from peft.tuners.lora import LoraLayer

    blocks = getattr(model.base_model, "language_model", model.base_model)
    names = {name.rpartition(".")[2] for name, part in blocks.named_modules() if isinstance(part, nn.Linear)}
    if unknown := [target for target in lora.targets if target not in names]:
        raise InputError(f"no layer '{unknown[0]}'; there are {', '.join(sorted(names))}", field="lora.targets")
    if lora.quantize is not None:
        _quantize(blocks)
    inject_adapter_in_model(_peft_config(lora, rows), model)
    for part in model.modules():
        if isinstance(part, LoraLayer):
            # Autocast and FSDP convert types; a copy of every input in the type of the adapters is not needed.
            part.cast_input_dtype_enabled = False
    for name, parameter in model.named_parameters():
        if is_adapter(name):
            parameter.data = parameter.data.to(dtype)


def added_rows(lora: MairaLoraOptions, model_config: MairaConfig) -> range:
    """Return the tokens of a MAIRA-2 whose rows are trained in addition to the adapters."""
    ids = added_ids(model_config.image_token_index)
    if not lora.added_tokens:
        return ids[:0]
    if ids.start < 0:
        raise InputError(f"{_MISPLACED}; {_REMEDY}", field="lora.added_tokens")
    return ids


def check_tokens(tokenizer: Any, model_config: MairaConfig, file: Path) -> None:
    """Check that a checkpoint's tokens are at the rows that are trained."""
    if list(added_ids(model_config.image_token_index)) != tokenizer.convert_tokens_to_ids(list(ADDED_TOKENS)):
        raise InputError(f"{_MISPLACED} in {file}; {_REMEDY}", field="lora.added_tokens")


def plain_name(name: str) -> str:
    """Return the name of a weight without peft's wrappers."""
    return _WRAPPED.sub("", name)


def is_adapter(name: str) -> bool:
    """Return whether a weight belongs to an adapter or a trained row, which `merged` adds to the base weights."""
    return bool(_LOW_RANK.fullmatch(name) or _ROWS.fullmatch(name))


def merged(
    weights: Iterable[tuple[str, Tensor]], trained: Mapping[str, Tensor], lora: LoraOptions, rows: Sequence[int] = ()
) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of a checkpoint with merged adapters and trained rows, in the type of the weights."""
    halves = low_rank(trained)
    # Rows of the added tokens (tokens, width), of embeddings and head.
    fresh = {match["layer"]: tensor for name, tensor in trained.items() if (match := _ROWS.fullmatch(name))}
    for name, weight in weights:
        layer = name.removesuffix(".weight")
        if layer in fresh:
            weight = weight.clone()
            weight[list(rows)] = fresh[layer].to(weight.dtype)
        if (pair := halves.get(layer)) is not None:
            product = pair["B"].float() @ pair["A"].float()
            weight = (weight.float() + product * (lora.alpha / lora.rank)).to(weight.dtype)
        yield name, weight


def low_rank(trained: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Return the factors A (rank, inputs) and B (outputs, rank) of each adapted layer by name."""
    halves: dict[str, dict[str, Tensor]] = {}
    for name, tensor in trained.items():
        if match := _LOW_RANK.fullmatch(name):
            halves.setdefault(match["layer"], {})[match["half"]] = tensor
    return halves


def save_adapter(trained: Mapping[str, Tensor], lora: LoraOptions, folder: Path, rows: Sequence[int] = ()) -> None:
    """Write adapters and rows in peft's format for the model (`PeftModel.from_pretrained`)."""
    folder.mkdir(parents=True, exist_ok=True)
    # peft's names lack the adapter's.
    own = {name.replace(".default", ""): tensor for name, tensor in trained.items() if is_adapter(name)}
    tensors = {f"base_model.model.{name}": tensor.contiguous() for name, tensor in own.items()}
    settings = _peft_config(lora, rows)
    settings.inference_mode = True
    settings.save_pretrained(str(folder))
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def _peft_config(lora: LoraOptions, rows: Sequence[int]) -> Any:
    from peft import LoraConfig

    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=list(lora.targets),
        trainable_token_indices={"embed_tokens": list(rows), "lm_head": list(rows)} if rows else None,
        bias="none",
        task_type="CAUSAL_LM",
    )


def _quantize(blocks: nn.Module) -> None:
    """Replace the linear layers of the blocks by layers in 4 bits (NF4, Dettmers et al. 2023)."""
    from bitsandbytes.nn import Linear4bit, Params4bit

    for parent in list(blocks.modules()):
        for name, layer in list(parent.named_children()):
            if not isinstance(layer, nn.Linear):
                continue
            has_bias = layer.bias is not None
            with torch.device("meta"):
                small = Linear4bit(layer.in_features, layer.out_features, bias=has_bias, quant_type="nf4")
            small.weight = Params4bit(layer.weight.data, requires_grad=False, quant_type="nf4", module=small)
            small.bias = layer.bias
            # On some CPUs a layer in evaluation mode would repack its weights, after which it passes no gradient.
            small.support_avx512bf16_for_cpu = False
            setattr(parent, name, small)
