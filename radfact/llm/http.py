"""Servers with the OpenAI chat-completions protocol (vLLM, llama.cpp, TGI), called with little overhead."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from radfact.errors import option_error
from radfact.llm import call_errors
from radfact.llm.protocol import CachedResponse, Message, PromptPrefix, messages_json, response_format
from radfact.llm.response_text import message_text

if TYPE_CHECKING:
    import aiohttp

CONNECT_SECONDS = 5.0
MAX_RESPONSE_BYTES = 16 << 20
"""Maximum size of a response: a report and its reasoning have a few thousand tokens."""
_PIECE_BYTES = 1 << 16
# Set by the client; a stream or several choices could not be read.
_RESERVED = ("model", "messages", "n", "stream", "response_format", "max_retries")


class HttpBackend:
    """The user's own server, called with aiohttp; key and proxies come from the environment."""

    def __init__(self, model: str, base_url: str, parameters: Mapping[str, Any], *, timeout: float = 600.0) -> None:
        self._url = f"{_checked_address(base_url)}/chat/completions"
        fields = {**parameters, **(parameters.get("extra_body") or {})}
        fields.pop("extra_body", None)
        for name, value in fields.items():
            if name in _RESERVED:
                raise option_error("expected no such parameter: the client sets it", f"judge_args.{name}")
            try:
                json.dumps(value, allow_nan=False)
            except (TypeError, ValueError):
                raise option_error(f"expected a JSON value, found '{value}'", f"judge_args.{name}") from None
        self._fields = {"model": model, "stream": False, **fields}
        # A body that is not compressed cannot be larger than what is received.
        self._headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if key := os.environ.get("OPENAI_API_KEY", "").strip():
            call_errors.check_key("OPENAI_API_KEY", key)
            self._headers["Authorization"] = f"Bearer {key}"
        # Looked up once instead of for every request.
        address = urlsplit(base_url)
        self._proxy = None if proxy_bypass(address.netloc) else getproxies().get(address.scheme)
        self._timeout = timeout
        self._session: aiohttp.ClientSession | None = None

    async def complete(
        self, prefix: PromptPrefix, messages: Sequence[Message], schema: Mapping[str, Any] | None
    ) -> CachedResponse:
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(
                # The client limits the requests in flight.
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=self._timeout, sock_connect=CONNECT_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        fields = self._fields if schema is None else {**self._fields, **response_format(schema)}
        # The messages of a prefix are serialized once.
        body = b"".join(
            (b'{"messages":[', prefix.json, messages_json(messages), b"],", json.dumps(fields)[1:].encode())
        )
        try:
            async with self._session.post(
                self._url, data=body, headers=self._headers, proxy=self._proxy, allow_redirects=False
            ) as reply:
                received = bytearray()
                # Piece by piece: a few kilobytes can decompress to gigabytes.
                async for piece in reply.content.iter_chunked(_PIECE_BYTES):
                    received += piece
                    if len(received) > MAX_RESPONSE_BYTES:
                        raise call_errors.CallError("stopped", f"a response of more than {MAX_RESPONSE_BYTES >> 20} MB")
                raw = bytes(received)
                if reply.status != 200:
                    raise call_errors.status_error(reply.status, _server_message(raw), reply.headers.get("Retry-After"))
        except aiohttp.ClientConnectorCertificateError:
            raise call_errors.CallError("stopped", "the server's certificate is not trusted") from None
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
            raise call_errors.CallError("unreachable", "no connection") from None
        except TimeoutError:
            raise call_errors.CallError("slow", f"no answer within {self._timeout:g} s") from None
        except (aiohttp.ClientError, OSError):
            raise call_errors.CallError("broken", "the connection broke off") from None
        return _read_response(raw)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


def _checked_address(base_url: str) -> str:
    try:
        parts = urlsplit(base_url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable:
        raise option_error(f"expected http://HOST:PORT/v1, found '{base_url}'", "base_url")
    if "@" in parts.netloc or parts.query or parts.fragment:
        message = "expected no user name, password or query in the address; keys come from the environment"
        raise option_error(message, "base_url")
    return base_url.rstrip("/")


def _read_response(raw: bytes) -> CachedResponse:
    try:
        body = json.loads(raw)
        if error := call_errors.body_error(body):
            raise error
        choice, usage = body["choices"][0], body.get("usage") or {}
        text, reason = message_text(choice["message"]), choice.get("finish_reason")
        call_errors.check_withheld([reason], None if text else choice["message"].get("refusal"))
        tokens = [0 if (count := usage.get(name)) is None else count for name in ("prompt_tokens", "completion_tokens")]
        return CachedResponse(text, tokens[0], tokens[1], cut=reason == "length")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        raise call_errors.page_error(raw.decode(errors="replace")) or call_errors.incomplete_error() from None


def _server_message(raw: bytes) -> str:
    text = raw.decode(errors="replace")
    try:
        return call_errors.error_message(json.loads(text))
    except (ValueError, RecursionError):
        return "" if "<html" in text.lower() else text
