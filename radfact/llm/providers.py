"""Chat models by name, through LangChain's partner packages; only the one asked for is imported."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from radfact.errors import InputError

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

# provider: (module, class); the package's name is the module's with dashes.
_PARTNERS = {
    "anthropic": ("langchain_anthropic", "ChatAnthropic"),
    "azure_openai": ("langchain_openai", "AzureChatOpenAI"),
    "bedrock": ("langchain_aws", "ChatBedrockConverse"),
    "cohere": ("langchain_cohere", "ChatCohere"),
    "deepseek": ("langchain_deepseek", "ChatDeepSeek"),
    "fireworks": ("langchain_fireworks", "ChatFireworks"),
    "google_genai": ("langchain_google_genai", "ChatGoogleGenerativeAI"),
    "google_vertexai": ("langchain_google_vertexai", "ChatVertexAI"),
    "groq": ("langchain_groq", "ChatGroq"),
    "mistralai": ("langchain_mistralai", "ChatMistralAI"),
    "ollama": ("langchain_ollama", "ChatOllama"),
    "openai": ("langchain_openai", "ChatOpenAI"),
    "together": ("langchain_together", "ChatTogether"),
    "xai": ("langchain_xai", "ChatXAI"),
}
_SECRETS = ("key", "token", "secret", "password")


def split_model_args(model_args: Mapping[str, str] | None) -> dict[str, Any]:
    """Values of `--model-arg NAME=VALUE` as numbers, booleans, lists or text.

    Raises:
        InputError: an argument that looks like a key; keys come only from the environment.
    """
    import yaml

    values: dict[str, Any] = {}
    for name, value in (model_args or {}).items():
        words = name.lower().split("_")
        if any(secret in words for secret in _SECRETS):
            raise InputError(
                "keys come only from the environment (for example OPENAI_API_KEY)", field=f"model_args.{name}"
            )
        try:
            values[name] = yaml.safe_load(value)
        except yaml.YAMLError:
            values[name] = value
    return values


def load_chat_model(name: str, *, base_url: str | None = None, **parameters: Any) -> BaseChatModel:
    """A LangChain chat model.

    Args:
        name: "PROVIDER:MODEL".
        base_url: address of a server that speaks the OpenAI protocol; only with the provider openai.
        parameters: sampling parameters and whatever else the provider's class takes.

    Raises:
        InputError: an unknown provider, a partner package that is missing (with the command that installs it), a key
            that is not in the environment, or a parameter that the provider does not take.
    """
    provider, _, model = name.partition(":")
    if provider not in _PARTNERS:
        raise InputError(f"unknown provider '{provider}'; known are {', '.join(sorted(_PARTNERS))}", field="judge")
    if base_url is not None and provider != "openai":
        raise InputError(
            f"an address goes with openai:{model} (any server that speaks its protocol), not with '{provider}'",
            field="base_url",
        )
    module, class_name = _PARTNERS[provider]
    try:
        chat_class = getattr(importlib.import_module(module), class_name)
    except ImportError:
        package = module.replace("_", "-")
        raise InputError(f"the provider '{provider}' needs its package: pip install {package}", field="judge") from None
    arguments: dict[str, Any] = {"model": model, **parameters}
    # Retries are the client's, which counts them; two layers of waiting would multiply.
    if provider != "ollama":
        arguments.setdefault("max_retries", 0)
    if base_url is not None:
        arguments |= _for_server(base_url, parameters)
    elif provider == "openai" and not os.environ.get("OPENAI_API_KEY"):
        raise InputError("set OPENAI_API_KEY in the environment, or give the address of your own server", field="judge")
    try:
        chat_model: BaseChatModel = chat_class(**arguments)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{name} cannot be set up: {reason:.300}", field="judge") from None
    return chat_model


def _for_server(base_url: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    if not base_url.startswith(("http://", "https://")):
        raise InputError(f"expected http://HOST:PORT/v1, found '{base_url}'", field="base_url")
    if "@" in urlsplit(base_url).netloc:
        raise InputError("no user name or password in the address; keys come from the environment", field="base_url")
    server: dict[str, Any] = {"base_url": base_url}
    if not os.environ.get("OPENAI_API_KEY"):
        server["api_key"] = "none"  # The client insists on one; servers of one's own mostly ask for none.
    if "max_tokens" in parameters:
        # ChatOpenAI renames it to max_completion_tokens, which older servers overlook.
        server["extra_body"] = {"max_tokens": parameters["max_tokens"], **parameters.get("extra_body", {})}
    return server
