"""Servers with the OpenAI chat-completions protocol (vLLM, llama.cpp, TGI), called with little overhead."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from radfact.errors import ErrorCode, InputError
from radfact.llm.call_errors import (
    CallError,
    check_key,
    check_withheld,
    error_message,
    is_page,
    page_error,
    status_error,
)
from radfact.llm.protocol import CachedResponse, Message, PromptPrefix, messages_json

if TYPE_CHECKING:
    import aiohttp

CONNECT_SECONDS = 5.0
MAX_RESPONSE_BYTES = 16 << 20
"""Maximum size of a response: a report and its reasoning have a few thousand tokens."""
_PIECE_BYTES = 1 << 16
# Set by the client; a stream or several choices could not be read.
_RESERVED = ("model", "messages", "n", "stream", "response_format", "max_retries")


class HttpBackend:
    """The user's own server, called with aiohttp; the prefix of the conversations is serialized once."""

    def __init__(self, model: str, base_url: str, parameters: Mapping[str, Any], *, timeout: float = 600.0) -> None:
        """Prepare the requests.

        The key is OPENAI_API_KEY of the environment, if set; proxies come from the environment as well.

        Args:
            model: name of the model at the server.
            base_url: address of the server, as in http://HOST:PORT/v1.
            parameters: fields of the request (temperature, max_tokens, ...); those in `extra_body` are fields too.
            timeout: seconds for one request and its response.

        Raises:
            InputError: an invalid address, or a parameter that the client sets itself.
        """
        self._url = f"{_checked_address(base_url)}/chat/completions"
        fields = {**parameters, **(parameters.get("extra_body") or {})}
        fields.pop("extra_body", None)
        for name, value in fields.items():
            if name in _RESERVED:
                raise _invalid_option("expected no such parameter: the client sets it", f"judge_args.{name}")
            if not _is_json(value):
                raise _invalid_option(f"expected a JSON value, found '{value}'", f"judge_args.{name}")
        tail = json.dumps({"model": model, "stream": False, **fields})
        self._head, self._tail = b'{"messages":[', b"]," + tail[1:].encode()
        # A body that is not compressed cannot be larger than what is received.
        self._headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if key := os.environ.get("OPENAI_API_KEY", "").strip():
            check_key("OPENAI_API_KEY", key)
            self._headers["Authorization"] = f"Bearer {key}"
        self._proxy = _proxy(base_url)
        self._timeout = timeout
        self._session: aiohttp.ClientSession | None = None

    def body(self, prefix: PromptPrefix, messages: Sequence[Message], schema: Mapping[str, Any] | None) -> bytes:
        """Return the JSON body of a request. See `ChatBackend`."""
        tail = self._tail
        if schema is not None:
            form = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": dict(schema)}}
            tail = tail[:-1] + b',"response_format":' + json.dumps(form).encode() + b"}"
        return b"".join((self._head, prefix.json, messages_json(messages), tail))

    async def complete(
        self, prefix: PromptPrefix, messages: Sequence[Message], schema: Mapping[str, Any] | None
    ) -> CachedResponse:
        """See `ChatBackend`."""
        import aiohttp

        session = self._session or self._open()
        body = self.body(prefix, messages, schema)
        try:
            async with session.post(
                self._url, data=body, headers=self._headers, proxy=self._proxy, allow_redirects=False
            ) as reply:
                raw = await _read_limited(reply)
                if reply.status != 200:
                    raise status_error(reply.status, _server_message(raw), reply.headers.get("Retry-After"))
        except aiohttp.ClientConnectorCertificateError:
            raise CallError("stopped", "the server's certificate is not trusted") from None
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
            raise CallError("unreachable", "no connection") from None
        except TimeoutError:
            raise CallError("slow", f"no answer within {self._timeout:g} s") from None
        except (aiohttp.ClientError, OSError):
            raise CallError("broken", "the connection broke off") from None
        return _read_response(raw)

    def _open(self) -> aiohttp.ClientSession:
        import aiohttp

        self._session = aiohttp.ClientSession(
            # The client limits the requests in flight.
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=self._timeout, sock_connect=CONNECT_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self._session

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()


async def _read_limited(reply: aiohttp.ClientResponse) -> bytes:
    """Return the body of a reply, decompressed piece by piece.

    Raises:
        CallError: the body is larger than any response; a few kilobytes can decompress to gigabytes.
    """
    body = bytearray()
    async for piece in reply.content.iter_chunked(_PIECE_BYTES):
        body += piece
        if len(body) > MAX_RESPONSE_BYTES:
            raise CallError("stopped", f"a response of more than {MAX_RESPONSE_BYTES >> 20} MB")
    return bytes(body)


def _checked_address(base_url: str) -> str:
    try:
        parts = urlsplit(base_url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable:
        raise _invalid_option(f"expected http://HOST:PORT/v1, found '{base_url}'", "base_url")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise _invalid_option(
            "expected no user name, password or query in the address; keys come from the environment", "base_url"
        )
    return base_url.rstrip("/")


def _invalid_option(message: str, field: str) -> InputError:
    return InputError(message, code=ErrorCode.INVALID_OPTION, field=field)


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def _proxy(base_url: str) -> str | None:
    """Return the environment's proxy for an address, looked up once instead of for every request."""
    parts = urlsplit(base_url)
    return None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)


def _read_response(raw: bytes) -> CachedResponse:
    try:
        body = json.loads(raw)
        if error := body.get("error"):
            code = error.get("code") if isinstance(error, dict) else None
            raise status_error(code if isinstance(code, int) and code >= 400 else 500, _server_message(raw))
        choice, usage = body["choices"][0], body.get("usage") or {}
        text, refusal = (choice["message"].get(name) for name in ("content", "refusal"))
        check_withheld([choice.get("finish_reason")], None if text else refusal)
        return CachedResponse(
            text=str(text or ""),
            tokens_in=int(usage.get("prompt_tokens") or 0),
            tokens_out=int(usage.get("completion_tokens") or 0),
            cut=choice.get("finish_reason") == "length",
        )
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        if is_page(raw.decode(errors="replace")):
            raise page_error() from None
        raise CallError("broken", "an incomplete response, or not of the chat-completions protocol") from None


def _server_message(raw: bytes) -> str:
    text = raw.decode(errors="replace")
    try:
        return error_message(json.loads(text))
    except ValueError:
        return "" if "<html" in text.lower() else text
