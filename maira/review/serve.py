"""Run the review server."""

from __future__ import annotations

import socket
import threading
import webbrowser
from collections.abc import Callable
from contextlib import suppress

import uvicorn

from maira.review.app import make_app
from maira.review.browser import has_screen
from maira.review.store import Store
from maira.review.studies import ReviewSet
from radfact.explorer.access import address_of


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
