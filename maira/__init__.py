"""MAIRA-2: grounded radiology reporting.

Importing this package loads neither torch nor transformers. The first access to a public class, or the first use of
transformers' Auto classes, imports the model and registers it with them, so that code of a checkpoint's folder
(`trust_remote_code`) is never needed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from maira.runtime.startup import register_on_use, silence_libraries

if TYPE_CHECKING:
    from maira.model.config import MairaConfig
    from maira.model.image_processor import MairaImageProcessor
    from maira.model.modeling import MairaForConditionalGeneration
    from maira.model.processor import MairaProcessor

__all__ = ["MairaConfig", "MairaForConditionalGeneration", "MairaImageProcessor", "MairaProcessor", "register"]

_MODULES = {
    "MairaConfig": "maira.model.config",
    "MairaForConditionalGeneration": "maira.model.modeling",
    "MairaImageProcessor": "maira.model.image_processor",
    "MairaProcessor": "maira.model.processor",
}

silence_libraries()


def register() -> None:
    """Register the model with transformers' Auto classes by importing its modules; their first use does so as well."""
    for module in _MODULES.values():
        import_module(module)


register_on_use(register)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'maira' has no attribute {name!r}")
    register()
    return getattr(import_module(_MODULES[name]), name)
