"""Access checks of the review server (host, token, origin, request size) and security headers."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import ssl
import traceback
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from radfact.errors import InputError
from radfact.io.jsonl import read_text
from radfact.pages.access import SECURITY_HEADERS, Access

MAX_REQUEST_BYTES = 1 << 18
"""Largest request body."""

HEALTH_PATH = "/health"
"""The only path that needs no token."""

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = [
    (name.encode(), value.encode()) for name, value in {"content-security-policy": _POLICY, **SECURITY_HEADERS}.items()
]
# Not a redirect: the browser would attribute it to the page with the link, and withhold the cookie.
_ENTRANCE = (
    b'<!DOCTYPE html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="0;url=/">'
    b'<title>Review</title><link rel="icon" href="/static/icon.svg"><a href="/">Continue to the review</a></html>'
)

COORDINATOR = "coordinator\n"
"""The coordinator's name in `link_tokens`; names of readers have no line breaks."""

_log = logging.getLogger(__name__)


def link_tokens(token: str, readers: Sequence[str], *, has_coordinator: bool = False) -> dict[str, str]:
    """Return the tokens of the links to a review.

    Returns:
        Tokens by reader, none of which reveals another one; without readers only the secret itself, under "", for
        people who choose their name.
    """
    if not (readers or has_coordinator):
        return {"": token}
    messages = {name: json.dumps(["reader", name]).encode() for name in readers}
    if has_coordinator:
        messages[COORDINATOR] = json.dumps(["coordinator"]).encode()
    return {
        name: base64.urlsafe_b64encode(hmac.new(token.encode(), message, hashlib.sha256).digest()).decode().rstrip("=")
        for name, message in messages.items()
    }


def check_certificate(certificate: Path, key: Path | None) -> None:
    """Check the files of a TLS certificate."""
    for file in (certificate, key):
        if file is not None:
            read_text(file)
    try:
        # With a password, an encrypted key is an error instead of a question in the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or str(error)
        message = f"expected a PEM certificate with its unencrypted private key; {reason}"
        raise InputError(message, file=certificate) from None


class Guard:
    """ASGI middleware that accepts only requests of the review page, and adds the reader to their scope."""

    def __init__(self, app: ASGIApp, *, host: str, tokens: Mapping[str, str]) -> None:
        """Guard an application."""
        self.app = app
        self.host = host
        self.tokens = tokens

    @property
    def accesses(self) -> dict[str, Access]:
        """Access by reader; in a campaign, readers are added and merged while the server runs."""
        # A copy: another thread may add a reader meanwhile.
        return {reader: Access(self.host, token, "maira_review") for reader, token in dict(self.tokens).items()}

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
            await response.refuse(scope, receive, 413, f"expected at most {MAX_REQUEST_BYTES} bytes")
        except Exception as error:
            # The message may contain text of a report, the location does not.
            at = traceback.extract_tb(error.__traceback__)[-1]
            _log.error("%s in %s, line %s", type(error).__name__, Path(at.filename).name, at.lineno)
            await response.refuse(scope, receive, 500, "internal error; see the log of the server")

    async def _handle(self, scope: Scope, receive: Receive, send: _Response) -> None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        cookies = headers.get("cookie", "")
        reader = next((name for name, access in self.accesses.items() if access.is_admitted(cookies, host)), None)
        if not Access(self.host, None, "maira_review").is_own_host(host):
            await send.refuse(scope, receive, 403, "not the address of the review")
        elif scope["path"] == HEALTH_PATH:
            await self.app(scope, receive, send)
        elif scope["method"] == "GET" and scope["path"] == "/" and b"token=" in scope["query_string"]:
            # Also if another reader of this browser is signed in.
            await self._admit(scope, receive, send)
        elif reader is None:
            await send.refuse(scope, receive, 401, "open your link to the review again")
        elif refusal := _refuse_cross_site(scope, headers):
            await send.refuse(scope, receive, *refusal)
        elif int(headers.get("content-length") or 0) > MAX_REQUEST_BYTES:
            raise _TooLargeError
        else:
            await self.app({**scope, "reader": reader}, receive, send)

    async def _admit(self, scope: Scope, receive: Receive, send: _Response) -> None:
        query = scope["query_string"].decode("latin-1")
        access = next((access for access in self.accesses.values() if access.has_token(query)), None)
        if access is None:
            await send.refuse(scope, receive, 401, "the link is not valid for this review")
            return
        cookie = access.set_cookie(Headers(scope=scope).get("host", ""))
        if scope.get("scheme") == "https":
            cookie = f"{cookie}; Secure"
        await HTMLResponse(_ENTRANCE, headers={"set-cookie": cookie})(scope, receive, send)


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

    async def refuse(self, scope: Scope, receive: Receive, status: int, reason: str) -> None:
        """Send an error as JSON unless a response has started."""
        if not self._has_begun:
            await JSONResponse({"error": reason}, status)(scope, receive, self)


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
