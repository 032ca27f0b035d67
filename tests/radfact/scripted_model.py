"""A language model that answers with a function, for metrics that ask one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from radfact.llm import CachedResponse, ChatClient, Message, PromptPrefix


class ScriptedBackend:
    """Answers the last message of a conversation with a function of its text."""

    def __init__(self, answer: Callable[[str], str]) -> None:
        self.answer = answer

    async def complete(
        self, prefix: PromptPrefix, messages: Sequence[Message], schema: Mapping[str, Any] | None
    ) -> CachedResponse:
        del prefix, schema
        return CachedResponse(self.answer(messages[-1][1]), 1, 1)

    async def close(self) -> None:
        pass


def scripted_client(answer: Callable[[str], str]) -> ChatClient:
    """A client whose model answers with `answer`."""
    return ChatClient(ScriptedBackend(answer), {"model": "scripted"})
