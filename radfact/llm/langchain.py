"""Every provider that LangChain has a chat model for; only the partner package of the one asked for is imported."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from radfact.errors import InputError
from radfact.llm.call_errors import CallError, check_withheld, error_message, is_page, page_error, redact, status_error
from radfact.llm.protocol import CachedResponse, Message, PromptPrefix

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, BaseMessage

PARTNERS = {
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
"""Module and class by provider; the extra that brings them has the provider's name, with dashes."""
# Where the providers say why an answer ended, and how they say that the limit of tokens did it.
_ENDINGS = ("finish_reason", "stop_reason", "stopReason", "done_reason")
_CUT = frozenset({"length", "max_tokens", "model_length"})


def load_chat_model(name: str, parameters: Mapping[str, Any]) -> BaseChatModel:
    """A LangChain chat model.

    Args:
        name: "PROVIDER:MODEL".
        parameters: sampling parameters and whatever else the provider's class takes.

    Raises:
        InputError: an unknown provider, a partner package that is missing (with the command that installs it), a key
            that is not in the environment, or a parameter that the provider does not take.
    """
    provider, _, model = name.partition(":")
    if provider not in PARTNERS:
        raise InputError(f"unknown provider '{provider}'; known are {', '.join(sorted(PARTNERS))}", field="judge")
    module, class_name = PARTNERS[provider]
    try:
        chat_class = getattr(importlib.import_module(module), class_name)
    except ImportError:
        command = f'pip install "maira-radfact[{provider.replace("_", "-")}]"'
        raise InputError(f"the provider '{provider}' needs its package: {command}", field="judge") from None
    if provider == "openai" and not os.environ.get("OPENAI_API_KEY"):
        raise InputError("set OPENAI_API_KEY in the environment, or give the address of your own server", field="judge")
    arguments: dict[str, Any] = {"model": model, **parameters}
    if provider == "ollama":
        if "max_tokens" in arguments:
            arguments["num_predict"] = arguments.pop("max_tokens")
    elif "max_retries" in chat_class.model_fields:
        # Retries are the client's, which counts them; two layers of waiting would multiply.
        arguments["max_retries"] = 0
    try:
        chat_model: BaseChatModel = chat_class(**arguments)
    except Exception as error:
        reason = " ".join(redact(str(error)).split())
        raise InputError(f"{name} cannot be set up: {reason:.300}", field="judge") from None
    if overlooked := _overlooked(chat_model, arguments):
        raise InputError(
            f"{class_name} takes no '{overlooked}'; leave it out with {overlooked}=null",
            field=f"judge_args.{overlooked}",
        )
    return chat_model


def _overlooked(chat_model: BaseChatModel, arguments: Mapping[str, Any]) -> str | None:
    """An argument that the class swallowed, or leaves out for this model: it would stand in the results unsent."""
    fields = type(chat_model).model_fields
    names = {name: name for name in fields} | {field.alias: name for name, field in fields.items() if field.alias}
    kept = {name for name, field in names.items() if getattr(chat_model, field) is not None}
    kept |= getattr(chat_model, "model_kwargs", {}).keys()
    return next((name for name in arguments if name not in kept), None)


