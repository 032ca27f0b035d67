"""Providers with a LangChain chat model; imports only the partner package of the requested provider."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from radfact.errors import ErrorCode, option_error
from radfact.llm import call_errors
from radfact.llm.protocol import CachedResponse, Message, PromptPrefix, response_format
from radfact.llm.response_text import message_text

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage

PARTNERS: dict[str, Sequence[str]] = call_errors.PROVIDERS["packages"]
"""Module and class by provider; the extra that installs them is the provider's name with dashes."""
# Metadata fields with the reason why a response ended, and the reasons that mean the limit of tokens.
_ENDINGS = ("finish_reason", "stop_reason", "stopReason", "done_reason")
_UNREADABLE = (ValueError, TypeError, AttributeError, LookupError, RecursionError, ArithmeticError)
_CUT = frozenset({"length", "max_tokens", "model_length"})


def load_chat_model(name: str, parameters: Mapping[str, Any]) -> BaseChatModel:
    """Load the LangChain chat model PROVIDER:MODEL with its sampling parameters and further arguments."""
    provider, _, model = name.partition(":")
    if provider not in PARTNERS:
        known = ", ".join(sorted(PARTNERS))
        raise option_error(f"expected a provider of {known}, found '{provider}'", "judge", ErrorCode.UNKNOWN_NAME)
    module, class_name = PARTNERS[provider]
    try:
        chat_class = getattr(importlib.import_module(module), class_name)
    except ImportError:
        command = f'pip install "maira-radfact[{provider.replace("_", "-")}]"'
        message = f"the provider '{provider}' needs its package: {command}"
        raise option_error(message, "judge", ErrorCode.MISSING_REQUIREMENT) from None
    if provider == "openai" and not os.environ.get("OPENAI_API_KEY"):
        message = "expected OPENAI_API_KEY in the environment, or the address of your own server"
        raise option_error(message, "judge", ErrorCode.MISSING_REQUIREMENT)
    for variable, key in os.environ.items():
        if variable.endswith("_API_KEY") and variable.startswith(provider.split("_")[0].upper()):
            call_errors.check_key(variable, key)
    arguments: dict[str, Any] = {"model": model, **parameters}
    if provider == "ollama":
        if "max_tokens" in arguments:
            arguments["num_predict"] = arguments.pop("max_tokens")
    elif "max_retries" in chat_class.model_fields:
        # The client retries and counts; two layers of waiting would multiply.
        arguments["max_retries"] = 0
    try:
        chat_model: BaseChatModel = chat_class(**arguments)
    except Exception as error:
        reason = " ".join(call_errors.redact(str(error)).split())
        raise option_error(f"cannot set up {name}: {reason:.300}", "judge") from None
    # Results would record an argument that the class ignores for this model, but it would not be sent.
    fields = type(chat_model).model_fields
    names = {name: name for name in fields} | {field.alias: name for name, field in fields.items() if field.alias}
    used = {name for name, field in names.items() if getattr(chat_model, field) is not None}
    used |= getattr(chat_model, "model_kwargs", {}).keys()
    if ignored := next((name for name in arguments if name not in used), None):
        message = f"{class_name} does not accept '{ignored}'; omit it with {ignored}=null"
        raise option_error(message, f"judge_args.{ignored}")
    return chat_model


