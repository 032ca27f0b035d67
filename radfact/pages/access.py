"""Access to a local web page: address, host names, token and cookie."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qs, quote, urlsplit

from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import read_text

SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
"""Headers of every response, in addition to a content security policy."""

_MIN_TOKEN_LENGTH = 20
_BACKLOG = 128


@dataclass(frozen=True, slots=True)
class Access:
    """Decides which requests have the token or its cookie, which links of other sites send if `same_site` is "Lax"."""

    host: str
    token: str | None
    cookie_prefix: str
    same_site: Literal["Strict", "Lax"] = "Strict"

    def is_own_host(self, host: str) -> bool:
        """Return whether a Host header names this server (DNS rebinding); beyond the loopback interface, any does."""
        name, _ = _name_and_port(host)
        names = {"localhost", "127.0.0.1", "::1", self.host.lower()}
        if is_loopback(self.host):
            return name in names
        return name in {*names, socket.gethostname().lower(), socket.getfqdn().lower()} or _as_address(name) is not None

    def is_admitted(self, cookies: str, host: str) -> bool:
        """Return whether a request has the cookie, or needs none; other programs may send malformed ones."""
        if self.token is None:
            return True
        values = dict(part.strip().partition("=")[::2] for part in cookies.split(";"))
        return _is_equal(values.get(self._cookie_name(host), ""), _session(self.token))

    def has_token(self, query: str) -> bool:
        return self.token is not None and _is_equal(parse_qs(query).get("token", [""])[0], self.token)

    def set_cookie(self, host: str) -> str:
        """Return the Set-Cookie header of a browser that sent the token."""
        value = _session(str(self.token))
        return f"{self._cookie_name(host)}={value}; HttpOnly; SameSite={self.same_site}; Path=/"

    def _cookie_name(self, host: str) -> str:
        """Return the cookie name of a port: cookies are shared across ports, and a machine may serve several pages."""
        return f"{self.cookie_prefix}_{_name_and_port(host)[1]}"


def read_token(path: Path) -> str:
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


def listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except socket.gaierror as error:
        reason = str(error.strerror)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
    except UnicodeError:
        reason = "not a host name"
    message = f"cannot listen on {host}, port {port}: {reason}; choose another --port or --host"
    raise InputError(message, code=ErrorCode.INVALID_OPTION)


def page_url(host: str, port: int, token: str | None) -> str:
    """Return the URL of the page, with the token."""
    name = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
    name = f"[{name}]" if ":" in name else name
    return f"http://{name}:{port}/" + ("" if token is None else f"?token={quote(token, safe='')}")


def _name_and_port(host: str) -> tuple[str, int]:
    """Return name and port in a Host header; one that is not valid has no name."""
    try:
        parts = urlsplit(f"//{host}")
        return parts.hostname or "", parts.port or 80
    except ValueError:
        return "", 80


def _as_address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _session(token: str) -> str:
    """Return the value of the cookie, derived from the token without revealing it."""
    return hmac.new(token.encode(), b"session of a page", hashlib.sha256).hexdigest()


def _is_equal(value: str, expected: str) -> bool:
    return hmac.compare_digest(value.encode(), expected.encode())
