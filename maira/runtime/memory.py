"""Memory of the process."""

from __future__ import annotations

import ctypes


def trim_memory() -> None:
    """Return free memory to the system, where the C library can (glibc).

    Tensors whose sizes change all the time, as those of packed rows and of a growing cache do, leave gaps between the
    blocks in use. glibc keeps these gaps: a process that trains on a CPU grows to several times of what it uses.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