class LangChainBackend:
    """A LangChain chat model behind the protocol of this package."""

    def __init__(self, model: BaseChatModel, *, timeout: float = 600.0) -> None:
        """Take a chat model, with its sampling parameters set, and the seconds for one call."""
        self._model, self._timeout = model, timeout
        self._prefixes: dict[str, list[BaseMessage]] = {}

    async def complete(
        self, prefix: PromptPrefix, messages: Sequence[Message], schema: Mapping[str, Any] | None
    ) -> CachedResponse:
        """See `ChatBackend`."""
        from langchain_core.messages import convert_to_messages

        if prefix.sha256 not in self._prefixes:
            self._prefixes[prefix.sha256] = convert_to_messages(list(prefix.messages))
        conversation = [*self._prefixes[prefix.sha256], *convert_to_messages(list(messages))]
        model = self._model if schema is None else self._bound(schema)
        try:
            async with asyncio.timeout(self._timeout):
                reply = await model.ainvoke(conversation)
        except Exception as error:
            # OpenAI's client makes errors of answers in a schema that end early.
            if type(error).__name__ == "LengthFinishReasonError":
                return _cut_off(error)
            if type(error).__name__ == "ContentFilterFinishReasonError":
                check_withheld(["content_filter"], None)
            raise _fault(error, self._timeout) from None
        if isinstance(reply, dict):
            return _stored(reply["raw"], None if reply["parsed"] is None else json.dumps(reply["parsed"], default=str))
        return _stored(reply)

    def _bound(self, schema: Mapping[str, Any]) -> Any:
        """The model made to answer in a schema: as a response format of the protocol, else as LangChain knows how."""
        if type(self._model).__module__.startswith("langchain_openai"):
            form = {"name": "answer", "strict": True, "schema": dict(schema)}
            return self._model.bind(response_format={"type": "json_schema", "json_schema": form})
        try:
            # Tool calls, which many providers make of it, want a name.
            return self._model.with_structured_output({"title": "answer", **schema}, include_raw=True)
        except (NotImplementedError, ValueError, TypeError):
            kind = type(self._model).__name__
            raise InputError(f"{kind} cannot answer in a JSON schema; use the format yaml", field="format") from None

    async def close(self) -> None:
        """Nothing to give back: LangChain's classes close their connections themselves."""


def _stored(reply: AIMessage, text: str | None = None) -> CachedResponse:
    usage = reply.usage_metadata or {"input_tokens": 0, "output_tokens": 0}
    endings = [reply.response_metadata[name] for name in _ENDINGS if name in reply.response_metadata]
    text = str(reply.text) if text is None else text
    check_withheld(endings, None if text else reply.additional_kwargs.get("refusal"))
    cut = not _CUT.isdisjoint(str(ending).lower() for ending in endings)
    return CachedResponse(text, usage["input_tokens"], usage["output_tokens"], cut)


def _cut_off(error: Any) -> CachedResponse:
    """The answer in OpenAI's error of one that reached the limit of tokens."""
    usage = error.completion.usage
    return CachedResponse(
        text=error.completion.choices[0].message.content or "",
        tokens_in=usage.prompt_tokens if usage else 0,
        tokens_out=usage.completion_tokens if usage else 0,
        cut=True,
    )


def _fault(error: Exception, timeout: float) -> CallError:
    """What a provider's error means; their classes differ, the attributes hardly."""
    body = getattr(error, "body", None)
    said = error_message(body) if body else str(error)
    for one in (error, error.__cause__):
        status, headers = _reply(one)
        if status is not None and status >= 300:
            waits = [value for name, value in headers.items() if str(name).lower() == "retry-after"]
            return status_error(status, said, str(waits[0]) if waits else None)
    # JSON's error has the whole text, LangChain's quotes it.
    if is_page(getattr(error, "doc", None) or said[said.find("<") :]):
        return page_error()
    causes = " ".join(_class_names(one) for one in (error, error.__cause__, error.__context__) if one is not None)
    if "ConnectError" in causes or "ConnectTimeout" in causes or "ConnectorError" in causes:
        return CallError("unreachable", "no connection")
    if "Timeout" in causes:
        return CallError("slow", f"no answer within {timeout:g} s")
    if any(word in causes for word in ("ConnectionError", "TransportError", "ProtocolError", "JSONDecodeError")):
        return CallError("broken", "the connection broke off")
    return CallError("refused", type(error).__name__, said=said)


def _reply(error: BaseException | None) -> tuple[int | None, Mapping[str, Any]]:
    """HTTP status and headers of the reply that an error tells of."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore's
        told = response.get("ResponseMetadata", {})
        return told.get("HTTPStatusCode"), told.get("HTTPHeaders", {})
    headers = getattr(response, "headers", None) or {}
    for holder in (error, response):
        for name in ("status_code", "code", "http_status"):
            value = getattr(holder, name, None)
            if isinstance(value, int):
                return value, headers
    return None, headers


def _class_names(error: BaseException) -> str:
    return " ".join(cls.__name__ for cls in type(error).__mro__)
