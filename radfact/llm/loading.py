"""From the name of a model, as a user writes it, to a client that asks it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from radfact.errors import InputError
from radfact.llm.cache import ResponseCache
from radfact.llm.client import ChatClient
from radfact.llm.protocol import ChatBackend

CONCURRENCY_OWN_SERVER = 64
"""Calls in flight to a model that the user serves: enough for continuous batching to fill a GPU."""

CONCURRENCY_PROVIDER = 16
"""Calls in flight to a provider, whose rate limits are mostly reached with fewer."""

TIMEOUT = 600.0
"""Seconds for one call."""

_SECRETS = frozenset({"key", "apikey", "secret", "password", "credentials", "authorization"})


def load_chat_client(
    name: str,
    *,
    base_url: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    concurrency: int | None = None,
    cache: Path | None = None,
) -> ChatClient:
    """A client for a model; only what this one needs is imported.

    Args:
        name: "PROVIDER:MODEL" for a chat model through LangChain; "openai:MODEL" with `base_url` for any server that
            speaks the OpenAI protocol; "vllm:PATH" for a model in this process.
        base_url: address of such a server, http://HOST:PORT/v1.
        parameters: sampling parameters and whatever else the model's server, class or engine takes, all of it part of
            the key of the answers; and `timeout`, the seconds for one call (600), which is not. None leaves one out
            (some models take no temperature, some not together with top_p).
        concurrency: calls in flight; by default 64 for a model that the user serves, 16 for a provider.
        cache: folder of the answers, so that none is paid for twice.

    Raises:
        InputError: an unknown provider, a missing package or key, an address, option or cache that does not fit.
    """
    provider, colon, model = name.partition(":")
    if not (colon and provider and model):
        raise InputError(f"unknown model '{name}'; use PROVIDER:MODEL as in openai:gpt-4o", field="judge")
    if base_url is not None and provider != "openai":
        raise InputError(
            f"an address goes with openai:MODEL (any server that speaks its protocol), not with '{provider}'",
            field="base_url",
        )
    own = base_url is not None or provider == "vllm"
    if concurrency is None:
        concurrency = CONCURRENCY_OWN_SERVER if own else CONCURRENCY_PROVIDER
    elif concurrency < 1:
        raise InputError(f"expected a whole number of at least 1, found {concurrency}", field="concurrency")
    parameters = {key: value for key, value in (parameters or {}).items() if value is not None}
    timeout = _seconds(parameters.pop("timeout", TIMEOUT))
    backend = _backend(provider, model, base_url, parameters, timeout)
    identity: dict[str, Any] = {"model": name, "base_url": base_url, "parameters": parameters}
    if provider == "vllm":
        from radfact.llm.vllm import fingerprint

        identity["model_sha256"] = fingerprint(model)
    answers = None if cache is None else ResponseCache(cache)
    return ChatClient(backend, identity, concurrency=concurrency, cache=answers)


def _backend(
    provider: str, model: str, base_url: str | None, parameters: Mapping[str, Any], timeout: float
) -> ChatBackend:
    if base_url is not None:
        from radfact.llm.http import HttpBackend

        return HttpBackend(model, base_url, parameters, timeout=timeout)
    if provider == "vllm":
        from radfact.llm.vllm import VLLMBackend

        return VLLMBackend(model, parameters)
    from radfact.llm.langchain import LangChainBackend, load_chat_model

    return LangChainBackend(load_chat_model(f"{provider}:{model}", parameters), timeout=timeout)


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise InputError(f"expected seconds above 0, found '{value}'", field="judge_args.timeout")
    return float(value)


def parse_model_args(model_args: Mapping[str, Any] | None, *, field: str = "judge_args") -> dict[str, Any]:
    """Values of `--judge-arg NAME=VALUE` as numbers, booleans, lists or text, as YAML reads them.

    Args:
        model_args: values by name; what is no text stays as it is.
        field: what the option is called in errors.

    Raises:
        InputError: an argument that looks like a key; keys come only from the environment.
    """
    import yaml

    values: dict[str, Any] = {}
    for name, value in (model_args or {}).items():
        try:
            values[name] = yaml.safe_load(value) if isinstance(value, str) else value
        except yaml.YAMLError:
            values[name] = value
        if any(map(_is_secret, _names(name, values[name]))):
            raise InputError(
                "keys come only from the environment (for example OPENAI_API_KEY)", field=f"{field}.{name}"
            )
    return values


def _is_secret(name: str) -> bool:
    words = name.lower().replace("-", "_").split("_")
    # A token at the end is a secret (hf_token); elsewhere it is a piece of text (stop_token_ids).
    return words[-1] == "token" or not _SECRETS.isdisjoint(words)


def _names(name: str, value: Any) -> list[str]:
    inner = (
        [deeper for key, item in value.items() for deeper in _names(str(key), item)] if isinstance(value, dict) else []
    )
    return [name, *inner]
