"""Access checks of the review server (host, token, origin, request size) and security headers."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from radfact.errors import InputError
from radfact.io.jsonl import read_text
from radfact.pages.access import SECURITY_HEADERS, Access

MAX_REQUEST_BYTES = 1 << 18
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
    b'<title>Review</title><link rel="icon" href="/static/icon.svg"><h1><a href="/">Open the review</a></h1></html>'
)

COORDINATOR = "coordinator\n"
"""The coordinator's name in `link_tokens`; names of readers have no line breaks."""


def link_tokens(token: str, readers: Sequence[str], *, has_coordinator: bool = False) -> dict[str, str]:
    """Return the tokens of the links to a review."""
    if not (readers or has_coordinator):
        return {"": token}
    messages = {name: json.dumps(["reader", name]).encode() for name in readers}
    if has_coordinator:
        messages[COORDINATOR] = json.dumps(["coordinator"]).encode()
    signed = {name: hmac.new(token.encode(), message, hashlib.sha256).digest() for name, message in messages.items()}
    return {name: base64.urlsafe_b64encode(digest).decode().rstrip("=") for name, digest in signed.items()}


def check_certificate(certificate: Path, key: Path | None) -> None:
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
    def __init__(self, app: ASGIApp, *, host: str, tokens: Mapping[str, str]) -> None:
        self.app = app
        self.host = host
        self.tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers, query = Headers(scope=scope), scope["query_string"].decode("latin-1")
        host = headers.get("host", "")
        if not Access(self.host, None, "maira_review").is_own_host(host):
            raise HTTPException(403, "not the address of the review")
        # A copy: another thread may add a reader meanwhile.
        accesses = {name: Access(self.host, token, "maira_review") for name, token in dict(self.tokens).items()}
        app = self.app
        if scope["method"] == "GET" and scope["path"] == "/" and "token=" in query:
            # Also if another reader of this browser is signed in.
            access = next((access for access in accesses.values() if access.has_token(query)), None)
            if access is None:
                raise HTTPException(401, "the link is not valid for this review")
            cookie = access.set_cookie(host) + ("; Secure" if scope.get("scheme") == "https" else "")
            app = HTMLResponse(_ENTRANCE, headers={"set-cookie": cookie})
        elif scope["path"] != HEALTH_PATH:
            cookies = headers.get("cookie", "")
            readers = [name for name, access in accesses.items() if access.is_admitted(cookies, host)]
            if not readers:
                raise HTTPException(401, "open your link to the review again")
            _check_origin(scope, headers)
            scope = {**scope, "reader": readers[0]}
        await app(scope, receive, send)


def _check_origin(scope: Scope, headers: Headers) -> None:
    """Refuse a request from another site: only the page may be opened there, and changes must be JSON (preflight)."""
    site, is_get = headers.get("sec-fetch-site", "same-origin"), scope["method"] == "GET"
    is_own = site == "same-origin" or (is_get and (scope["path"] == "/" or site == "none"))
    is_reading = scope["method"] in ("GET", "HEAD")
    origin = f"{scope.get('scheme', 'http')}://{headers.get('host', '')}"
    if not is_own or not (is_reading or headers.get("origin", origin) == origin):
        raise HTTPException(403, "the request comes from another site")
    if not is_reading and headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "expected application/json")


def add_security_headers(app: ASGIApp) -> ASGIApp:
    async def secured(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *_HEADERS]}
            await send(message)

        await app(scope, receive, send_secured)

    return secured
