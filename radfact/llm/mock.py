"""A mock chat model: scripted responses instead of a language model, to test prompts, parsers and whole pipelines."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from radfact.errors import ErrorCode, InputError
from radfact.llm.client import ChatClient
from radfact.llm.protocol import CachedResponse, Message, PromptPrefix

ResponseFunction = Callable[[str], str] | Callable[[str, Sequence[Message]], str]
"""function(last user message) or function(last user message, whole conversation)."""


class MockChatModel:
    """A `ChatBackend` with scripted responses.

    Also available as `load_chat_client("mock:NAME", parameters={"responses": ...})`; the name of the model in results
    then begins with "mock:".
    """

    def __init__(self, responses: ResponseFunction | Sequence[str] | str) -> None:
        """Take the responses.

        Args:
            responses: a function of the last message, or of the last message and the whole conversation; a list, one
                response for each call, repeated from the start after the last; or one text for all calls.

        Raises:
            InputError: none of these, or an empty list.
        """
        self.calls: list[tuple[Message, ...]] = []
        """Conversations so far, prefix included."""
        self._function: Callable[..., str] | None = None
        self._takes_conversation = False
        self._texts = [responses] if isinstance(responses, str) else []
        if callable(responses):
            self._function = responses
            self._takes_conversation = _takes_two_arguments(responses)
        elif not self._texts:
            if not isinstance(responses, Sequence) or not responses or not all(isinstance(t, str) for t in responses):
                raise InputError(
                    "expected a string, a list of strings or a function of the last message, "
                    f"found {type(responses).__name__}",
                    code=ErrorCode.INVALID_OPTION,
                    field="judge_args.responses",
                )
            self._texts = list(responses)

    async def complete(
        self, prefix: PromptPrefix, messages: Sequence[Message], schema: Mapping[str, Any] | None
    ) -> CachedResponse:
        """Return the next response; a word counts as one token. The schema is ignored. See `ChatBackend`."""
        del schema
        conversation = (*prefix.messages, *messages)
        self.calls.append(conversation)
        if self._function is None:
            text = self._texts[(len(self.calls) - 1) % len(self._texts)]
        elif self._takes_conversation:
            text = self._function(conversation[-1][1], conversation)
        else:
            text = self._function(conversation[-1][1])
        return CachedResponse(text, sum(len(content.split()) for _, content in conversation), len(text.split()))

    async def close(self) -> None:
        """Do nothing: there is nothing to release."""


def mock_client(responses: ResponseFunction | Sequence[str] | str, *, name: str = "mock:model") -> ChatClient:
    """Return a client with a mock model. See `MockChatModel` for the arguments."""
    return ChatClient(MockChatModel(responses), {"model": name})


def _takes_two_arguments(function: Callable[..., str]) -> bool:
    try:
        inspect.signature(function).bind("message", ())
    except (TypeError, ValueError):
        return False
    return True
