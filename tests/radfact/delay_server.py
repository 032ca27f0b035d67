"""A chat server in a separate process that responds to every request after a fixed delay.

`python delay_server.py SECONDS` prints its port; closing standard input ends it. It only parses lengths, so that it
serves more than a thousand requests per second on one core and the client is the bottleneck.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ANSWER = "phrase: x\nevidence: []\nstatus: not_entailment\n"
_BODY = json.dumps(
    {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [
            {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": ANSWER}},
        ],
        "usage": {"prompt_tokens": 7000, "completion_tokens": 20, "total_tokens": 7020},
    }
).encode()
_REPLY = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: " + str(len(_BODY)).encode() + b"\r\n\r\n"
) + _BODY


class _Connection(asyncio.Protocol):
    def __init__(self, delay: float) -> None:
        self._delay, self._left, self._head = delay, 0, b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if not self._left:
            head, end, rest = (self._head + data).partition(b"\r\n\r\n")
            if not end:
                self._head = head
                return
            self._head = b""
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            self._left, data = int(length.partition(b":")[2]), rest
        self._left -= len(data)
        if not self._left:
            asyncio.get_running_loop().call_later(self._delay, self._respond)

    def _respond(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(_REPLY)


@contextmanager
def delay_server(seconds: float) -> Iterator[str]:
    """Start a server that responds after `seconds`, and yield its base URL."""
    command = [sys.executable, str(Path(__file__).resolve()), str(seconds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}/v1"
        process.communicate()


async def _serve(delay: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(delay), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_serve(float(sys.argv[1])))
