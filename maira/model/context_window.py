"""How long prompt and answer of a language model may be together, and what becomes of a request that wants more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from logging import Filter, LogRecord, getLogger
from typing import Any

from maira.generate.request import Request, Unanswered


def room_of(config: Any) -> int:
    """Tokens that prompt and answer have together: 6,144 for MAIRA-2, whose 4,096 positions are scaled by 1.5.

    It is the length that vLLM derives from the same configuration.

    Args:
        config: of the language model, a Llama.
    """
    rope = config.rope_parameters or {}
    # The other ways of scaling have their factor in the number of positions already.
    is_scaled = rope.get("rope_type") in ("linear", "dynamic")
    return int(config.max_position_embeddings * (rope.get("factor") or 1.0 if is_scaled else 1.0))


def too_long(length: int, room: int) -> Unanswered | None:
    """Why a prompt of so many tokens cannot be answered, None if there is room for at least one token more."""
    if length < room:
        return None
    return Unanswered(f"the prompt has {length} tokens; prompt and answer have room for {room}")


def in_room(request: Request, length: int, room: int) -> Request:
    """The request with its limit of tokens lowered to what its prompt of so many tokens leaves."""
    return replace(request, max_new_tokens=min(request.max_new_tokens, room - length))


@contextmanager
def without_reminder() -> Iterator[None]:
    """Keep transformers from saying that the text exceeds the model's positions, of which it does not count scaling."""

    class _Reminder(Filter):
        def filter(self, record: LogRecord) -> bool:
            return "predefined maximum length" not in record.getMessage()

    logger, reminder = getLogger("transformers.generation.stopping_criteria"), _Reminder()
    logger.addFilter(reminder)
    try:
        yield
    finally:
        logger.removeFilter(reminder)
