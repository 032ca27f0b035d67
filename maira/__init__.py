"""MAIRA-2: grounded radiology reporting.

Importing this package makes the model known to transformers' Auto classes, which takes torch and so some seconds. The
command leaves it out, so that its help comes at once and what needs no model does not wait for one.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from maira.runtime.library_messages import leave_out_messages

_PUBLIC = {
    "MairaConfig": "maira.model.config",
    "MairaForConditionalGeneration": "maira.model.modeling",
    "MairaImageProcessor": "maira.model.processor",
    "MairaProcessor": "maira.model.processor",
}
__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'maira' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


leave_out_messages()
# "-m" is what stands here while `python -m maira` looks for its module.
if Path(sys.argv[0]).stem not in ("maira", "-m"):
    for _module in sorted(set(_PUBLIC.values())):
        import_module(_module)
