"""Run the review server."""

from __future__ import annotations

import os
import socket
import threading
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import quote

import uvicorn

from maira.review.app import make_app
from maira.review.browser import has_screen
from maira.review.store import Store
from maira.review.studies import ReviewSet
from radfact.errors import ErrorCode, InputError

_BACKLOG = 128


def serve(
    review_set: ReviewSet,
    store: Store,
    listener: socket.socket,
    *,
    host: str,
    token: str | None,
    open_browser: bool,
    on_ready: Callable[[str], None],
) -> None:
    """Serve a review until it is interrupted.

    Args:
        review_set: studies to review.
        store: their database.
        listener: socket from `listen`; it is closed at the end.
        host: address that the socket listens on.
        token: token that a browser must send; None for none.
        open_browser: open the page if there is a screen. Never with a token, which other users of the machine could
            read from the browser's command line.
        on_ready: called with the address of the page.
    """
    with listener, suppress(KeyboardInterrupt):
        url = address_of(host, listener.getsockname()[1], token)
        on_ready(url)
        if open_browser and token is None and has_screen():
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
        # No access log: requests contain patient data.
        config = uvicorn.Config(
            make_app(review_set, store, host=host, token=token),
            access_log=False,
            log_level="warning",
            server_header=False,
            lifespan="off",
            ws="none",
            proxy_headers=False,
            timeout_graceful_shutdown=2,
        )
        uvicorn.Server(config).run(sockets=[listener])


def listen(host: str, port: int) -> socket.socket:
    """Listen on an address.

    Args:
        host: a name or an address of this machine.
        port: port; 0 for any free port.

    Raises:
        InputError: the address cannot be used.
    """
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


def address_of(host: str, port: int, token: str | None) -> str:
    """Return the URL of the page, with the token.

    Args:
        host: that the server binds to.
        port: of the server.
        token: None without authentication.
    """
    name = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
    name = f"[{name}]" if ":" in name else name
    return f"http://{name}:{port}/" + ("" if token is None else f"?token={quote(token, safe='')}")
