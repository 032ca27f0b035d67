"""Preparation of images for the encoder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from PIL import Image
from transformers import AutoImageProcessor, BatchFeature
from transformers.image_processing_utils import BaseImageProcessor

from maira.data.images import Gray, gray_levels, load_gray, prepare
from maira.model.config import MairaConfig

MEAN, DEVIATION = 0.5307, 0.2583
"""Mean and standard deviation of the gray levels of RAD-DINO's training images, on a [0, 1] scale."""

ImageInput: TypeAlias = Path | str | Image.Image | Gray
"""A file, an open image, or gray levels (height, width) on any scale."""

# Settings of transformers' own image processors. The preparation here is always the same, so they are not read.
_STEPS = ("do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_convert_rgb")
_STANDARD: dict[str, Any] = dict.fromkeys(_STEPS, True) | {"resample": 3, "rescale_factor": 1 / 255}


class MairaImageProcessor(BaseImageProcessor):
    """Prepares images: gray levels, min-max, centered square, normalization, three equal channels.

    The settings of a standard image processor, as in released folders, are read too: a size by name and three equal
    means and deviations.

    Args:
        size: side of the square in pixels.
        image_mean, image_std: mean and standard deviation of gray levels on a [0, 1] scale.
    """

    model_input_names = ["pixel_values"]  # noqa: RUF012

    def __init__(
        self,
        size: int | Mapping[str, int] = 518,
        image_mean: float | Sequence[float] = MEAN,
        image_std: float | Sequence[float] = DEVIATION,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{name: value for name, value in kwargs.items() if name not in {*_STANDARD, "crop_size"}})
        self.size = int(_single_value("size", size.values() if isinstance(size, Mapping) else [size]))
        self.image_mean = _single_value("image_mean", image_mean if isinstance(image_mean, Sequence) else [image_mean])
        self.image_std = _single_value("image_std", image_std if isinstance(image_std, Sequence) else [image_std])

    def __call__(self, images: Sequence[ImageInput], **_: Any) -> BatchFeature:
        """Read and prepare images as `pixel_values` (images, 3, size, size)."""
        squares = [prepare(_gray_levels(image), self.size) for image in images]
        pixels = (torch.from_numpy(np.stack(squares)) - self.image_mean) / self.image_std
        return BatchFeature({"pixel_values": pixels[:, None].expand(-1, 3, -1, -1)})

    def released_settings(self) -> dict[str, Any]:
        """Return the settings of transformers' `BitImageProcessor` that come closest: it has no min-max step."""
        return {
            "image_processor_type": "BitImageProcessor",
            "size": {"shortest_edge": self.size},
            "crop_size": {"height": self.size, "width": self.size},
            "image_mean": [self.image_mean] * 3,
            "image_std": [self.image_std] * 3,
            **_STANDARD,
        }


def _gray_levels(image: ImageInput) -> Gray:
    if isinstance(image, Image.Image):
        return gray_levels(image)
    return image if isinstance(image, np.ndarray) else load_gray(image)


def _single_value(name: str, values: Iterable[float]) -> float:
    distinct = set(values)
    if len(distinct) != 1:
        raise ValueError(f"{name}: expected one value for all channels and sides, found {sorted(distinct)}")
    return distinct.pop()


AutoImageProcessor.register(MairaConfig, MairaImageProcessor)
