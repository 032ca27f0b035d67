"""Access checks of the review server (host, token, origin, request size) and security headers."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import logging
import socket
import traceback
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from radfact.errors import InputError
from radfact.io.jsonl import read_text

MAX_REQUEST_BYTES = 1 << 18
"""Largest request body."""

_MIN_TOKEN_LENGTH = 20
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
]
# Not a redirect: the browser would attribute it to the page with the link, and withhold the cookie.
_ENTRANCE = (
    b'<!DOCTYPE html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="0;url=/">'
    b'<title>Review</title><a href="/">Continue to the review</a></html>'
)

_log = logging.getLogger(__name__)


class Guard:
    """ASGI middleware that accepts only requests of the review page."""

    def __init__(self, app: ASGIApp, *, host: str, token: str | None) -> None:
        """Guard an application.

        Args:
            app: the application.
            host: address that the server listens on.
            token: token that a browser must send once; None for none.
        """
        self.app = app
        self.token = token
        self.hosts = _names_of(host)
        self.accepts_addresses = not is_loopback(host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle or refuse a request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        response = _Response(send)
        try:
            await self._handle(scope, _limit_body(receive), response)
        except _TooLargeError:
            await response.refuse(413, f"expected at most {MAX_REQUEST_BYTES} bytes")
        except Exception as error:
            # The message may contain text of a report, the location does not.
            at = traceback.extract_tb(error.__traceback__)[-1]
            _log.error("%s in %s, line %s", type(error).__name__, Path(at.filename).name, at.lineno)
            await response.refuse(500, "internal error; see the log of the server")

    async def _handle(self, scope: Scope, receive: Receive, send: _Response) -> None:
        headers = Headers(scope=scope)
        if not self._is_own_host(headers.get("host", "")):
            await send.refuse(403, "not the address of the review")
        elif self.token is not None and not self._is_admitted(headers):
            await self._admit(scope, send)
        elif refusal := _refuse_cross_site(scope, headers):
            await send.refuse(*refusal)
        elif int(headers.get("content-length") or 0) > MAX_REQUEST_BYTES:
            raise _TooLargeError
        else:
            await self.app(scope, receive, send)

    def _is_own_host(self, host: str) -> bool:
        """Return whether a Host header names this server, against DNS rebinding.

        Any address is accepted if the server listens on more than the loopback interface.
        """
        name = _host_name(host)
        if name in self.hosts:
            return True
        return self.accepts_addresses and _as_address(name) is not None

    def _is_admitted(self, headers: Headers) -> bool:
        # Other programs of the machine share its cookies and may send malformed ones.
        cookie = cookie_parser(headers.get("cookie", "")).get(_cookie_name(headers.get("host", "")), "")
        return _is_equal(cookie, _session(str(self.token)))

    async def _admit(self, scope: Scope, send: _Response) -> None:
        token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["method"] != "GET" or scope["path"] != "/" or not _is_equal(token, str(self.token)):
            await send.refuse(401, "open the address with ?token= that the command printed")
            return
        name = _cookie_name(Headers(scope=scope).get("host", ""))
        cookie = f"{name}={_session(str(self.token))}; HttpOnly; SameSite=Strict; Path=/"
        headers = [(b"content-type", b"text/html; charset=utf-8"), (b"set-cookie", cookie.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": _ENTRANCE})


class _TooLargeError(Exception):
    pass


class _Response:
    """Sends a response with security headers."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._has_begun = False

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self._has_begun = True
            message = {**message, "headers": [*message.get("headers", ()), *_HEADERS]}
        await self._send(message)

    async def refuse(self, status: int, reason: str) -> None:
        """Send an error as JSON unless a response has started."""
        if self._has_begun:
            return
        headers = [(b"content-type", b"application/json")]
        await self({"type": "http.response.start", "status": status, "headers": headers})
        await self({"type": "http.response.body", "body": json.dumps({"error": reason}).encode()})


def read_token(path: Path) -> str:
    """Read a token from a file.

    Raises:
        InputError: the file cannot be read, or the token is too short.
    """
    token = read_text(path).strip()
    if len(token) < _MIN_TOKEN_LENGTH or not token.isascii() or not token.isprintable() or " " in token:
        raise InputError(
            f"expected one token of at least {_MIN_TOKEN_LENGTH} characters; create one with "
            "python -c 'import secrets; print(secrets.token_urlsafe())'",
            file=path,
        )
    return token


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    address = _as_address(host)
    return host == "localhost" if address is None else address.is_loopback


def _names_of(host: str) -> frozenset[str]:
    names = {"localhost", "127.0.0.1", "::1", host.lower()}
    if not is_loopback(host):
        names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
    return frozenset(names)


def _host_name(host: str) -> str:
    """Return the name in a Host header without port and brackets."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _cookie_name(host: str) -> str:
    """Return the cookie name of a port: cookies are shared across ports, and a machine may serve two reviews."""
    try:
        port = urlsplit(f"//{host}").port
    except ValueError:
        port = None
    return f"maira_review_{port or 80}"


def _as_address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _session(token: str) -> str:
    """Return the value of the cookie, derived from the token without revealing it."""
    return hmac.new(token.encode(), b"session of a review", hashlib.sha256).hexdigest()


def _is_equal(value: str, expected: str) -> bool:
    return hmac.compare_digest(value.encode(), expected.encode())


def _refuse_cross_site(scope: Scope, headers: Headers) -> tuple[int, str] | None:
    """Return status and reason if a request comes from another site, None otherwise.

    Only the page itself may be opened from other sites, and a request with changes must be JSON, which other sites
    cannot send without a preflight request.
    """
    site = headers.get("sec-fetch-site", "same-origin")
    if site != "same-origin" and not (scope["path"] == "/" and scope["method"] == "GET"):
        is_typed = site == "none" and scope["method"] == "GET"
        if not is_typed:
            return 403, "the request comes from another site"
    if scope["method"] in ("GET", "HEAD"):
        return None
    origin = headers.get("origin")
    if origin is not None and origin != f"{scope.get('scheme', 'http')}://{headers.get('host', '')}":
        return 403, "the request comes from another site"
    if headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        return 415, "expected application/json"
    return None


def _limit_body(receive: Receive) -> Receive:
    """Limit the size of a request body, whatever its header says."""
    remaining = MAX_REQUEST_BYTES

    async def limited() -> Message:
        nonlocal remaining
        message = await receive()
        remaining -= len(message.get("body", b""))
        if remaining < 0:
            raise _TooLargeError
        return message

    return limited
