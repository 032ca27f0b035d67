"""Fixtures of several tests: a client of a chat server, the radfact command in an empty folder, and a page."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from chat_server import SECRET, ChatServer, Waits

from radfact.llm import ChatClient, load_chat_client

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.fixture
def without_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide matplotlib: most of the time of a command that draws plots is theirs."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)


@pytest.fixture
def load_route(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ChatClient]:
    """Load a client of a server by its address (aiohttp), or as the provider that the environment sends there."""

    def load(server: ChatServer, route: str, **options: Any) -> ChatClient:
        monkeypatch.setenv("OPENAI_API_KEY", SECRET)
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        base_url = server.base_url if route == "aiohttp" else None
        chat = load_chat_client("openai:m", base_url=base_url, **{"concurrency": 1, **options})
        chat.sleep = Waits()
        return chat

    return load


@pytest.fixture
def run_radfact(run_program: Callable[..., tuple[int, str, str]]) -> Callable[..., tuple[int, str, str]]:
    """Run `radfact` with arguments in an empty folder; return exit code, standard output and standard error."""
    from radfact.cli.main import main

    return partial(run_program, "radfact", main)


@pytest.fixture
def page(open_page: Callable[..., Page], report: Path) -> Page:
    return open_page(report.as_uri())
