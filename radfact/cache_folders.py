"""Cache folders of the user; needs nothing but the standard library."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def weights_folder() -> Path:
    """Return the folder of the weights that `radfact weights fetch` downloads: RADFACT_WEIGHTS, or the user's cache."""
    return Path(os.environ.get("RADFACT_WEIGHTS") or user_cache() / "radfact" / "weights")


def hugging_face_cache() -> Path:
    home = Path(os.environ.get("HF_HOME") or user_cache() / "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
