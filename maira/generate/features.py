"""Encoded images of a run: read ahead of the model, encoded once, and kept while requests still need them."""

from __future__ import annotations

import math
import os
from bisect import bisect_left
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from maira.data.image_check import ImageCheck, check_pixels
from maira.data.images import load_gray
from radfact.errors import InputError

ENCODER_BATCH = 16
"""Images that pass the encoder, or the adapter, together."""
_READ_AHEAD = 2
"""Batches whose images are read while one is generated; a prepared image takes 1.1 MB."""
_CACHE_BYTES = 4 << 30
"""Host memory for encoded images. One of RAD-DINO takes 2.1 MB in half precision; after the adapter it would take
11 MB, and projecting again costs less than moving those."""


class ImageFeatures:
    """Patch tokens of the images of requests that are processed in a known order.

    Args:
        encode: image encoder, (images, 3, height, width) on the CPU -> (images, patches, width).
        image_processor: reads and prepares a file.
        images: images of every request, in order.
        image_check: whether to refuse images that cannot be chest radiographs (`maira.data.image_check`).
        cache_bytes: memory for encoded images; those needed last are dropped first, and encoded again.
    """

    def __init__(
        self,
        encode: Callable[[Tensor], Tensor],
        image_processor: Any,
        images: Sequence[Sequence[Path]],
        *,
        image_check: ImageCheck = "off",
        cache_bytes: int = _CACHE_BYTES,
    ) -> None:
        self._image_check = image_check
        self._encode, self._prepare, self._images, self._cache_bytes = encode, image_processor, images, cache_bytes
        self._uses: dict[Path, list[int]] = {}
        for index, paths in enumerate(images):
            for path in paths:
                self._uses.setdefault(path, []).append(index)
        self._cache: dict[Path, Tensor] = {}
        self._errors: dict[Path, InputError] = {}
        self._reading: dict[Path, Future[Tensor]] = {}
        self._readers = ThreadPoolExecutor(min(8, os.cpu_count() or 1), thread_name_prefix="maira-images")

    def __enter__(self) -> ImageFeatures:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._readers.shutdown(cancel_futures=True)

    def encode(self, start: int, stop: int) -> dict[Path, Tensor | InputError]:
        """Return patch tokens of the images of requests `start` to `stop`, and drop images of earlier requests only.

        Args:
            start: index of the first request.
            stop: index after the last request.

        Returns:
            (patches, width) on the CPU by image; an error for an image that cannot be read.
        """
        self._cache = {path: tokens for path, tokens in self._cache.items() if self._uses[path][-1] >= start}
        paths = self._paths(start, stop)
        for path in [*paths, *self._paths(stop, stop + _READ_AHEAD * (stop - start))]:
            if path not in self._cache and path not in self._errors and path not in self._reading:
                self._reading[path] = self._readers.submit(self._read, path)
        results: dict[Path, Tensor | InputError] = {path: self._cache[path] for path in paths if path in self._cache}
        pixels: dict[Path, Tensor] = {}
        for path in paths:
            if path in self._reading:
                try:
                    pixels[path] = self._reading[path].result()
                except InputError as error:
                    self._errors[path] = error
            if path in self._errors:
                results[path] = self._errors[path]
        results |= self._encode_all(pixels)
        for path in paths:
            self._reading.pop(path, None)
        self._shrink_cache(stop)
        return results

    def _paths(self, start: int, stop: int) -> list[Path]:
        return list(dict.fromkeys(path for paths in islice(self._images, start, stop) for path in paths))

    def _read(self, path: Path) -> Tensor:
        gray = load_gray(path)
        if self._image_check == "refuse":
            check_pixels(gray, path)
        pixels: Tensor = self._prepare([gray])["pixel_values"]
        return pixels

    def _encode_all(self, pixels: dict[Path, Tensor]) -> dict[Path, Tensor]:
        encoded: dict[Path, Tensor] = {}
        paths = list(pixels)
        for start in range(0, len(paths), ENCODER_BATCH):
            batch = paths[start : start + ENCODER_BATCH]
            tokens = self._encode(torch.cat([pixels[path] for path in batch]))
            encoded |= zip(batch, tokens.cpu().unbind(), strict=True)
        self._cache |= encoded
        return encoded

    def _shrink_cache(self, index: int) -> None:
        """Drop encoded images until they fit in memory, those used last by requests from `index` on first."""
        size = sum(tokens.nbytes for tokens in self._cache.values())
        for path in sorted(self._cache, key=lambda path: self._next_use(path, index), reverse=True):
            if size <= self._cache_bytes:
                return
            size -= self._cache.pop(path).nbytes

    def _next_use(self, path: Path, index: int) -> float:
        uses = self._uses[path]
        position = bisect_left(uses, index)
        return uses[position] if position < len(uses) else math.inf
