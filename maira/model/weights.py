"""A checkpoint's parameters by our names, whatever its layout, read one at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from maira.model.checkpoint import fit, read_headers
from maira.model.config import MairaConfig
from maira.model.modeling import expected_shapes


class Weights:
    """The parameters of a checkpoint; of the files nothing but headers is read until one is asked for.

    Args:
        folder: checkpoint, in any layout.
        config: of its model.

    Attributes:
        shapes: of every parameter, by our names.

    Raises:
        InputError: files are missing or unreadable, or do not fit the configuration.
    """

    def __init__(self, folder: Path, config: MairaConfig) -> None:
        self.shapes = expected_shapes(config)
        self._stored = read_headers(folder)
        self._plan = fit(self._stored, self.shapes, file=folder)

    def read(self, names: Iterable[str], dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """Parameters by our names, each with its tensor of the given type."""
        for name in names:
            parts = []
            for source in self._plan[name]:
                with safe_open(self._stored[source].file, framework="pt") as file:
                    parts.append(file.get_tensor(source).to(dtype))
            yield name, parts[0] if len(parts) == 1 else torch.cat(parts)
