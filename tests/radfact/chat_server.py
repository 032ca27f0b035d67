"""A real HTTP server with the OpenAI chat-completions route, and clients of it, for the tests of chat models."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from radfact.llm import ChatClient, ChatRequest
from radfact.llm.http import HttpBackend

Reply = tuple[int, dict[str, str], str] | dict[str, Any] | bytes
"""HTTP status, headers, and the model's text (or the error's); or the whole JSON body of a reply with status 200; or
bytes to write before the connection breaks off."""


class _QuietServer(ThreadingHTTPServer):
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that stops a run hangs up in the middle of a reply: no reason to print a traceback."""


class QuietHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # Head and body in one packet, or each reply waits for an acknowledgement.

    def send_head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


class LocalServer:
    """Serves on a port of this machine until it is closed."""

    def __init__(self, handler: type[BaseHTTPRequestHandler], port: int = 0) -> None:
        self._server = _QuietServer(("127.0.0.1", port), handler)
        self.root_url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class ChatServer(LocalServer):
    """An OpenAI chat-completions route whose replies a function of the request decides."""

    def __init__(self, reply: Callable[[dict[str, Any], int], Reply], port: int = 0) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self._lock = threading.Lock()
        outer = self

        class Handler(QuietHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with outer._lock:
                    outer.requests.append(body)
                    outer.headers.append({name.lower(): value for name, value in self.headers.items()})
                    number = len(outer.requests)
                answer = reply(body, number)
                if isinstance(answer, bytes):
                    self.wfile.write(answer)
                    self.close_connection = True
                elif isinstance(answer, dict):
                    self._send(200, {}, answer)
                else:
                    status, headers, text = answer
                    self._send(status, headers, completion(text) if status == 200 else {"error": {"message": text}})

            def _send(self, status: int, headers: dict[str, str], body: dict[str, Any]) -> None:
                payload = json.dumps(body).encode()
                fixed = {"Content-Type": "application/json", "Content-Length": str(len(payload))}
                self.send_head(status, fixed | headers)
                self.wfile.write(payload)

        super().__init__(Handler, port)
        self.base_url = f"{self.root_url}/v1"


def completion(text: str | None, finish_reason: str = "stop") -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [{"index": 0, "finish_reason": finish_reason, "message": message}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13},
    }


def last(body: dict[str, Any]) -> str:
    return str(body["messages"][-1]["content"])


ROUTES = ("aiohttp", "LangChain")
"""Ways to a server with the OpenAI protocol: by its address, or as a provider."""
SECRET = "sk-do-not-show-this-one"


class Waits(list[float]):
    """Stands in for sleeping and notes how long it would have been."""

    async def __call__(self, seconds: float) -> None:
        self.append(seconds)


def http_client(base_url: str, **options: Any) -> ChatClient:
    """A client of a server that speaks the OpenAI protocol, which does not really wait between attempts."""
    options.setdefault("sleep", Waits())
    backend = HttpBackend("m", base_url, {"temperature": 0, "max_tokens": 1024})
    return ChatClient(backend, {"model": "openai:m", "base_url": base_url}, **options)


def numeric(text: str) -> ChatRequest[int]:
    return ChatRequest((("system", "Count."), ("user", text)), int)
