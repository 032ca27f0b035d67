"""Prompts as embeddings of the language model, for an engine that runs the language model alone."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from maira.data.image_check import ImageCheck
from maira.generate.engine import FailedRequest, GenerationRequest, fit_window
from maira.generate.features import ImageFeatures
from maira.model.config import read_config
from maira.model.modeling import MODULES, CheckpointWeights, MairaForConditionalGeneration
from maira.model.processor import MairaProcessor
from radfact.errors import InputError

_BATCH_SIZE = 8
"""Requests whose images are encoded together."""


class PromptEmbedder:
    """Encoder, adapter and token embeddings of a checkpoint, without the rest of its language model."""

    def __init__(self, checkpoint: Path, image_check: ImageCheck = "off") -> None:
        self._image_check = image_check
        self.processor: Any = MairaProcessor.from_pretrained(checkpoint)
        config = read_config(checkpoint)
        weights = CheckpointWeights(checkpoint, config)
        self._model = _model_without_layers(config)
        prefixes = (*MODULES["encoder"], *MODULES["adapter"], "model.language_model.embed_tokens.")
        names = [name for name in weights.shapes if name.startswith(prefixes)]
        self._model.load_state_dict(dict(weights.read(names, torch.float32)), assign=True, strict=False)
        self._device, self._dtype, self._autocast = torch.device("cpu"), torch.float32, False

    @classmethod
    def from_model(
        cls,
        model: MairaForConditionalGeneration,
        processor: Any,
        image_check: ImageCheck,
        dtype: torch.dtype,
        *,
        autocast: bool = False,
    ) -> PromptEmbedder:
        """Create an embedder of a model in memory and in evaluation mode, on its device; `autocast` is to bfloat16."""
        embedder = cls.__new__(cls)
        embedder._image_check, embedder.processor, embedder._model = image_check, processor, model
        embedder._device, embedder._dtype, embedder._autocast = model.device, dtype, autocast
        return embedder

    def to(self, device: str, dtype: torch.dtype) -> None:
        """Move the model to a device, where encoder and adapter run in bfloat16 if it is a GPU.

        `dtype` is the type of the embeddings, that of the language model.
        """
        self._device, self._dtype = torch.device(device), dtype
        for module in (self._model.model.vision_tower, self._model.model.multi_modal_projector):
            module.to(self._device, torch.float32 if device == "cpu" else torch.bfloat16)
        self._model.get_input_embeddings().to(self._device, dtype)

    def embed(
        self, requests: Sequence[GenerationRequest], window: int
    ) -> Iterator[tuple[GenerationRequest, Tensor] | FailedRequest]:
        """Yield each request and its prompt as embeddings (length, width) on the CPU, or the reason for a failure.

        The limit of new tokens is what the prompt leaves of `window` tokens.
        """
        images = [request.example.images for request in requests]
        with ImageFeatures(
            self._encode_patches, self.processor.image_processor, images, image_check=self._image_check
        ) as features:
            patches: Mapping[Path, Tensor | InputError] = {}
            for index, request in enumerate(requests):
                if index % _BATCH_SIZE == 0:
                    patches = features.encode(index, index + _BATCH_SIZE)
                yield self._embed_prompt(request, [patches[image] for image in images[index]], window)

    @contextmanager
    def _inference(self) -> Iterator[None]:
        """Context of a forward pass; entered for each one, since inference mode and autocast are per thread."""
        with torch.inference_mode(), torch.autocast(self._device.type, torch.bfloat16, enabled=self._autocast):
            yield

    def _encode_patches(self, pixels: Tensor) -> Tensor:
        with self._inference():
            patches: Tensor = self._model.encode_patches(pixels.to(self._device))
        return patches

    def _embed_prompt(
        self, request: GenerationRequest, encoded: Sequence[Tensor | InputError], window: int
    ) -> tuple[GenerationRequest, Tensor] | FailedRequest:
        ids = self.processor.encode_example(request.example)
        fitting = fit_window(request, len(ids), window)
        if isinstance(fitting, FailedRequest):
            return fitting
        patches: list[Tensor] = []
        for image in encoded:
            if isinstance(image, InputError):
                return FailedRequest(str(image))
            patches.append(image)
        with self._inference():
            image_tokens = self._model.project(torch.stack(patches).to(self._device)) if patches else None
            embeddings: Tensor = self._model.embed(torch.tensor([ids], device=self._device), image_tokens)[0]
            return fitting, embeddings.to("cpu", self._dtype)


def _model_without_layers(config: Any) -> Any:
    """Make the model without layers of its language model, and without memory for its weights."""
    config = copy.deepcopy(config)
    config.text_config.num_hidden_layers = 0
    with torch.device("meta"):
        return MairaForConditionalGeneration(config).eval()
