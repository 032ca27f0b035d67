"""The requests that a run would send to a model, and their tokens, without sending any."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from radfact.llm.protocol import ChatRequest, Message

if TYPE_CHECKING:
    from radfact.llm.client import ChatClient

T = TypeVar("T")

CHARACTERS_PER_TOKEN = 4.0
"""English prompts of this package have 3.6 to 4.4 characters per token of SmolLM2's vocabulary of 49,152 tokens."""
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """Requests of one role of a model.

    Attributes:
        queries: requests without a cached response, which a run would send.
        cached: requests with one.
        characters: of the conversations of `queries`; None if unknown.
        max_tokens: limit of a response; None if there is none.
        is_exact: whether the number of queries is exact, and not that of sentences as the offline rules split them.
    """

    model: str
    queries: int = 0
    cached: int = 0
    characters: int | None = 0
    cached_characters: int = 0
    cached_tokens_in: int = 0
    cached_tokens_out: int = 0
    max_tokens: int | None = None
    is_exact: bool = True

    @property
    def tokens_in(self) -> int | None:
        """Estimated tokens of the conversations; None if unknown."""
        if self.characters is None:
            return None
        ratio = self.cached_characters / self.cached_tokens_in if self.cached_tokens_in else CHARACTERS_PER_TOKEN
        return round(self.characters / ratio)

    @property
    def tokens_out(self) -> tuple[int, int | None]:
        """Lowest and highest estimate of the tokens of the responses: their mean in the cache, or 0 and the limit."""
        if not self.queries:
            return 0, 0
        if self.cached_tokens_out:
            mean = round(self.queries * self.cached_tokens_out / self.cached)
            return mean, mean
        return 0, None if self.max_tokens is None else self.queries * self.max_tokens

    def __add__(self, other: RequestPlan) -> RequestPlan:
        """Return the requests of two runs with the same model, such as repeats."""
        counts = ("queries", "cached", "cached_characters", "cached_tokens_in", "cached_tokens_out")
        sums: dict[str, Any] = {name: getattr(self, name) + getattr(other, name) for name in counts}
        known = None not in (self.characters, other.characters)
        sums["characters"] = (self.characters or 0) + (other.characters or 0) if known else None
        return replace(self, **sums, is_exact=self.is_exact and other.is_exact)


def plan_requests(client: ChatClient, requests: Sequence[ChatRequest[T]]) -> tuple[RequestPlan, list[T | None]]:
    """Count the requests that have no cached response, and return the cached values; nothing is sent.

    The values are in the order of the requests; None where a response is missing or invalid.
    """
    parameters = client.identity.get("parameters", {})
    limit = next((parameters[name] for name in _LIMITS if parameters.get(name)), None)
    plan = none = RequestPlan(str(client.identity.get("model", "the model")), max_tokens=limit)
    values: list[T | None] = []
    seen: set[tuple[str, tuple[Message, ...]]] = set()
    for request in requests:
        cached = client.cached_response(request)
        value = None
        if cached is not None and not cached.cut:
            with suppress(ValueError):
                value = request.parse(cached.text)
        values.append(value)
        conversation = request.prefix.sha256, request.messages
        if conversation in seen:
            continue
        seen.add(conversation)
        characters = sum(len(content) for _, content in (*request.prefix.messages, *request.messages))
        if cached is None:
            plan += replace(none, queries=1, characters=characters)
        else:
            plan += replace(
                none,
                cached=1,
                cached_characters=characters,
                cached_tokens_in=cached.tokens_in,
                cached_tokens_out=cached.tokens_out,
            )
    return plan, values
