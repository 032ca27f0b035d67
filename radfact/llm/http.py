"""Servers that speak the OpenAI chat-completions protocol (vLLM, llama.cpp, TGI), asked with little work."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from radfact.errors import InputError
from radfact.llm.call_errors import CallError, check_withheld, error_message, is_page, page_error, status_error
from radfact.llm.protocol import CachedResponse, Message, PromptPrefix, messages_json

if TYPE_CHECKING:
    import aiohttp

CONNECT_SECONDS = 5.0
# What the judge itself decides; a stream or several answers could not be read.
_TAKEN = ("model", "messages", "n", "stream", "response_format", "max_retries")


class HttpBackend:
    """One server of one's own, asked with aiohttp: the constant prefix of the conversations is serialised once."""

    def __init__(self, model: str, base_url: str, parameters: Mapping[str, Any], *, timeout: float = 600.0) -> None:
        """Take the model's name at the server, its address, and what else each request says.

        The key, if the server wants one, is OPENAI_API_KEY of the environment. Proxies are those of the environment.

        Args:
            model: the name that the server knows the model by.
            base_url: http://HOST:PORT/v1 or the like.
            parameters: fields of the request (temperature, max_tokens, ...); those in `extra_body` are fields too.
            timeout: seconds for one request, its answer included.

        Raises:
            InputError: an address that is none, or a parameter that is not the user's to set.
        """
        self._url = f"{_checked_address(base_url)}/chat/completions"
        fields = {**parameters, **(parameters.get("extra_body") or {})}
        fields.pop("extra_body", None)
        if taken := [name for name in _TAKEN if name in fields]:
            raise InputError("the client sets this itself", field=f"judge_args.{taken[0]}")
        for name, value in fields.items():
            if not _is_json(value):
                raise InputError(f"expected a JSON value, found '{value}'", field=f"judge_args.{name}")
        tail = json.dumps({"model": model, "stream": False, **fields})
        self._head, self._tail = b'{"messages":[', b"]," + tail[1:].encode()
        self._headers = {"Content-Type": "application/json"}
        if key := os.environ.get("OPENAI_API_KEY", "").strip():
            self._headers["Authorization"] = f"Bearer {key}"
        self._proxy = _proxy(base_url)
        self._timeout = timeout
        self._session: aiohttp.ClientSession | None = None

    def body(self, prefix: PromptPrefix, messages: Sequence[Message], schema: Mapping[str, Any] | None) -> bytes:
        """The JSON body of a request."""
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
                raw = await reply.read()
                if reply.status != 200:
                    raise status_error(reply.status, _said(raw), reply.headers.get("Retry-After"))
        except aiohttp.ClientConnectorCertificateError:
            raise CallError("stopped", "the server's certificate is not trusted") from None
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
            raise CallError("unreachable", "no connection") from None
        except TimeoutError:
            raise CallError("slow", f"no answer within {self._timeout:g} s") from None
        except (aiohttp.ClientError, OSError):
            raise CallError("broken", "the connection broke off") from None
        return _answer(raw)

    def _open(self) -> aiohttp.ClientSession:
        import aiohttp

        self._session = aiohttp.ClientSession(
            # How many requests are under way is the client's business, and so it has no limit here.
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=self._timeout, sock_connect=CONNECT_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self._session

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()


def _checked_address(base_url: str) -> str:
    try:
        parts = urlsplit(base_url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable:
        raise InputError(f"expected http://HOST:PORT/v1, found '{base_url}'", field="base_url")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise InputError(
            "no user name, password or query in the address; keys come from the environment", field="base_url"
        )
    return base_url.rstrip("/")


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def _proxy(base_url: str) -> str | None:
    """The environment's proxy for an address, looked up once instead of at every request."""
    parts = urlsplit(base_url)
    return None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)


def _answer(raw: bytes) -> CachedResponse:
    try:
        body = json.loads(raw)
        if error := body.get("error"):
            code = error.get("code") if isinstance(error, dict) else None
            raise status_error(code if isinstance(code, int) and code >= 400 else 500, _said(raw))
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
        raise CallError("broken", "half an answer, or none of the chat-completions protocol") from None


def _said(raw: bytes) -> str:
    text = raw.decode(errors="replace")
    try:
        return error_message(json.loads(text))
    except ValueError:
        return "" if "<html" in text.lower() else text
