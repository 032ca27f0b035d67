"""Export of a checkpoint's language model as a plain Llama folder, for engines without images."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import save_file
from torch import Tensor
from transformers import GenerationConfig, PretrainedConfig
from transformers.utils import GENERATION_CONFIG_NAME

from maira.model.checkpoint import INDEX, check_json, checkpoint_folder, fingerprint, read_headers
from maira.model.config import read_config
from maira.model.modeling import MODULES, CheckpointWeights
from maira.model.processor import MairaProcessor
from radfact.cache_folders import user_cache
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import read_json, write_json
from radfact.io.outputs import Output, lock_output

_ORIGIN = "maira.json"
"""File of an export with the fingerprint of its checkpoint and its type."""
_SHARD_SIZE = "2GB"
"""Size of a file, which is in memory while it is written."""


def export_plain_llama(checkpoint: Path, dtype: torch.dtype, folder: Path | None = None) -> Path:
    """Return a folder with the checkpoint's language model as Hugging Face's Llama, exported unless it exists.

    It holds configuration, sharded weights, tokenizer and generation settings, and is renamed into place when complete.
    Processes that need the same export wait for the first. Without `folder`, it is `maira/NAME@FINGERPRINT-DTYPE` in
    the user's cache (XDG_CACHE_HOME, or `~/.cache`).
    """
    origin = {"checkpoint": fingerprint(checkpoint), "dtype": str(dtype).removeprefix("torch.")}
    if folder is None:
        folder = user_cache() / "maira" / f"{checkpoint.resolve().name}@{origin['checkpoint']}-{origin['dtype']}"
    with lock_output(folder, Output("new folder", resumes=True, is_private=False), waits=True):
        if folder.is_dir() and any(folder.iterdir()):
            _check(folder, origin)
        else:
            _export(checkpoint, dtype, folder, origin)
    return folder


def _check(folder: Path, origin: dict[str, str]) -> None:
    """Raise an InputError unless the folder is a complete export of this origin."""
    marker = folder / _ORIGIN
    if not marker.is_file() or read_json(marker) != origin:
        message = f"is not the language model of this checkpoint in {origin['dtype']}; choose another or remove it"
        raise InputError(message, code=ErrorCode.OUTPUT_CONFLICT, file=folder)
    index = folder / INDEX
    expected = read_json(index)["weight_map"].keys() if index.is_file() else set()
    if not expected <= {tensor.name for tensor in read_headers(folder)}:
        message = "lacks weights that its index names; remove it to export it again"
        raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=folder)


def _export(checkpoint: Path, dtype: torch.dtype, folder: Path, origin: dict[str, str]) -> None:
    config = read_config(checkpoint)
    weights = CheckpointWeights(checkpoint, config)
    names = {plain_llama_name(name): name for name in weights.shapes if name.startswith(MODULES["language_model"])}

    def read(plain: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in weights.read((names[other] for other in plain), dtype):
            yield plain_llama_name(name), tensor

    with checkpoint_folder(folder) as made:
        write_weights(made, {plain: weights.shapes[name] for plain, name in names.items()}, read, dtype)
        tokenizer = MairaProcessor.from_pretrained(checkpoint).tokenizer
        write_settings(made, config.text_config, tokenizer, _ends(checkpoint, tokenizer), dtype)
        write_json(made / _ORIGIN, origin)


def write_weights(
    folder: Path,
    shapes: Mapping[str, Sequence[int]],
    read: Callable[[Sequence[str]], Iterable[tuple[str, Tensor]]],
    dtype: torch.dtype,
) -> None:
    """Write the weights of a plain Llama folder, file by file; files of the same names are replaced.

    `shapes` has the shapes of all weights by their names in Llama, and `read` yields names and weights for names.
    """
    meta = {name: torch.empty(shape, dtype=dtype, device="meta") for name, shape in shapes.items()}
    shards = split_torch_state_dict_into_shards(meta, max_shard_size=_SHARD_SIZE)
    for file, members in shards.filename_to_tensors.items():
        tensors = {name: tensor.to("cpu", dtype).contiguous() for name, tensor in read(members)}
        (folder / file).unlink(missing_ok=True)  # vLLM may still have the old file mapped
        save_file(tensors, folder / file, metadata={"format": "pt"})
    if shards.is_sharded:
        write_json(folder / INDEX, {"metadata": shards.metadata, "weight_map": shards.tensor_to_filename})


def write_settings(
    folder: Path, text_config: PretrainedConfig, tokenizer: Any, ends: Iterable[int], dtype: torch.dtype
) -> None:
    """Write configuration, tokenizer and generation config of a plain Llama folder with weights of a type.

    `ends` are the tokens that end a response.
    """
    text = copy.deepcopy(text_config)
    text.architectures, text.dtype = ["LlamaForCausalLM"], dtype
    text.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=sorted(ends),
    ).save_pretrained(folder)


def plain_llama_name(name: str) -> str:
    """Return the name in a Llama of a parameter of the model's language model."""
    return name.replace("model.language_model.", "model.", 1)


def _ends(checkpoint: Path, tokenizer: Any) -> set[int]:
    """Return all tokens that end the responses of a checkpoint."""
    check_json(checkpoint, GENERATION_CONFIG_NAME)
    if (checkpoint / GENERATION_CONFIG_NAME).is_file():
        config = GenerationConfig.from_pretrained(checkpoint)
    else:
        config = GenerationConfig.from_model_config(read_config(checkpoint))
    ends = config.eos_token_id or []
    return {tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])}
