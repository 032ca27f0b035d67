"""Prompts as the language model's embeddings, images read and encoded here: everything in front of the Llama."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from maira.generate.engine import FailedRequest, prompt_error
from maira.generate.features import ImageFeatures
from maira.model.checkpoint import PREFIXES
from maira.model.config import read_config
from maira.model.modeling import CheckpointWeights, MairaForConditionalGeneration
from maira.model.processor import MairaProcessor
from maira.model.task_examples import Example
from radfact.errors import InputError

_TOGETHER = 8
"""Requests whose images are encoded at the same time."""


class PromptEmbedder:
    """Encoder, adapter and token embeddings of a checkpoint, without the rest of its language model.

    Args:
        checkpoint: folder with the model and its processor, in any layout.

    Raises:
        InputError: the folder is no checkpoint of ours.
    """

    def __init__(self, checkpoint: Path) -> None:
        self.processor: Any = MairaProcessor.from_pretrained(checkpoint)
        config = read_config(checkpoint)
        weights = CheckpointWeights(checkpoint, config)
        self._model = _front(config)
        parts = (PREFIXES["own"]["encoder"], PREFIXES["own"]["adapter"])
        names = [name for name in weights.shapes if name.startswith(parts)]
        names.append(f"{PREFIXES['own']['language']}embed_tokens.weight")
        read = dict(weights.read(names, torch.float32))
        self._model.load_state_dict(read, assign=True, strict=False)
        self._device = torch.device("cpu")

    def to(self, device: str, dtype: torch.dtype) -> None:
        """Move everything to a device.

        Args:
            device: on a GPU, encoder and adapter run in bfloat16.
            dtype: of embeddings, which is that of the language model.
        """
        self._device = torch.device(device)
        for part in (self._model.vision_tower, self._model.multi_modal_projector):
            part.to(self._device, torch.float32 if device == "cpu" else torch.bfloat16)
        self._model.get_input_embeddings().to(self._device, dtype)

    def prompts(self, examples: Sequence[Example], longest: int) -> Iterator[Tensor | FailedRequest]:
        """Every example's prompt as embeddings (length, width) on the CPU, or why there is none.

        Args:
            examples: in the order in which they are wanted.
            longest: tokens that a prompt and at least one of its answer may have.
        """
        shown = [example.images for example in examples]
        with ImageFeatures(self._model.vision_tower, self.processor.image_processor, shown) as features:
            encoded: Mapping[Path, Tensor | InputError] = {}
            for place, example in enumerate(examples):
                if place % _TOGETHER == 0:
                    encoded = self._encode(features, place)
                yield self._prompt(example, [encoded[image] for image in example.images], longest)

    def _prompt(self, example: Example, encoded: Sequence[Tensor | InputError], longest: int) -> Tensor | FailedRequest:
        ids = self.processor.encode_prompt(example.prompt, len(encoded))
        if fault := prompt_error(len(ids), longest):
            return fault
        images: list[Tensor] = []
        for image in encoded:
            if isinstance(image, InputError):
                return FailedRequest(str(image))
            images.append(image)
        return self._embed(ids, images)

    @torch.inference_mode()
    def _encode(self, features: ImageFeatures, place: int) -> Mapping[Path, Tensor | InputError]:
        return features.encode(place, place + _TOGETHER)

    @torch.inference_mode()
    def _embed(self, ids: Sequence[int], images: Sequence[Tensor]) -> Tensor:
        """A prompt's embeddings (length, width) of its token ids and its images' patch tokens (patches, width)."""
        tokens: Tensor | None = None
        if images:
            weight = next(self._model.multi_modal_projector.parameters())
            tokens = self._model.project(torch.stack([*images]).to(weight))
        embeddings: Tensor = self._model.embed(torch.tensor([ids], device=self._device), tokens)[0]
        return embeddings.cpu()


def _front(config: Any) -> Any:
    """The model without the layers of its language model, and without memory for its weights."""
    config = copy.deepcopy(config)
    config.text_config.num_hidden_layers = 0
    with torch.device("meta"):
        return MairaForConditionalGeneration(config).eval()
