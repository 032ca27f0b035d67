"""From images and report sections to the tensors that the model reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoImageProcessor, AutoProcessor, BatchFeature
from transformers.image_processing_utils import BaseImageProcessor
from transformers.processing_utils import ProcessorMixin

from data.images import Gray, load_gray, prepare
from maira.config import MairaConfig
from maira.prompts import PROMPT_END
from maira.tokens import IMAGE

MEAN, DEVIATION = 0.5307, 0.2583
"""Grey level statistics of RAD-DINO's training images on a [0, 1] scale (specification, "Image preparation")."""


class MairaImageProcessor(BaseImageProcessor):
    """Grey, min-max, centred square, normalised, three equal channels.

    Args:
        size: side of the square, pixels.
        image_mean, image_std: of grey levels on a [0, 1] scale.
    """

    model_input_names = ["pixel_values"]  # noqa: RUF012

    def __init__(self, size: int = 518, image_mean: float = MEAN, image_std: float = DEVIATION, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.size, self.image_mean, self.image_std = size, image_mean, image_std

    def __call__(self, images: Sequence[Path | str | Gray], **_: Any) -> BatchFeature:
        """Read and prepare images.

        Args:
            images: paths, or grey levels (height, width).

        Returns:
            `pixel_values` (images, 3, size, size).

        Raises:
            InputError: a file cannot be read as an image.
        """
        squares = [prepare(image if isinstance(image, np.ndarray) else load_gray(image), self.size) for image in images]
        pixels = (torch.from_numpy(np.stack(squares)) - self.image_mean) / self.image_std
        return BatchFeature({"pixel_values": pixels[:, None].expand(-1, 3, -1, -1)})


class MairaProcessor(ProcessorMixin):
    """Image preparation and tokenizer in one; prompts become token ids with room for the images.

    Args:
        image_processor: prepares the images.
        tokenizer: with MAIRA-2's tokens.
        image_seq_length: tokens an image takes.
    """

    def __init__(
        self, image_processor: Any = None, tokenizer: Any = None, image_seq_length: int = 1369, **kwargs: Any
    ) -> None:
        self.image_seq_length = image_seq_length
        self.image_token_id = tokenizer.convert_tokens_to_ids(IMAGE)
        super().__init__(image_processor, tokenizer, **kwargs)

    def encode_prompt(self, prompt: str, images: int) -> list[int]:
        """Token ids of a prompt, `<s>` in front and every placeholder as often as an image has tokens.

        Raises:
            ValueError: the prompt has another number of placeholders than there are images.
        """
        ids: list[int] = self.tokenizer(prompt)["input_ids"]
        wanted = ids.count(self.image_token_id)
        if wanted != images:
            raise ValueError(f"the prompt has {wanted} image placeholders and there are {images} images")
        repeats = {self.image_token_id: self.image_seq_length}
        return [token for token in ids for _ in range(repeats.get(token, 1))]

    def encode_target(self, target: str) -> list[int]:
        """Token ids of what follows a prompt, with `</s>` at the end; appended to the prompt's, they are the sample.

        Raises:
            ValueError: the tokenizer would join the start of the target to the end of the prompt.
        """
        # Llama's tokenizer puts a space in front of a text that stands alone, so the target is cut off a longer one.
        before: list[int] = self.tokenizer(PROMPT_END, add_special_tokens=False)["input_ids"]
        both: list[int] = self.tokenizer(PROMPT_END + target, add_special_tokens=False)["input_ids"]
        if both[: len(before)] != before:
            raise ValueError(
                f"the tokenizer joins the prompt's end to the answer; it must start with a space: {target!r:.40}"
            )
        return [*both[len(before) :], self.tokenizer.eos_token_id]

    def __call__(self, images: Sequence[Sequence[Path | str | Gray]], text: Sequence[str], **_: Any) -> BatchFeature:
        """A batch for `generate`, padded on the left.

        Args:
            images: for each prompt its images, in the order of the placeholders.
            text: the prompts.

        Returns:
            `input_ids` and `attention_mask` (batch, length), `pixel_values` (images, 3, size, size).

        Raises:
            ValueError: placeholders and images of a prompt do not match.
            InputError: a file cannot be read as an image.
        """
        ids = [self.encode_prompt(prompt, len(shown)) for prompt, shown in zip(text, images, strict=True)]
        tokens, mask = pad(ids, self.tokenizer.pad_token_id, left=True)
        flat = [image for shown in images for image in shown]
        pixels = self.image_processor(flat)["pixel_values"]
        return BatchFeature({"input_ids": tokens, "attention_mask": mask, "pixel_values": pixels})


def pad(rows: Sequence[Sequence[int]], value: int, *, left: bool = False, multiple: int = 1) -> tuple[Tensor, Tensor]:
    """Rows of ids as one tensor (rows, longest, rounded up to a multiple) and its mask, 1 where a row has a token."""
    length = -(-max(map(len, rows)) // multiple) * multiple
    ids = torch.full((len(rows), length), value, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        place = slice(length - len(row), None) if left else slice(0, len(row))
        ids[i, place] = torch.tensor(row, dtype=torch.long)
        mask[i, place] = 1
    return ids, mask


AutoImageProcessor.register(MairaConfig, MairaImageProcessor)
AutoProcessor.register(MairaConfig, MairaProcessor)
