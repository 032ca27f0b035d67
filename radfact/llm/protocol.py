"""What goes to a language model and what comes back: messages, their constant beginning, questions and answers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from hashlib import _Hash

T = TypeVar("T")

REPAIRS = 2
"""How often a question is asked again because its answer cannot be used."""

Message = tuple[str, str]
"""(role, content), role one of system, user, assistant."""


def messages_json(messages: Iterable[Message]) -> bytes:
    """Messages as the inside of a JSON array, in the layout of the OpenAI protocol."""
    # Escaped to ASCII, so that half a surrogate pair in a report cannot break the request.
    return b",".join(
        json.dumps({"role": role, "content": content}, separators=(",", ":")).encode() for role, content in messages
    )


class PromptPrefix:
    """The constant beginning of many conversations: its JSON bytes and its hash are computed once."""

    __slots__ = ("_hash", "json", "messages")

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        """Take the messages; `json` holds them as the beginning of a JSON array, the comma after the last included."""
        self.messages = tuple(messages)
        self.json = messages_json(self.messages) + b"," if self.messages else b""
        self._hash = hashlib.sha256(self.json)

    @property
    def sha256(self) -> str:
        """Hash of the messages, in hexadecimal."""
        return self._hash.hexdigest()

    def begin_hash(self) -> _Hash:
        """A hash that has read the prefix, to be fed with what follows."""
        return self._hash.copy()


NO_PREFIX = PromptPrefix()


@dataclass(frozen=True, slots=True)
class ChatRequest(Generic[T]):
    """A question to a language model.

    Args:
        messages: the conversation, or what follows `prefix` in it; the last message is the user's.
        parse: reads the answer; it returns a value or raises ValueError saying what is wrong.
        prefix: the constant beginning that this question shares with others.
        schema: a JSON schema that the answer must follow, for servers and providers that can see to it.
        repairs: how often it is asked again, with the fault, where its answer cannot be used.
    """

    messages: tuple[Message, ...]
    parse: Callable[[str], T]
    prefix: PromptPrefix = NO_PREFIX
    schema: Mapping[str, Any] | None = None
    repairs: int = REPAIRS


@dataclass(frozen=True, slots=True)
class CachedResponse:
    """The text that a model answered, the tokens that it took, and whether it was cut off at the limit of tokens."""

    text: str
    tokens_in: int
    tokens_out: int
    cut: bool = False


class ChatBackend(Protocol):
    """Whoever can answer a conversation; every method is called in the one event loop of `radfact.llm`."""

    async def complete(
        self, prefix: PromptPrefix, messages: Sequence[Message], schema: Mapping[str, Any] | None
    ) -> CachedResponse:
        """One answer to `prefix.messages` and then `messages`, following the JSON schema if there is one.

        The client waits, tries again, keeps and parses; a backend does none of this.

        Raises:
            CallError: there is no answer, and what kind of trouble that is.
            InputError: what is asked for is beyond this backend (such as a schema).
        """
        ...

    async def close(self) -> None:
        """Give back connections, engines and the like; called once, after the last answer."""
        ...
