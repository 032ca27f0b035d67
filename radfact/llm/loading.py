"""Load a chat client by the name of its model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from radfact.errors import ErrorCode, InputError, option_error
from radfact.llm.cache import ResponseCache
from radfact.llm.client import MAX_INVALID, ChatClient
from radfact.llm.protocol import NO_PREFIX, REPAIRS, ChatBackend, ChatRequest, Message, PromptPrefix
from radfact.llm.response_text import bodies

CONCURRENCY_OWN_SERVER = 64
"""Calls in flight to the user's own server: enough for continuous batching to fill a GPU."""
CONCURRENCY_PROVIDER = 16
"""Calls in flight to a provider: most rate limits are lower."""
TIMEOUT = 600.0
"""Default timeout of one call in seconds."""
_SECRETS = frozenset({"key", "apikey", "secret", "password", "credentials", "authorization"})


def load_chat_client(
    name: str,
    *,
    base_url: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    concurrency: int | None = None,
    max_invalid: int | None = None,
    cache: Path | ResponseCache | None = None,
) -> ChatClient:
    """Create the client of a model; imports only what this model needs.

    Args:
        name: "PROVIDER:MODEL" for a chat model through LangChain; "openai:MODEL" with `base_url` for any server with
            the OpenAI protocol; "vllm:PATH" for a model in this process; "mock:NAME" for a `MockChatModel`.
        base_url: address of the server, http://HOST:PORT/v1.
        parameters: sampling parameters and further arguments of the model's server, class or engine, all part of the
            cache key; `merge_system`, as in `ChatClient`; and `timeout`, the seconds for one call (600), which is no
            part of the key. A value of None omits a parameter
            (some models accept no temperature, others not together with top_p). A mock model takes `responses`.
        concurrency: calls in flight; by default 64 to the user's own server and in process, 16 to a provider.
        max_invalid: as in `ChatClient`; 10 by default.
        cache: response cache, or its folder.

    Raises:
        InputError: an unknown provider, a missing package or key, or an invalid address, option or cache.
    """
    provider, colon, model = name.partition(":")
    if not (colon and provider and model):
        message = f"expected PROVIDER:MODEL as in openai:gpt-4o, found '{name}'"
        raise option_error(message, "judge", ErrorCode.UNKNOWN_NAME)
    if base_url is not None and provider != "openai":
        message = f"expected openai:MODEL with an address (any server with the OpenAI protocol), found '{name}'"
        raise option_error(message, "base_url", ErrorCode.CONFLICTING_OPTIONS)
    is_own = base_url is not None or provider in ("vllm", "mock")
    concurrency = (CONCURRENCY_OWN_SERVER if is_own else CONCURRENCY_PROVIDER) if concurrency is None else concurrency
    if concurrency < 1:
        raise option_error(f"expected a whole number of at least 1, found {concurrency}", "concurrency")
    parameters = {key: value for key, value in (parameters or {}).items() if value is not None}
    timeout = parameters.pop("timeout", TIMEOUT)
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise option_error(f"expected seconds above 0, found '{timeout}'", "judge_args.timeout")
    if not isinstance(merge_system := parameters.get("merge_system", False), bool):
        raise option_error(f"expected true or false, found '{merge_system}'", "judge_args.merge_system")
    sent = {key: value for key, value in parameters.items() if key != "merge_system"}
    backend, more = _backend(provider, model, base_url, sent, float(timeout))
    # A function of a mock model is no JSON value.
    recorded = {key: str(value) if key == "responses" else value for key, value in parameters.items()}
    identity = {"model": name, "base_url": base_url, "parameters": recorded, **more}
    return ChatClient(
        backend,
        identity,
        concurrency=concurrency,
        cache=ResponseCache(cache) if isinstance(cache, str | Path) else cache,
        max_invalid=MAX_INVALID if max_invalid is None else max_invalid,
    )


def _backend(
    provider: str, model: str, base_url: str | None, parameters: Mapping[str, Any], timeout: float
) -> tuple[ChatBackend, dict[str, Any]]:
    """Return the backend of a model, and what else identifies the model."""
    if base_url is not None:
        from radfact.llm.http import HttpBackend

        return HttpBackend(model, base_url, parameters, timeout=timeout), {}
    if provider == "vllm":
        from radfact.llm.vllm import VLLMBackend, fingerprint

        backend = VLLMBackend(model, parameters)
        return backend, {"model_sha256": fingerprint(backend.model)}
    if provider == "mock":
        from radfact.llm.mock import MockChatModel

        if "responses" not in parameters:
            message = "expected the responses of the mock model"
            raise option_error(message, "judge_args.responses", ErrorCode.MISSING_OPTION)
        return MockChatModel(parameters["responses"]), {}
    from radfact.llm.langchain import LangChainBackend, load_chat_model

    return LangChainBackend(load_chat_model(f"{provider}:{model}", parameters), timeout=timeout), {}


def parse_model_args(model_args: Mapping[str, Any] | None, *, field: str = "judge_args") -> dict[str, Any]:
    """Parse the values of `--judge-arg NAME=VALUE` as YAML: numbers, booleans, lists or text.

    Args:
        model_args: values by name; values that are no text stay as they are.
        field: name of the option in errors.

    Raises:
        InputError: an argument that looks like a key; keys come only from the environment.
    """
    from radfact.io.yaml_files import parse_yaml

    values: dict[str, Any] = {}
    for name, value in (model_args or {}).items():
        try:
            values[name] = parse_yaml(value) if isinstance(value, str) else value
        except InputError:
            values[name] = value
        if any(map(_is_secret, _nested_names(name, values[name]))):
            message = "expected no key; set it in the environment (for example OPENAI_API_KEY)"
            raise option_error(message, f"{field}.{name}")
    return values


def _is_secret(name: str) -> bool:
    words = name.lower().replace("-", "_").split("_")
    # A token at the end is a secret (hf_token); elsewhere it is a piece of text (stop_token_ids).
    return words[-1] == "token" or not _SECRETS.isdisjoint(words)


def _nested_names(name: str, value: Any) -> list[str]:
    nested = value.items() if isinstance(value, dict) else ()
    return [name, *(inner for key, item in nested for inner in _nested_names(str(key), item))]


ModelT = TypeVar("ModelT", bound=BaseModel)
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
    """Build a request for a response in a JSON schema, which the client repeats without one if the server refuses it.

    Args:
        messages: the conversation, or its part after `prefix`.
        model: pydantic model of the response; OpenAI's strict mode requires `extra="forbid"` and no defaults.
        convert: makes the result of a valid response; may raise ValueError.
        parse_text: reads a response that is no JSON of this schema, or raises ValueError with what is wrong.
        prefix: beginning of the conversation that is shared with other requests.
        repairs: how often an invalid response is returned to the model.
    """

    def parse(text: str) -> T:
        for body in bodies(text):
            try:
                response = model.model_validate_json(body)
            except ValueError:
                continue
            return convert(response)
        return parse_text(text)

    schema = model.model_json_schema()
    return ChatRequest(messages, parse, prefix=prefix, schema=schema, schema_required=False, repairs=repairs)
