"""`radfact view`: open the explorer of results folders."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated

import typer

from radfact.cli.command import with_options
from radfact.cli.options import option
from radfact.cli.tables import new_console, say
from radfact.pages.access import Access, is_loopback, listen, page_url, read_token
from radfact.pages.server import Explorer, make_server, serve

PORT = 8472
_HOST = "Address to listen on. The connection is not encrypted."
_TOKEN = "File with the token that browsers must send. Default: a random token."


@with_options
def view(
    folders: Annotated[list[Path], typer.Argument(help="Results folders, or folders that contain them.")],
    port: Annotated[int, typer.Option(help="Port to listen on; 0: any free port.", min=0, max=65535)] = PORT,
    host: Annotated[str, option(_HOST, "ADDRESS", None)] = "127.0.0.1",
    token_file: Annotated[Path | None, option(_TOKEN, "FILE", None)] = None,
) -> None:
    """Browse results folders in a local web page, and compare two of them side by side.

    The server only reads the folders. By default, only this machine can reach it. A browser needs the token in the
    printed URL once. The same folders and port have the same URLs of runs, comparisons, studies and sentences.
    """
    token = secrets.token_urlsafe() if token_file is None else read_token(token_file)
    explorer = Explorer(folders)
    console = new_console()
    listener = listen(host, port)
    # SameSite=Lax, so that links from chat or email work. This is safe because the server is read-only.
    server = make_server(explorer, listener, Access(host, token, "radfact_view", "Lax"))
    broken = sum(run.reason is not None for run in explorer.runs.values())
    noun = "run" if len(explorer.runs) == 1 else "runs"
    say(console, f"{len(explorer.runs)} {noun}{f', {broken} cannot be read' if broken else ''}")
    url = page_url(host, listener.getsockname()[1], token)
    say(console, f"Open {url}  (Ctrl-C stops the server)", wrap=False)
    if not is_loopback(host):
        say(console, "The connection is not encrypted; use a tunnel (ssh -L) on untrusted networks", style="yellow")
    serve(server)
