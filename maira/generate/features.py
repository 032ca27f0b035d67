"""Images of a run as the encoder sees them: read ahead of the model, encoded once, kept while they are still needed."""

from __future__ import annotations

import math
import os
from bisect import bisect_left
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from radfact.errors import InputError

ENCODED_AT_ONCE = 16
"""Images that pass the encoder, or the adapter, together."""
_READ_AHEAD = 2
"""Batches whose images are read while one is answered; a prepared image takes 1.1 MB."""
_HELD_BYTES = 4 << 30
"""Of encoded images in the memory of the host; one of RAD-DINO's takes 2.1 MB in half precision (the adapter would make
11 MB of it, and costs less than moving those)."""


class ImageFeatures:
    """The encoder's patch tokens for the images of requests that are answered in a known order.

    Args:
        encoder: pixels (images, 3, height, width) -> (images, patches, width).
        image_processor: reads and prepares a file.
        shown: the images of every request, in the order of answering.
        held_bytes: most memory for encoded images; those that are used last are dropped, and encoded again.
    """

    def __init__(
        self, encoder: Any, image_processor: Any, shown: Sequence[Sequence[Path]], *, held_bytes: int = _HELD_BYTES
    ) -> None:
        self._encoder, self._prepare, self._shown, self._room = encoder, image_processor, shown, held_bytes
        self._uses: dict[Path, list[int]] = {}
        for place, images in enumerate(shown):
            for image in images:
                self._uses.setdefault(image, []).append(place)
        self._held: dict[Path, Tensor] = {}
        self._faults: dict[Path, InputError] = {}
        self._reading: dict[Path, Future[Tensor]] = {}
        self._readers = ThreadPoolExecutor(min(8, os.cpu_count() or 1), thread_name_prefix="maira-images")

    def __enter__(self) -> ImageFeatures:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._readers.shutdown(cancel_futures=True)

    def encode(self, first: int, stop: int) -> dict[Path, Tensor | InputError]:
        """Patch tokens (patches, width), on the CPU, of all images of the requests from `first` up to `stop`.

        An image that cannot be read has the reason instead. Whatever only requests before `first` needed is forgotten.
        """
        self._held = {image: tokens for image, tokens in self._held.items() if self._uses[image][-1] >= first}
        wanted = self._images(first, stop)
        self._read([*wanted, *self._images(stop, stop + _READ_AHEAD * (stop - first))])
        found: dict[Path, Tensor | InputError] = {image: self._held[image] for image in wanted if image in self._held}
        pixels: dict[Path, Tensor] = {}
        for image in wanted:
            if image in self._reading:
                try:
                    pixels[image] = self._reading[image].result()
                except InputError as fault:
                    self._faults[image] = fault
            if image in self._faults:
                found[image] = self._faults[image]
        found |= self._encode(pixels)
        for image in wanted:
            self._reading.pop(image, None)
        self._drop(stop)
        return found

    def _images(self, first: int, stop: int) -> list[Path]:
        return list(dict.fromkeys(image for shown in islice(self._shown, first, stop) for image in shown))

    def _read(self, images: Sequence[Path]) -> None:
        """Have images read that are neither known nor on their way."""
        for image in images:
            if image not in self._held and image not in self._faults and image not in self._reading:
                self._reading[image] = self._readers.submit(self._pixels, image)

    def _pixels(self, image: Path) -> Tensor:
        pixels: Tensor = self._prepare([image])["pixel_values"]
        return pixels

    def _encode(self, pixels: dict[Path, Tensor]) -> dict[Path, Tensor]:
        weight = next(self._encoder.parameters())
        encoded: dict[Path, Tensor] = {}
        images = list(pixels)
        for start in range(0, len(images), ENCODED_AT_ONCE):
            some = images[start : start + ENCODED_AT_ONCE]
            tokens = self._encoder(torch.cat([pixels[image] for image in some]).to(weight.device, weight.dtype))
            encoded |= zip(some, tokens.cpu().unbind(), strict=True)
        self._held |= encoded
        return encoded

    def _drop(self, stop: int) -> None:
        """Keep to the room for encoded images: what is used next by the latest request after `stop` goes first."""
        held = sum(tokens.nbytes for tokens in self._held.values())
        if held <= self._room:
            return
        for image in sorted(self._held, key=lambda image: self._next_use(image, stop), reverse=True):
            held -= self._held.pop(image).nbytes
            if held <= self._room:
                return

    def _next_use(self, image: Path, place: int) -> float:
        uses = self._uses[image]
        at = bisect_left(uses, place)
        return uses[at] if at < len(uses) else math.inf
