"""Run the review server."""

from __future__ import annotations

import socket
import tempfile
import threading
import webbrowser
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from html import escape
from pathlib import Path

import uvicorn

from maira.review.app import make_app
from maira.review.browser import has_screen
from maira.review.coordinator import CampaignFile
from maira.review.store import Store
from maira.review.studies import ReviewSet
from radfact.pages.access import page_url


def serve(
    review_set: ReviewSet,
    store: Store,
    listener: socket.socket,
    *,
    host: str,
    tokens: Mapping[str, str],
    certificate: tuple[Path, Path | None] | None = None,
    open_browser: bool,
    on_ready: Callable[[dict[str, str]], None],
    campaign: CampaignFile | None = None,
) -> None:
    port = listener.getsockname()[1]
    links = {reader: page_url(host, port, token) for reader, token in tokens.items()}
    if certificate is not None:
        links = {reader: f"https{link.removeprefix('http')}" for reader, link in links.items()}
    with listener, suppress(KeyboardInterrupt), ExitStack() as stack:
        on_ready(links)
        if open_browser and "" in links and has_screen():
            # Other users of the machine could read the token from the command line of a browser.
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="maira-review-"))
            page = Path(folder) / "review.html"
            content = f'<!DOCTYPE html><meta http-equiv="refresh" content="0;url={escape(links[""])}">'
            page.write_text(content, encoding="utf-8")
            threading.Thread(target=webbrowser.open, args=(page.as_uri(),), daemon=True).start()
        # No access log: requests contain patient data.
        config = uvicorn.Config(
            make_app(review_set, store, tokens, host=host, campaign=campaign),
            ssl_certfile=certificate and certificate[0],
            ssl_keyfile=certificate and certificate[1],
            access_log=False,
            log_level="warning",
            server_header=False,
            lifespan="off",
            ws="none",
            proxy_headers=False,
            timeout_graceful_shutdown=2,
        )
        uvicorn.Server(config).run(sockets=[listener])
