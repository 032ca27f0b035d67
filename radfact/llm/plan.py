"""The requests that a run would send to a model, and their tokens, without sending any."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from radfact.llm.protocol import CachedResponse, ChatRequest, Message

if TYPE_CHECKING:
    from radfact.llm.client import ChatClient

T = TypeVar("T")

CHARACTERS_PER_TOKEN = 4.0
"""English prompts of this package have 3.6 to 4.4 characters per token of SmolLM2's vocabulary of 49,152 tokens."""
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """Requests of one role of a model to send, their lowest and highest estimate of tokens, and those in the cache."""

    model: str
    queries: int = 0
    cached: int = 0
    tokens_in: int | None = None
    tokens_out: tuple[int, int | None] = (0, None)
    is_exact: bool = True

    def __add__(self, other: RequestPlan) -> RequestPlan:
        """Return the requests of two runs with the same model, such as repeats."""
        (low, high), (other_low, other_high) = self.tokens_out, other.tokens_out
        return replace(
            self,
            queries=self.queries + other.queries,
            cached=self.cached + other.cached,
            tokens_in=_sum(self.tokens_in, other.tokens_in),
            tokens_out=(low + other_low, _sum(high, other_high)),
            is_exact=self.is_exact and other.is_exact,
        )


def _sum(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second


def plan_requests(client: ChatClient, requests: Sequence[ChatRequest[T]]) -> tuple[RequestPlan, list[T | None]]:
    """Count the requests without a cached response, and return the cached values (None: missing or invalid)."""
    values: list[T | None] = []
    characters: dict[tuple[str, tuple[Message, ...]], int] = {}
    cached: dict[tuple[str, tuple[Message, ...]], CachedResponse] = {}
    for request in requests:
        response, value = client.cached_response(request), None
        if response is not None and not response.cut:
            with suppress(ValueError):
                value = request.parse(response.text)
        values.append(value)
        conversation = request.prefix.sha256, request.messages
        characters[conversation] = sum(len(content) for _, content in (*request.prefix.messages, *request.messages))
        if response is not None:
            cached[conversation] = response
    missing = [count for conversation, count in characters.items() if conversation not in cached]
    tokens_in = sum(response.tokens_in for response in cached.values())
    tokens_out = sum(response.tokens_out for response in cached.values())
    ratio = (sum(characters.values()) - sum(missing)) / tokens_in if tokens_in else CHARACTERS_PER_TOKEN
    parameters = client.identity.get("parameters", {})
    limit = next((parameters[name] for name in _LIMITS if parameters.get(name)), None)
    low, high = 0, limit and len(missing) * limit
    if tokens_out or not missing:
        low = high = round(len(missing) * tokens_out / max(len(cached), 1))
    model = str(client.identity.get("model", "the model"))
    return RequestPlan(model, len(missing), len(cached), round(sum(missing) / ratio), (low, high)), values
