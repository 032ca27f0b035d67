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
    """Embeds prompts by encoder, adapter and token embeddings of a model in evaluation mode, on its device.

    `dtype` is the type of the embeddings, that of the language model; `autocast` is to bfloat16.
    """

    def __init__(
        self,
        model: Any,
        processor: Any,
        image_check: ImageCheck = "off",
        dtype: torch.dtype = torch.float32,
        *,
        autocast: bool = False,
    ) -> None:
        self._model, self.processor, self._image_check = model, processor, image_check
        self._dtype, self._autocast = dtype, autocast

    @classmethod
    def from_checkpoint(cls, checkpoint: Path, image_check: ImageCheck = "off") -> PromptEmbedder:
        """Load what embeds the prompts of a checkpoint, without the rest of its language model."""
        processor = MairaProcessor.from_pretrained(checkpoint)
        config = read_config(checkpoint)
        weights = CheckpointWeights(checkpoint, config)
        without_layers = copy.deepcopy(config)
        without_layers.text_config.num_hidden_layers = 0
        with torch.device("meta"):
            model: Any = MairaForConditionalGeneration(without_layers).eval()
        prefixes = (*MODULES["encoder"], *MODULES["adapter"], "model.language_model.embed_tokens.")
        names = [name for name in weights.shapes if name.startswith(prefixes)]
        model.load_state_dict(dict(weights.read(names, torch.float32)), assign=True, strict=False)
        return cls(model, processor, image_check)

    def to(self, device: str, dtype: torch.dtype) -> None:
        """Move the model to a device, where encoder and adapter run in bfloat16 if it is a GPU."""
        self._dtype = dtype
        for module in (self._model.model.vision_tower, self._model.model.multi_modal_projector):
            module.to(device, torch.float32 if device == "cpu" else torch.bfloat16)
        self._model.get_input_embeddings().to(device, dtype)

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
        with torch.inference_mode(), torch.autocast(self._model.device.type, torch.bfloat16, enabled=self._autocast):
            yield

    def _encode_patches(self, pixels: Tensor) -> Tensor:
        with self._inference():
            patches: Tensor = self._model.encode_patches(pixels.to(self._model.device))
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
            image_tokens = self._model.project(torch.stack(patches).to(self._model.device)) if patches else None
            embeddings: Tensor = self._model.embed(torch.tensor([ids], device=self._model.device), image_tokens)[0]
            return fitting, embeddings.to("cpu", self._dtype)
