"""A real HTTP server with the OpenAI chat-completions route, for the tests of everything that asks a chat model."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, dict[str, str], str] | dict[str, Any] | bytes
"""HTTP status, headers, and the model's text (or the error's); or the whole JSON body of a reply with status 200; or
bytes to write before the connection breaks off."""


class _QuietServer(ThreadingHTTPServer):
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that stops a run hangs up in the middle of a reply: no reason to print a traceback."""


class ChatServer:
    """An OpenAI chat-completions route whose replies a function of the request decides."""

    def __init__(self, reply: Callable[[dict[str, Any], int], Reply], port: int = 0) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.in_flight = self.most_in_flight = 0
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # Head and body in one packet, or each reply waits for an acknowledgement.

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with outer._lock:
                    outer.requests.append(body)
                    outer.headers.append({name.lower(): value for name, value in self.headers.items()})
                    number = len(outer.requests)
                    outer.in_flight += 1
                    outer.most_in_flight = max(outer.most_in_flight, outer.in_flight)
                answer = reply(body, number)
                with outer._lock:
                    outer.in_flight -= 1
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
                self.send_response(status)
                for name, value in {"Content-Type": "application/json", **headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, *args: object) -> None:
                pass

        self._server = _QuietServer(("127.0.0.1", port), Handler)
        self.base_url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def completion(text: str | None, finish_reason: str = "stop") -> dict[str, Any]:
    """The JSON body of an answer."""
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
    """The content of the last message of a request."""
    return str(body["messages"][-1]["content"])
