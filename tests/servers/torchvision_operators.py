"""To be imported first in vLLM's environment of the tests, where it makes timm and a torchvision known.

There is no torchvision for the torch of vLLM's CPU build: the registry's does not load its compiled operators there,
and its Python part registers something for two of them that must then exist by name. Nothing of the model calls them:
timm asks torchvision for the names of ways to resize. It lies in a folder of its own (see the Makefile), which the
processes that vLLM starts for itself do not see. Who installs vLLM for a GPU has a torchvision that fits.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.append(str(Path(sys.prefix) / "vision"))

_library = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
