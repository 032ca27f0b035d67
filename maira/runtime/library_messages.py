"""Messages that libraries have for the authors of libraries, each of them named, left out of what is printed."""

from __future__ import annotations

import logging

_FOR_OTHERS = {
    # torchao, which transformers imports wherever it is installed, to torchao's authors.
    "torch.utils._pytree": "%s is an Enum subclass and is now natively supported",
    # A faster kernel for layers in 4 bits on CPUs, where nobody should train them.
    "bitsandbytes.backends.cpu.ops": "Failed to load CPU gemm_4bit_forward",
    # A compiler that is there without a GPU, whenever something is compiled for the CPU.
    "torch.utils.cpp_extension": "No CUDA runtime is found",
}
"""The beginning of a message, by the logger that writes it."""


def leave_out_messages() -> None:
    """Keep the loggers from printing those messages; whatever else they have to say is printed."""
    for name, beginning in _FOR_OTHERS.items():
        logging.getLogger(name).addFilter(_Without(beginning))


class _Without(logging.Filter):
    def __init__(self, beginning: str) -> None:
        super().__init__()
        self._beginning = beginning

    def filter(self, record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith(self._beginning)
