"""Low-rank adapters in the language model's blocks (LoRA, Hu et al. 2021), over weights in 4 bits if wanted (QLoRA)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from maira.train.recipe import Lora
from radfact.errors import InputError

_LOW_RANK = re.compile(r"(?P<layer>.+)\.lora_(?P<half>[AB])\.default\.weight")
_WHERE = "language_model."


def add(language_model: Any, lora: Lora, dtype: torch.dtype) -> None:
    """Put adapters into a language model, in place; its other weights are frozen.

    Weights in 4 bits are quantised when the model is moved to its device.

    Args:
        language_model: a causal one of transformers.
        lora: which, and where.
        dtype: of the adapters.

    Raises:
        InputError: no layer has the name of a target, or bitsandbytes is not installed.
    """
    # Here, since it brings all that it might quantise with, and most runs have no adapters.
    from peft import inject_adapter_in_model
    from peft.tuners.lora import LoraLayer

    names = {name.rpartition(".")[2] for name, part in language_model.base_model.named_modules() if _is_linear(part)}
    if unknown := [target for target in lora.targets if target not in names]:
        raise InputError(f"no layer '{unknown[0]}'; there are {', '.join(sorted(names))}", field="lora.targets")
    if lora.quantize is not None:
        _quantize(language_model.base_model)
    inject_adapter_in_model(_peft_config(lora), language_model)
    for part in language_model.modules():
        if isinstance(part, LoraLayer):
            # Autocast and FSDP see to the types; a copy of every input in the adapters' would be for nothing.
            part.cast_input_dtype_enabled = False
    for name, parameter in language_model.named_parameters():
        if _LOW_RANK.fullmatch(name):
            parameter.data = parameter.data.to(dtype)


def merged(weights: Iterable[tuple[str, Tensor]], trained: Mapping[str, Tensor], lora: Lora) -> Iterator[Any]:
    """Weights of a checkpoint with the adapters' products added to theirs, in their own type.

    Args:
        weights: names and tensors as the checkpoint has them, not quantised.
        trained: weights of the model that was trained, by its names; those of adapters count.
        lora: that the model was trained with.
    """
    halves = low_rank(trained)
    for name, weight in weights:
        pair = halves.get(name.removesuffix(".weight"))
        if pair is not None:
            product = pair["B"].float() @ pair["A"].float()
            weight = (weight.float() + product * (lora.alpha / lora.rank)).to(weight.dtype)
        yield name, weight


def low_rank(trained: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The two factors A (rank, inputs) and B (outputs, rank) of each adapted layer, by the layer's name."""
    halves: dict[str, dict[str, Tensor]] = {}
    for name, tensor in trained.items():
        if found := _LOW_RANK.fullmatch(name):
            halves.setdefault(found["layer"], {})[found["half"]] = tensor
    return halves


def save_adapter(trained: Mapping[str, Tensor], lora: Lora, folder: Path) -> None:
    """Write the adapters alone in peft's format, for the language model by itself (`PeftModel.from_pretrained`).

    Args:
        trained: weights of the model that was trained, by its names; those of adapters count.
        lora: that the model was trained with.
        folder: to write to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"base_model.model.{layer.removeprefix(_WHERE)}.lora_{half}.weight": tensor.contiguous()
        for layer, pair in low_rank(trained).items()
        for half, tensor in pair.items()
    }
    config = _peft_config(lora)
    config.inference_mode = True
    config.save_pretrained(str(folder))
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def _peft_config(lora: Lora) -> Any:
    from peft import LoraConfig

    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=list(lora.targets),
        bias="none",
        task_type="CAUSAL_LM",
    )


def _is_linear(part: nn.Module) -> bool:
    return isinstance(part, nn.Linear)


def _quantize(blocks: nn.Module) -> None:
    """Replace the linear layers of the blocks by layers in 4 bits (NF4, Dettmers et al. 2023)."""
    try:
        from bitsandbytes.nn import Linear4bit, Params4bit
    except ImportError:
        raise InputError(
            "nf4 needs bitsandbytes, which is not installed: pip install 'maira-radfact[qlora]'", field="lora.quantize"
        ) from None
    for parent in list(blocks.modules()):
        for name, layer in list(parent.named_children()):
            if not _is_linear(layer):
                continue
            with torch.device("meta"):
                small = Linear4bit(
                    layer.in_features,
                    layer.out_features,
                    bias=layer.bias is not None,
                    quant_type="nf4",
                )
            small.weight = Params4bit(layer.weight.data, requires_grad=False, quant_type="nf4", module=small)
            small.bias = layer.bias
            setattr(parent, name, small)
