"""Protocol between client and backends: messages, prompt prefixes, requests and responses."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

T_co = TypeVar("T_co", covariant=True)

REPAIRS = 2
"""How often an invalid response is returned to the model for repair."""

Message = tuple[str, str]
"""(role, content), with role system, user or assistant."""


def messages_json(messages: Iterable[Message]) -> bytes:
    """Serialize messages as the elements of a JSON array, in the layout of the OpenAI protocol."""
    # Escaped to ASCII: half a surrogate pair in a report must not break the request.
    return b",".join(
        json.dumps({"role": role, "content": content}, separators=(",", ":")).encode() for role, content in messages
    )


class PromptPrefix:
    """Constant beginning of many conversations, serialized and hashed once."""

    __slots__ = ("hash", "json", "messages")

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        """Serialize the messages; `json` holds them with a comma after each."""
        self.messages = tuple(messages)
        self.json = messages_json(self.messages) + b"," if self.messages else b""
        self.hash = hashlib.sha256(self.json)

    @property
    def sha256(self) -> str:
        """Hash of the messages in hexadecimal."""
        return self.hash.hexdigest()


NO_PREFIX = PromptPrefix()


class IncompleteResponseError(ValueError):
    """A response that is valid in part: it is returned to the model, but the model follows the format."""


@dataclass(frozen=True, slots=True)
class ChatRequest(Generic[T_co]):
    """A request to a language model."""

    messages: tuple[Message, ...]  #: the conversation, or its part after `prefix`; the last message is the user's
    parse: Callable[[str], T_co]  #: reads the response; returns a value or raises ValueError with what is wrong
    prefix: PromptPrefix = NO_PREFIX  #: beginning of the conversation that this request shares with others
    schema: Mapping[str, Any] | None = None  #: JSON schema of the response
    #: Whether a server or provider without JSON schemas is an error; otherwise the client repeats the request without
    #: the schema, and `parse` must read free text as well (see `structured_request`).
    schema_required: bool = True
    repairs: int = REPAIRS  #: how often an invalid response is returned to the model with the problem
    #: Texts of patients in the conversation, none of whose words an error shows; None for all of `messages`.
    reports: tuple[str, ...] | None = None


def merge_system(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return a conversation whose first message of the user begins with the text of the system message."""
    if messages[0][0] != "system" or len(messages) == 1:
        return messages
    (_, system), (role, text), *others = messages
    return ((role, f"{system.rstrip()}\n\n{text}"), *others)


def response_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the field of the OpenAI protocol that asks for a response in a JSON schema."""
    return {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "strict": True, "schema": dict(schema)},
        }
    }


@dataclass(frozen=True, slots=True)
class CachedResponse:
    """Response of a model as it is cached."""

    text: str  #: the response
    tokens_in: int  #: tokens of the prompt
    tokens_out: int  #: tokens of the response
    cut: bool = False  #: whether the response ended at the limit of tokens


class ChatBackend(Protocol):
    """Sends one conversation to a model; the client calls every method in its one event loop."""

    async def complete(
        self, prefix: PromptPrefix, messages: Sequence[Message], schema: Mapping[str, Any] | None
    ) -> CachedResponse:
        """Return one response. Retries, cache and parsing are left to the client.

        Args:
            prefix: beginning of the conversation.
            messages: rest of the conversation.
            schema: JSON schema of the response.

        Raises:
            CallError: no response, with the kind of error.
            InputError: the backend does not support the request (such as a schema).
        """
        ...

    async def close(self) -> None:
        """Release connections, engines and the like; called once, after the last response."""
        ...


_REPEAT: ContextVar[int] = ContextVar("repeat", default=0)
current_repeat = _REPEAT.get
"""Returns the index of the current repeat; 0 is the first, whose responses are those of a run without repeats."""


@contextmanager
def use_repeat(index: int) -> Iterator[None]:
    """Assign all requests of a block to a repeat, which shares no cached responses with other repeats."""
    token = _REPEAT.set(index)
    try:
        yield
    finally:
        _REPEAT.reset(token)


def accepts(function: Callable[..., Any], *positional: Any, **named: Any) -> bool:
    try:
        inspect.signature(function).bind(*positional, **named)
    except (TypeError, ValueError):
        return False
    return True
