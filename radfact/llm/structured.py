"""Structured responses: a JSON schema first, free text as the fallback for servers without schemas."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from radfact.llm.protocol import NO_PREFIX, REPAIRS, ChatRequest, Message, PromptPrefix
from radfact.llm.response_text import bodies

if TYPE_CHECKING:
    from pydantic import BaseModel

ModelT = TypeVar("ModelT", bound="BaseModel")
T = TypeVar("T")


def structured_request(
    messages: tuple[Message, ...],
    model: type[ModelT],
    convert: Callable[[ModelT], T],
    parse_text: Callable[[str], T],
    *,
    prefix: PromptPrefix = NO_PREFIX,
    repairs: int = REPAIRS,
) -> ChatRequest[T]:
    """Build a request for a JSON response that falls back to free text.

    The server is asked to follow the model's JSON schema. If it refuses schemas, the client repeats the request without
    one. A response that is no JSON of this schema is read by `parse_text`.

    Args:
        messages: the conversation, or its part after `prefix`.
        model: pydantic model of the response; OpenAI's strict mode requires `extra="forbid"` and no defaults.
        convert: makes the result of a valid response; may raise ValueError.
        parse_text: reads a response in free text, or raises ValueError with what is wrong.
        prefix: beginning of the conversation that is shared with other requests.
        repairs: how often an invalid response is returned to the model.
    """

    def parse(text: str) -> T:
        for body in bodies(text):
            if body.startswith("{"):
                try:
                    response = model.model_validate_json(body)
                except ValueError:
                    continue
                return convert(response)
        return parse_text(text)

    schema = model.model_json_schema()
    return ChatRequest(messages, parse, prefix=prefix, schema=schema, schema_required=False, repairs=repairs)
