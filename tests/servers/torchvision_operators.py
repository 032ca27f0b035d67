"""Make timm and torchvision importable in the environment with vLLM for the CPU; import this module first.

No torchvision release has operators for the torch of vLLM for the CPU, but its Python code needs the names of two of
them. The model calls none: timm only imports torchvision. Both are in a separate folder (see the Makefile), which
vLLM's own processes do not import from. vLLM for GPUs has a matching torchvision.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.append(str(Path(sys.prefix) / "vision"))

_library = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
