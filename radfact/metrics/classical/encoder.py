"""A published model of transformers with its tokenizer, which reads texts in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from radfact.errors import ErrorCode, InputError


class Encoder:
    def __init__(self, model: Any, tokenizer: Any, *, batch_size: int, max_tokens: int) -> None:
        import torch

        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = model.to(self.device).eval()
        self.tokenizer = tokenizer
        self._batch_size, self._max_tokens = batch_size, max_tokens

    @classmethod
    def load(cls, kind: str, folder: Path, *, batch_size: int, max_tokens: int) -> Encoder:
        """Load a model in 32 bits, by a class of transformers, and its tokenizer from a folder alone."""
        import torch
        import transformers
        from safetensors import SafetensorError

        try:
            model, loaded = getattr(transformers, kind).from_pretrained(
                str(folder), local_files_only=True, dtype=torch.float32, output_loading_info=True
            )
            tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        except (OSError, RuntimeError, ValueError, KeyError, TypeError, SafetensorError) as error:
            reason = " ".join(str(error).split())
            raise InputError(f"cannot be loaded: {reason:.200}", code=ErrorCode.INVALID_FORMAT, file=folder) from None
        # A missing weight would be random. The pooler is not used.
        missing = sorted(name for name in loaded["missing_keys"] if "pooler" not in name)
        if missing:
            message = f"expected the weights of {type(model).__name__}; {missing[0]} is missing"
            raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=folder)
        return cls(model, tokenizer, batch_size=batch_size, max_tokens=max_tokens)

    def read(self, texts: Sequence[str], **options: Any) -> Iterator[tuple[list[str], Any, Any]]:
        """Yield batches of the distinct texts, their tokens, and the output of the model on its device."""
        import torch

        distinct = sorted(dict.fromkeys(texts), key=len)
        for start in range(0, len(distinct), self._batch_size):
            batch = distinct[start : start + self._batch_size]
            tokens = self.tokenizer(
                batch, padding=True, truncation=True, max_length=self._max_tokens, return_tensors="pt", **options
            ).to(self.device)
            with torch.inference_mode():
                output = self.model(**{name: tokens[name] for name in tokens if name != "special_tokens_mask"})
            yield batch, tokens, output
