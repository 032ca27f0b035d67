"""Fixtures of several tests: a chat server, and the radfact command in an empty folder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_server import ChatServer, Reply


@pytest.fixture
def serve() -> Iterator[Callable[..., ChatServer]]:
    """Start servers that respond with a function of (request, number of the request); close them at the end."""
    servers: list[ChatServer] = []

    def start(reply: Callable[[dict[str, Any], int], Reply], port: int = 0) -> ChatServer:
        servers.append(ChatServer(reply, port))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def run_radfact(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    """Run `radfact` with arguments in an empty folder; return exit code, standard output and standard error."""
    from radfact.cli.main import main

    monkeypatch.delenv("RADFACT_JUDGE", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["radfact", *arguments])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return command
