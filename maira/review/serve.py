"""Run the review server."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import threading
import webbrowser
from contextlib import ExitStack, suppress
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp


def has_screen() -> bool:
    return not sys.platform.startswith("linux") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def serve(
    app: ASGIApp, listener: socket.socket, certificate: tuple[Path, Path | None] | None, link: str | None
) -> None:
    """Serve an application until Ctrl-C, and open a link to it in a browser, if there are both."""
    import uvicorn

    with listener, suppress(KeyboardInterrupt), ExitStack() as stack:
        if link is not None and has_screen():
            # Other users of the machine could read the token from the command line of a browser.
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="maira-review-"))
            page = Path(folder) / "review.html"
            content = f'<!DOCTYPE html><meta http-equiv="refresh" content="0;url={escape(link)}">'
            page.write_text(content, encoding="utf-8")
            threading.Thread(target=webbrowser.open, args=(page.as_uri(),), daemon=True).start()
        # No access log: requests contain patient data.
        config = uvicorn.Config(
            app,
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
