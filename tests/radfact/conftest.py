"""A chat server of the tests' own, for whoever talks to a language model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from chat_server import ChatServer, Reply


@pytest.fixture
def serve() -> Iterator[Callable[..., ChatServer]]:
    """Starts servers that answer with a function of (request, number of the request); closed at the end."""
    servers: list[ChatServer] = []

    def start(reply: Callable[[dict[str, Any], int], Reply], port: int = 0) -> ChatServer:
        servers.append(ChatServer(reply, port))
        return servers[-1]

    yield start
    for server in servers:
        server.close()
