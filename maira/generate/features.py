"""Encoded images of a run: read ahead of the model, encoded once, and kept while requests still need them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from maira.data.image_check import ImageCheck, check_pixels
from maira.data.images import Gray, load_gray
from radfact.errors import InputError

_ENCODER_BATCH = 16
"""Images that pass the encoder together."""
_READ_AHEAD = 2
"""Batches whose images are read while one is generated; a prepared image takes 1.1 MB."""
_CACHE_BYTES = 4 << 30
"""Memory for encoded images, on the host but for those of a batch. One of RAD-DINO takes 2.1 MB in half precision;
after the adapter it would take 11 MB, and projecting again costs less than moving those."""


class ImageFeatures(AbstractContextManager["ImageFeatures"]):
    """Encoded images of requests in a known order; of too many, those whose last use is the latest are dropped."""

    def __init__(
        self,
        encode: Callable[[Tensor], Tensor],
        image_processor: Any,
        images: Sequence[Sequence[Path]],
        image_check: ImageCheck = "off",
        cache_bytes: int = _CACHE_BYTES,
    ) -> None:
        self._encode, self._prepare, self._images, self._cache_bytes = encode, image_processor, images, cache_bytes
        self._image_check = image_check
        self._last_use = {path: index for index, paths in enumerate(images) for path in paths}
        self._cache: dict[Path, Tensor | InputError] = {}
        self._reading: dict[Path, Future[Tensor]] = {}
        self._readers = ThreadPoolExecutor(min(8, os.cpu_count() or 1), thread_name_prefix="maira-images")

    def __exit__(self, *_: object) -> None:
        self._readers.shutdown(cancel_futures=True)

    def encode(self, start: int, stop: int) -> dict[Path, Tensor | InputError]:
        """Return patch tokens (patches, width), on any device, or an error, by image of requests `start` to `stop`."""
        self._cache = {path: tokens for path, tokens in self._cache.items() if self._last_use[path] >= start}
        ahead = islice(self._images, start, stop + _READ_AHEAD * (stop - start))
        for path in dict.fromkeys(path for paths in ahead for path in paths):
            if path not in self._cache and path not in self._reading:
                self._reading[path] = self._readers.submit(self._read, path)
        paths = list(dict.fromkeys(path for paths in islice(self._images, start, stop) for path in paths))
        results = {path: self._cache[path] for path in paths if path in self._cache}
        pixels: dict[Path, Tensor] = {}
        for path in paths:
            if path not in results:
                try:
                    pixels[path] = self._reading[path].result()
                except InputError as error:
                    results[path] = error
        for first in range(0, len(pixels), _ENCODER_BATCH):
            batch = list(pixels)[first : first + _ENCODER_BATCH]
            tokens = self._encode(torch.cat([pixels[path] for path in batch]))
            results |= zip(batch, tokens.unbind(), strict=True)
        for path, result in (self._cache | results).items():
            self._reading.pop(path, None)
            # Those that wait for later requests leave the device.
            self._cache[path] = result.cpu() if self._last_use[path] >= stop and isinstance(result, Tensor) else result
        sizes = {path: getattr(tokens, "nbytes", 0) for path, tokens in self._cache.items()}
        size = sum(sizes.values())
        for path in sorted(sizes, key=self._last_use.__getitem__, reverse=True):
            if size > self._cache_bytes:
                size -= sizes[path]
                del self._cache[path]
        return results

    def _read(self, path: Path) -> Tensor:
        pixels: Tensor = self._prepare([read_gray(path, self._image_check)])["pixel_values"]
        return pixels


def read_gray(path: Path, image_check: ImageCheck) -> Gray:
    """Read a radiograph, and check it unless the check is off."""
    gray = load_gray(path)
    if image_check == "refuse":
        check_pixels(gray, path)
    return gray


def read_image(path: Path, image_check: ImageCheck) -> Image.Image:
    """Read a whole radiograph in 8 bits, from its darkest to its brightest pixel."""
    gray = read_gray(path, image_check)
    low, high = float(gray.min()), float(gray.max())
    return Image.fromarray(np.round((gray - low) * (255 / ((high - low) or 1))).astype(np.uint8))