class LangChainBackend:
    """A LangChain chat model with its sampling parameters as a `ChatBackend`; the timeout is in seconds."""

    def __init__(self, model: BaseChatModel, *, timeout: float = 600.0) -> None:
        self._model, self._timeout = model, timeout

    async def complete(
        self, prefix: PromptPrefix, messages: Sequence[Message], schema: Mapping[str, Any] | None
    ) -> CachedResponse:
        from langchain_core.messages import convert_to_messages

        conversation = convert_to_messages([*prefix.messages, *messages])
        model = self._model if schema is None else self._with_schema(schema)
        try:
            async with asyncio.timeout(self._timeout):
                reply = await model.ainvoke(conversation)
            if isinstance(reply, dict):
                parsed = reply["parsed"]
                return _to_response(reply["raw"], None if parsed is None else json.dumps(parsed, default=str))
            return _to_response(reply)
        except Exception as error:
            raise error if isinstance(error, call_errors.CallError) else _call_error(error, self._timeout) from None

    def _with_schema(self, schema: Mapping[str, Any]) -> Any:
        """Bind a JSON schema: as a response format of the OpenAI protocol, otherwise through LangChain."""
        if type(self._model).__module__.startswith("langchain_openai"):
            # As a further field of the body: OpenAI's client raises for what it parses itself if the response is cut.
            more: dict[str, Any] = getattr(self._model, "extra_body", None) or {}
            return self._model.bind(extra_body={**more, **response_format(schema)})
        try:
            # Many providers implement it by tool calls, which need a name.
            return self._model.with_structured_output({"title": "answer", **schema}, include_raw=True)
        except (NotImplementedError, ValueError, TypeError):
            message = f"{type(self._model).__name__} does not support JSON schemas; use --format yaml"
            raise option_error(message, "format", ErrorCode.CONFLICTING_OPTIONS) from None

    async def close(self) -> None:
        """Do nothing: LangChain's classes close their connections themselves."""


def _to_response(reply: AIMessage, text: str | None = None) -> CachedResponse:
    usage = reply.usage_metadata or {"input_tokens": 0, "output_tokens": 0}
    endings = [reply.response_metadata[name] for name in _ENDINGS if name in reply.response_metadata]
    text = message_text({**reply.additional_kwargs, "content": reply.content}) if text is None else text
    call_errors.check_withheld(endings, None if text else reply.additional_kwargs.get("refusal"))
    cut = not _CUT.isdisjoint(str(ending).lower() for ending in endings)
    return CachedResponse(text, usage["input_tokens"], usage["output_tokens"], cut)


def _call_error(error: Exception, timeout: float) -> call_errors.CallError:
    """Classify a provider's error by its attributes, which differ less than the classes."""
    body = getattr(error, "body", None)
    message = call_errors.error_message(body) if body else str(error)
    for exception in (error, error.__cause__):
        status, headers = _status_and_headers(exception)
        if status is not None and status >= 300:
            waits = [value for name, value in headers.items() if str(name).lower() == "retry-after"]
            return call_errors.status_error(status, message, str(waits[0]) if waits else None)
    # The JSON decoder's error holds the whole text, LangChain's quotes it.
    if page := call_errors.page_error(getattr(error, "doc", None) or message[message.find("<") :]):
        return page
    chain = (error, error.__cause__, error.__context__)
    causes = " ".join(cls.__name__ for exception in chain for cls in type(exception).__mro__)
    if "ConnectError" in causes or "ConnectTimeout" in causes or "ConnectorError" in causes:
        return call_errors.CallError("unreachable", "no connection")
    if "Timeout" in causes:
        return call_errors.CallError("slow", f"no answer within {timeout:g} s")
    if any(word in causes for word in ("ConnectionError", "TransportError", "ProtocolError", "JSONDecodeError")):
        return call_errors.CallError("broken", "the connection broke off")
    if isinstance(error, ValueError) and error.args and isinstance(error.args[0], Mapping):
        return call_errors.body_error({"error": error.args[0]}) or call_errors.incomplete_error()
    # What fails while a reply is read; a provider's class that does not know an argument raises TypeError before.
    if isinstance(error, _UNREADABLE) and "unexpected keyword" not in message:
        return call_errors.incomplete_error()
    return call_errors.CallError("refused", type(error).__name__, server_message=message)


def _status_and_headers(error: BaseException | None) -> tuple[int | None, Mapping[str, Any]]:
    """Return the HTTP status and headers of the reply behind an error."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore's
        metadata = response.get("ResponseMetadata", {})
        return metadata.get("HTTPStatusCode"), metadata.get("HTTPHeaders", {})
    headers = getattr(response, "headers", None) or {}
    for holder in (error, response):
        for name in ("status_code", "code", "http_status"):
            value = getattr(holder, name, None)
            if isinstance(value, int):
                return value, headers
    return None, headers
