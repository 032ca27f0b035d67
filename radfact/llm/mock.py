"""A mock chat model: scripted responses instead of a language model, to test prompts, parsers and whole pipelines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from radfact.errors import option_error
from radfact.llm.client import ChatClient
from radfact.llm.protocol import CachedResponse, Message, PromptPrefix, accepts

ResponseFunction = Callable[[str], str] | Callable[[str, Sequence[Message]], str]
"""function(last user message) or function(last user message, whole conversation)."""


class MockChatModel:
    """A `ChatBackend` with scripted responses, also `load_chat_client("mock:NAME", parameters={"responses": ...})`."""

    def __init__(self, responses: ResponseFunction | Sequence[str] | str) -> None:
        """Take the responses.

        Args:
            responses: a function of the last message, or of the last message and the whole conversation; a list, one
                response for each call, repeated from the start after the last; or one text for all calls.
        """
        self.calls: list[tuple[Message, ...]] = []
        """Conversations so far, prefix included."""
        texts = [responses] if isinstance(responses, str) else responses
        if not callable(texts) and not (
            isinstance(texts, Sequence) and texts and all(isinstance(t, str) for t in texts)
        ):
            message = "expected a string, a list of strings or a function of the last message"
            raise option_error(f"{message}, found {type(responses).__name__}", "judge_args.responses")
        self._responses: Any = texts
        self._takes_conversation = callable(texts) and accepts(texts, "message", ())

    async def complete(
        self, prefix: PromptPrefix, messages: Sequence[Message], schema: Mapping[str, Any] | None
    ) -> CachedResponse:
        """Return the next response; a word counts as one token. The schema is ignored. See `ChatBackend`."""
        del schema
        conversation = (*prefix.messages, *messages)
        self.calls.append(conversation)
        if not callable(self._responses):
            text = self._responses[(len(self.calls) - 1) % len(self._responses)]
        elif self._takes_conversation:
            text = self._responses(conversation[-1][1], conversation)
        else:
            text = self._responses(conversation[-1][1])
        return CachedResponse(text, sum(len(content.split()) for _, content in conversation), len(text.split()))

    async def close(self) -> None:
        """Do nothing: there is nothing to release."""


def mock_client(responses: ResponseFunction | Sequence[str] | str, *, name: str = "mock:model") -> ChatClient:
    """Return a client with a mock model. See `MockChatModel` for the arguments."""
    return ChatClient(MockChatModel(responses), {"model": name})
