"""Make timm and torchvision importable in the vLLM environment; import this module first.

No torchvision release is built for the torch of vLLM for the CPU. Its import needs the names of two operators, which
the model never calls: timm only imports torchvision. Both are in a separate folder (see the Makefile), which
vLLM's own processes do not import from. vLLM for GPUs has a matching torchvision.
"""

import sys
from pathlib import Path

import torch

sys.path.append(str(Path(sys.prefix) / "vision"))

_library = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
