"""The parts of a checkpoint for vLLM: a folder with its language model as a plain Llama, and prompts as embeddings."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import save_file
from torch import Tensor
from transformers import GenerationConfig, PretrainedConfig
from transformers.utils import GENERATION_CONFIG_NAME

from maira.data.image_check import ImageCheck
from maira.generate.engine import FailedRequest, GenerationRequest
from maira.generate.features import ImageFeatures
from maira.model.checkpoint import INDEX, check_json, checkpoint_folder, fingerprint, read_headers
from maira.model.config import read_config
from maira.model.grammar import end_ids
from maira.model.modeling import MODULES, CheckpointWeights, MairaForConditionalGeneration
from maira.model.processor import MairaProcessor
from radfact.cache_folders import user_cache
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import read_json, write_json
from radfact.io.outputs import Output, lock_output

_ORIGIN = "maira.json"
"""File of an export with the fingerprint of its checkpoint and its type."""
_SHARD_SIZE = "2GB"
"""Size of a file, which is in memory while it is written."""
_BATCH_SIZE = 8
"""Requests whose images are encoded together."""


def export_plain_llama(checkpoint: Path, dtype: torch.dtype, folder: Path | None = None) -> Path:
    """Return a folder with the language model as a plain Llama, in the user's cache by default, made if needed."""
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
    meta = {plain: torch.empty(weights.shapes[name], dtype=dtype, device="meta") for plain, name in names.items()}
    shards = split_torch_state_dict_into_shards(meta, max_shard_size=_SHARD_SIZE)
    check_json(checkpoint, GENERATION_CONFIG_NAME)
    if (checkpoint / GENERATION_CONFIG_NAME).is_file():
        ends = GenerationConfig.from_pretrained(checkpoint).eos_token_id
    else:
        ends = GenerationConfig.from_model_config(config).eos_token_id
    with checkpoint_folder(folder) as made:
        for file, members in shards.filename_to_tensors.items():
            read = weights.read((names[plain] for plain in members), dtype)
            save_file({plain_llama_name(name): tensor for name, tensor in read}, made / file, metadata={"format": "pt"})
        if shards.is_sharded:
            write_json(made / INDEX, {"metadata": shards.metadata, "weight_map": shards.tensor_to_filename})
        tokenizer = MairaProcessor.from_pretrained(checkpoint).tokenizer
        write_settings(made, config.text_config, tokenizer, ends, dtype)
        write_json(made / _ORIGIN, origin)


def write_settings(folder: Path, text_config: PretrainedConfig, tokenizer: Any, ends: Any, dtype: torch.dtype) -> None:
    """Write configuration, tokenizer and generation config, with its end tokens, of a plain Llama folder."""
    text = copy.deepcopy(text_config)
    text.architectures, text.dtype = ["LlamaForCausalLM"], dtype
    text.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=sorted(end_ids(tokenizer, ends)),
    ).save_pretrained(folder)


def plain_llama_name(name: str) -> str:
    """Return the name in a Llama of a parameter of the model's language model."""
    return name.replace("model.language_model.", "model.", 1)


@dataclass
class PromptEmbedder:
    """Embeds prompts by a model in evaluation mode, on its device; `dtype` is that of the language model."""

    model: Any
    processor: Any
    image_check: ImageCheck = "off"
    dtype: torch.dtype = torch.float32
    autocast: bool = False

    @classmethod
    def from_checkpoint(cls, checkpoint: Path, image_check: ImageCheck = "off") -> PromptEmbedder:
        """Load what embeds the prompts of a checkpoint, without the rest of its language model."""
        processor = MairaProcessor.from_pretrained(checkpoint)
        config = read_config(checkpoint)
        weights = CheckpointWeights(checkpoint, config)
        config.text_config.num_hidden_layers = 0
        with torch.device("meta"):
            model: Any = MairaForConditionalGeneration(config).eval()
        prefixes = (*MODULES["encoder"], *MODULES["adapter"], "model.language_model.embed_tokens.")
        names = [name for name in weights.shapes if name.startswith(prefixes)]
        model.load_state_dict(dict(weights.read(names, torch.float32)), assign=True, strict=False)
        return cls(model, processor, image_check)

    def to(self, device: str, dtype: torch.dtype) -> None:
        """Move the model to a device, where encoder and adapter run in bfloat16 if it is a GPU."""
        self.dtype = dtype
        for module in (self.model.model.vision_tower, self.model.model.multi_modal_projector):
            module.to(device, torch.float32 if device == "cpu" else torch.bfloat16)
        self.model.get_input_embeddings().to(device, dtype)

    def embed(
        self, requests: Sequence[GenerationRequest], window: int
    ) -> Iterator[tuple[GenerationRequest, Tensor] | FailedRequest]:
        """Yield each request, limited to what its prompt leaves of the window, and its embeddings (length, width)."""
        images = [request.example.images for request in requests]
        prepare = self.processor.image_processor
        with ImageFeatures(self._encode_patches, prepare, images, self.image_check) as features:
            for start in range(0, len(requests), _BATCH_SIZE):
                stop = start + _BATCH_SIZE
                yield from self._embed_batch(requests[start:stop], features.encode(start, stop), window)

    @contextmanager
    def _inference(self) -> Iterator[None]:
        """Context of a forward pass; entered for each one, since inference mode and autocast are per thread."""
        with torch.inference_mode(), torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.autocast):
            yield

    def _encode_patches(self, pixels: Tensor) -> Tensor:
        with self._inference():
            patches: Tensor = self.model.encode_patches(pixels.to(self.model.device))
        return patches

    def _embed_batch(
        self, requests: Sequence[GenerationRequest], patches: Mapping[Path, Tensor | InputError], window: int
    ) -> list[tuple[GenerationRequest, Tensor] | FailedRequest]:
        """Embed the prompts of requests as one row."""
        fitting: list[GenerationRequest | FailedRequest] = []
        prompts: list[Sequence[int]] = []
        images: list[Tensor] = []
        for request in requests:
            ids = self.processor.encode_example(request.example)
            read: list[Any] = [patches[image] for image in request.example.images]
            fitted = request.fit_window(len(ids), window)
            errors = [FailedRequest(str(image)) for image in read if isinstance(image, InputError)]
            if isinstance(fitted, GenerationRequest) and not errors:
                prompts.append(ids)
                images += read
            fitting.append(next((one for one in (fitted, *errors) if isinstance(one, FailedRequest)), fitted))
        device = self.model.device
        with self._inference():
            shown = [image.to(device) for image in images]  # those of an earlier batch have left the device
            image_tokens = self.model.project(torch.stack(shown)) if shown else None
            tokens = torch.tensor([[*chain(*prompts)]], dtype=torch.long, device=device)
            row: Tensor = self.model.embed(tokens, image_tokens)[0].to(self.dtype)
            embedded = iter([part.to("cpu", non_blocking=True) for part in row.split_with_sizes([*map(len, prompts)])])
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return [one if isinstance(one, FailedRequest) else (one, next(embedded)) for one in fitting]
