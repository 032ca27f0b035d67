"""Prompts as the language model's embeddings, images read and encoded here: everything in front of the Llama."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from maira.checkpoint import PREFIXES
from maira.convert import read_config
from maira.examples import Example
from maira.model import MairaForConditionalGeneration
from maira.processor import MairaProcessor
from maira.weights import Weights

_CACHE_BYTES = 1 << 30
"""Of encoded images; one of the 7B model takes 11 MB in half precision."""


class PromptEmbedder:
    """Encoder, adapter and token embeddings of a checkpoint, without the rest of its language model.

    The embeddings and everything that leaves stay on the CPU: a prompt goes to another process from here.

    Args:
        checkpoint: folder with the model and its processor, in any layout.

    Raises:
        InputError: the folder is no checkpoint of ours.
    """

    def __init__(self, checkpoint: Path) -> None:
        self.processor: Any = MairaProcessor.from_pretrained(checkpoint)
        config = read_config(checkpoint)
        weights = Weights(checkpoint, config)
        self._model = _front(config)
        parts = (PREFIXES["own"]["encoder"], PREFIXES["own"]["adapter"])
        names = [name for name in weights.shapes if name.startswith(parts)]
        names.append(f"{PREFIXES['own']['language']}embed_tokens.weight")
        read = dict(weights.read(names, torch.float32))
        self._model.load_state_dict(read, assign=True, strict=False)
        self._device, self._dtype = torch.device("cpu"), torch.float32
        self._cache: OrderedDict[Path, Tensor] = OrderedDict()

    def to(self, device: str, dtype: torch.dtype) -> None:
        """Move encoder and adapter to a device, and take the language model's type for what comes out.

        Args:
            device: of the encoder; on a GPU it runs in bfloat16.
            dtype: of embeddings.
        """
        self._device, self._dtype = torch.device(device), dtype
        inner = torch.float32 if self._device.type == "cpu" else torch.bfloat16
        for part in (self._model.vision_tower, self._model.multi_modal_projector):
            part.to(self._device, inner)
        self._model.get_input_embeddings().to(dtype)

    def token_ids(self, example: Example) -> list[int]:
        """The prompt's token ids, every image's placeholder as often as it has tokens."""
        ids: list[int] = self.processor.encode_prompt(example.prompt, len(example.images))
        return ids

    @torch.inference_mode()
    def embed(self, ids: Sequence[int], images: Sequence[Path]) -> Tensor:
        """A prompt's embeddings.

        Args:
            ids: of the prompt, from `token_ids`.
            images: in the order of their placeholders.

        Returns:
            (length, width) on the CPU.

        Raises:
            InputError: a file cannot be read as an image, or an image is no radiograph.
        """
        tokens = torch.stack([self._image_tokens(image) for image in images]) if images else None
        embeddings: Tensor = self._model.embed(torch.tensor([ids]), tokens)
        return embeddings[0]

    def _image_tokens(self, image: Path) -> Tensor:
        """(image_seq_length, width) on the CPU; computed once while the image stays among the last that were used."""
        if image not in self._cache:
            pixels = self.processor.image_processor([image])["pixel_values"].to(self._device)
            tokens: Tensor = self._model.encode_images(pixels)[0].to("cpu", self._dtype)
            self._cache[image] = tokens
            while len(self._cache) > max(1, _CACHE_BYTES // tokens.nbytes):
                self._cache.popitem(last=False)
        self._cache.move_to_end(image)
        return self._cache[image]


def _front(config: Any) -> Any:
    """The model without the layers of its language model, and without memory for its weights."""
    config = copy.deepcopy(config)
    config.text_config.num_hidden_layers = 0
    with torch.device("meta"):
        return MairaForConditionalGeneration(config).eval()
