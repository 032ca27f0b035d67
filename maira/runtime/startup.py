"""What `import maira` does: let the Auto classes find the model, silence messages of libraries."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_AUTO_CLASSES = {
    "transformers.models.auto.configuration_auto": ("AutoConfig", ("from_pretrained", "for_model")),
    "transformers.models.auto.processing_auto": ("AutoProcessor", ("from_pretrained",)),
    "transformers.models.auto.image_processing_auto": ("AutoImageProcessor", ("from_pretrained",)),
}
"""Classes, by module, and their methods that look for registered classes; Auto classes of models call AutoConfig."""

_SILENCED = {
    # transformers imports torchao wherever it is installed; the message is for torchao's authors.
    "torch.utils._pytree": "%s is an Enum subclass and is now natively supported",
    # A faster kernel for 4-bit layers on CPUs, where nobody should train them.
    "bitsandbytes.backends.cpu.ops": "Failed to load CPU gemm_4bit_forward",
    # Written for every compilation for the CPU on a machine with nvcc but without a GPU.
    "torch.utils.cpp_extension": "No CUDA runtime is found",
    # The warning ignores that the positions of the language model are scaled.
    "transformers.generation.stopping_criteria": "This is a friendly reminder - the current text generation call has",
}
"""Beginnings of messages, by logger."""


class _AutoClassFinder(MetaPathFinder):
    """Prepares the Auto classes when their modules are imported."""

    def __init__(self, register: Callable[[], None]) -> None:
        self._register = register

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname in _AUTO_CLASSES else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_prepare(module: ModuleType) -> None:
            execute(module)
            _prepare_auto_class(module, self._register)

        spec.loader.exec_module = execute_and_prepare  # type: ignore[method-assign]
        return spec


def _prepare_auto_class(module: ModuleType, register: Callable[[], None]) -> None:
    """Replace methods of an Auto class by ones that register the model and put the original methods back."""
    class_name, methods = _AUTO_CLASSES[module.__name__]
    auto_class = getattr(module, class_name)
    originals = {method: auto_class.__dict__[method] for method in methods}

    def call(method: str, _: type, *args: Any, **kwargs: Any) -> Any:
        for name, original in originals.items():
            setattr(auto_class, name, original)
        # Without the extra [model] there is no model to register, but other packages may use transformers.
        with suppress(ModuleNotFoundError):
            register()
        return getattr(auto_class, method)(*args, **kwargs)

    for method in methods:
        setattr(auto_class, method, classmethod(partial(call, method)))


def register_on_use(register: Callable[[], None]) -> None:
    """Make transformers' Auto classes call a function at their first use."""
    # Registering at once would import torch and transformers with `maira`; registering when the Auto classes are
    # imported fails, since transformers imports them from the middle of other modules.
    if any(isinstance(finder, _AutoClassFinder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _AutoClassFinder(register))
    for name in _AUTO_CLASSES.keys() & sys.modules.keys():
        _prepare_auto_class(sys.modules[name], register)


def silence_libraries() -> None:
    """Filter the messages of `_SILENCED` out of their loggers; all other messages are printed."""
    for name, beginning in _SILENCED.items():
        logging.getLogger(name).addFilter(lambda r, text=beginning: not str(r.msg).startswith(text))  # type: ignore[misc]
