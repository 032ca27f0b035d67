"""Suppress the output of third-party libraries."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Suppress the warnings and progress bars of libraries; errors are raised as usual."""
    # Read when transformers is imported, which may be later.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
