"""Who may ask the review server what: addresses, token, origin, sizes; and what a browser may do with its answers."""

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

MOST_BYTES = 1 << 18
"""Bytes of the largest request."""

_SHORTEST_TOKEN = 20
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
# A redirect would not do: to the browser it would still be the foreign page's doing, so that it would keep the cookie.
_ENTRANCE = (
    b'<!DOCTYPE html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="0;url=/">'
    b'<title>Review</title><a href="/">Go on to the review</a></html>'
)

_log = logging.getLogger(__name__)


class Guard:
    """Lets through what comes from the page itself, and nothing else."""

    def __init__(self, app: ASGIApp, *, host: str, token: str | None) -> None:
        """Guard an application.

        Args:
            app: what answers.
            host: the address that it listens on.
            token: what a browser must bring once; None asks for none.
        """
        self.app = app
        self.token = token
        self.hosts = _names_of(host)
        self.takes_addresses = not is_loopback(host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or say why not."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        guarded = _Answer(send)
        try:
            await self._answer(scope, _limited(receive), guarded)
        except _TooLargeError:
            await guarded.refuse(413, f"a request has at most {MOST_BYTES} bytes")
        except Exception as error:
            # The message of an error may hold text of a report; where it happened does not.
            at = traceback.extract_tb(error.__traceback__)[-1]
            _log.error("%s in %s, line %s", type(error).__name__, Path(at.filename).name, at.lineno)
            await guarded.refuse(500, "the server failed; its log says where")

    async def _answer(self, scope: Scope, receive: Receive, send: _Answer) -> None:
        headers = Headers(scope=scope)
        if not self._is_own_host(headers.get("host", "")):
            await send.refuse(403, "this is not the address of the review")
        elif self.token is not None and not self._is_admitted(headers):
            await self._admit(scope, send)
        elif refusal := _foreign(scope, headers):
            await send.refuse(*refusal)
        elif int(headers.get("content-length") or 0) > MOST_BYTES:
            raise _TooLargeError
        else:
            await self.app(scope, receive, send)

    def _is_own_host(self, host: str) -> bool:
        """Whether a request names this server: a foreign page that had its own name point here names itself.

        An address is no such name, so any will do where the server listens on more than the loopback.
        """
        name = _name_in(host)
        if name in self.hosts:
            return True
        return self.takes_addresses and _as_address(name) is not None

    def _is_admitted(self, headers: Headers) -> bool:
        # All programs of a machine share its cookies, and not every one of them is written as it should be.
        given = cookie_parser(headers.get("cookie", "")).get(_cookie_name(headers.get("host", "")), "")
        return _is_same(given, _session(str(self.token)))

    async def _admit(self, scope: Scope, send: _Answer) -> None:
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["method"] != "GET" or scope["path"] != "/" or not _is_same(given, str(self.token)):
            await send.refuse(401, "open the address with ?token=, as the command printed it")
            return
        name = _cookie_name(Headers(scope=scope).get("host", ""))
        cookie = f"{name}={_session(str(self.token))}; HttpOnly; SameSite=Strict; Path=/"
        headers = [(b"content-type", b"text/html; charset=utf-8"), (b"set-cookie", cookie.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": _ENTRANCE})


class _TooLargeError(Exception):
    pass


class _Answer:
    """Sends an answer with what a browser must keep to."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._has_begun = False

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self._has_begun = True
            message = {**message, "headers": [*message.get("headers", ()), *_HEADERS]}
        await self._send(message)

    async def refuse(self, status: int, reason: str) -> None:
        """Answer with an error as JSON, unless another answer is under way."""
        if self._has_begun:
            return
        headers = [(b"content-type", b"application/json")]
        await self({"type": "http.response.start", "status": status, "headers": headers})
        await self({"type": "http.response.body", "body": json.dumps({"error": reason}).encode()})


def read_token(path: Path) -> str:
    """A token from a file, without the space around it.

    Raises:
        InputError: it cannot be read, or is too short to keep anybody out.
    """
    token = read_text(path).strip()
    if len(token) < _SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise InputError(
            f"expected one token of at least {_SHORTEST_TOKEN} letters, digits and signs; "
            "python -c 'import secrets; print(secrets.token_urlsafe())' makes one",
            file=path,
        )
    return token


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    address = _as_address(host)
    return host == "localhost" if address is None else address.is_loopback


def _names_of(host: str) -> frozenset[str]:
    names = {"localhost", "127.0.0.1", "::1", host.lower()}
    if not is_loopback(host):
        names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
    return frozenset(names)


def _name_in(host: str) -> str:
    """The name in a Host header, without port and brackets."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _cookie_name(host: str) -> str:
    """Browsers keep the cookies of an address together whatever the port, and two reviews may be on one machine."""
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
    """What the cookie holds: it lasts as long as the token and does not give it away."""
    return hmac.new(token.encode(), b"session of a review", hashlib.sha256).hexdigest()


def _is_same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(), expected.encode())


def _foreign(scope: Scope, headers: Headers) -> tuple[int, str] | None:
    """Why a request is not the page's own, or None.

    Only the page itself may be opened from elsewhere, and a request that changes something must be one that no foreign
    page can make without being asked for leave first (JSON).
    """
    site = headers.get("sec-fetch-site", "same-origin")
    if site != "same-origin" and not (scope["path"] == "/" and scope["method"] == "GET"):
        is_typed = site == "none" and scope["method"] == "GET"
        if not is_typed:
            return 403, "this was asked by another page than the review's"
    if scope["method"] in ("GET", "HEAD"):
        return None
    origin = headers.get("origin")
    if origin is not None and origin != f"{scope.get('scheme', 'http')}://{headers.get('host', '')}":
        return 403, "this was asked by another page than the review's"
    if headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        return 415, "expected application/json"
    return None


def _limited(receive: Receive) -> Receive:
    """The body of a request as long as it is not too large, whatever its header says."""
    left = MOST_BYTES

    async def limited() -> Message:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        if left < 0:
            raise _TooLargeError
        return message

    return limited
