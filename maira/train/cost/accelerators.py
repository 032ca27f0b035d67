"""Accelerators that people train on: their memory, and their best rate of dense bfloat16 products, from data sheets."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Accelerator:
    """One kind of GPU.

    Attributes:
        name: as people write it.
        device: what the driver's name of the device holds, in any case.
        memory: GiB that the driver gives to programs, about.
        peak: floating point operations a second, dense bfloat16 products with float32 sums; of one device, where a
            card is two (MI250). V100 has no bfloat16: the figure is float16's.
    """

    name: str
    device: str
    memory: float
    peak: float


# Where one device's name is a part of another's, the longer one stands first.
ACCELERATORS = (
    Accelerator("a100-80g", "A100-SXM4-80GB", 79.1, 312e12),
    Accelerator("a100-80g-pcie", "A100 80GB PCIe", 79.1, 312e12),
    Accelerator("a100-40g", "A100", 39.4, 312e12),
    Accelerator("h100-pcie", "H100 PCIe", 79.1, 756e12),
    Accelerator("h100-nvl", "H100 NVL", 93.1, 835e12),
    Accelerator("h100", "H100", 79.1, 989e12),
    Accelerator("h200", "H200", 139.8, 989e12),
    Accelerator("b200", "B200", 178.4, 2250e12),
    Accelerator("l40s", "L40S", 44.4, 362e12),
    Accelerator("l4", "L4", 22.0, 121e12),
    Accelerator("a10", "A10", 22.0, 125e12),
    Accelerator("v100-32g", "V100-SXM2-32GB", 31.7, 125e12),
    Accelerator("v100-16g", "V100", 15.8, 125e12),
    Accelerator("mi250x", "MI250X", 64.0, 191.5e12),
    Accelerator("mi250", "MI250", 64.0, 181e12),
    Accelerator("mi300x", "MI300X", 192.0, 1307e12),
)


def find_accelerator(device: str) -> Accelerator | None:
    """The accelerator that a driver calls by this name (`torch.cuda.get_device_name`); None if it is not known."""
    # As whole words: an A10G is no A10.
    return next((one for one in ACCELERATORS if re.search(rf"\b{re.escape(one.device)}\b", device, re.I)), None)
