"""Libraries that metrics load, without what they have to say to their own authors."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Suppress warnings and progress bars of libraries; whatever matters to a user is raised as an error."""
    # Read when transformers is imported, which may be later.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
