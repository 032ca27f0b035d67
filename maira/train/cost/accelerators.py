"""Memory, peak rate and memory bandwidth of common accelerators, from the data sheets of NVIDIA and AMD."""

from __future__ import annotations

import re
from typing import NamedTuple


class Accelerator(NamedTuple):
    """One kind of GPU; for a card of two devices (MI250), one of them.

    Attributes:
        name: short name, as in `--gpu`.
        device: part of the device name that the driver reports; case does not matter.
        memory: approximate memory that is available to programs, in GiB.
        peak: dense bfloat16 operations per second with float32 sums; for the V100, which has no bfloat16, of float16.
        bandwidth: memory bandwidth, bytes per second.
    """

    name: str
    device: str
    memory: float
    peak: float
    bandwidth: float


# `find_accelerator` takes the first match, so longer device names come before names that they contain.
ACCELERATORS = (
    Accelerator("a100-80g", "A100-SXM4-80GB", 79.1, 312e12, 2.039e12),
    Accelerator("a100-80g-pcie", "A100 80GB PCIe", 79.1, 312e12, 1.935e12),
    Accelerator("a100-40g", "A100", 39.4, 312e12, 1.555e12),
    Accelerator("h100-pcie", "H100 PCIe", 79.1, 756e12, 2.0e12),
    Accelerator("h100-nvl", "H100 NVL", 93.1, 835e12, 3.9e12),
    Accelerator("h100", "H100", 79.1, 989e12, 3.35e12),
    Accelerator("h200", "H200", 139.8, 989e12, 4.8e12),
    Accelerator("b200", "B200", 178.4, 2250e12, 7.7e12),
    Accelerator("l40s", "L40S", 44.4, 362e12, 0.864e12),
    Accelerator("l4", "L4", 22.0, 121e12, 0.3e12),
    Accelerator("a10", "A10", 22.0, 125e12, 0.6e12),
    Accelerator("v100-32g", "V100-SXM2-32GB", 31.7, 125e12, 0.9e12),
    Accelerator("v100-16g", "V100", 15.8, 125e12, 0.9e12),
    Accelerator("mi250x", "MI250X", 64.0, 191.5e12, 1.638e12),
    Accelerator("mi250", "MI250", 64.0, 181e12, 1.638e12),
    Accelerator("mi300x", "MI300X", 192.0, 1307e12, 5.3e12),
)


def find_accelerator(device: str) -> Accelerator | None:
    """Return the accelerator with a device name (as of `torch.cuda.get_device_name`), or None if it is unknown."""
    # Match whole words: an A10G is not an A10.
    return next((known for known in ACCELERATORS if re.search(rf"\b{re.escape(known.device)}\b", device, re.I)), None)
