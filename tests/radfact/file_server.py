"""A real HTTP server of files with ranges and ETags, for the tests of downloads."""

import hashlib
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class _QuietServer(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that refuses a file hangs up in the middle of it: no reason to print a traceback."""


@dataclass
class FileServer:
    """Serves files; its attributes change how."""

    files: dict[str, bytes] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    cut: int | None = None  # number of bytes after which the next reply breaks off
    has_ranges: bool = True  # whether a range is sent, and not the whole file
    etag: str = "strong"  # or "weak", or "" for none
    status: int = 0  # of every reply, if not 0
    content_type: str = "application/octet-stream"
    requests: list[tuple[str, str | None, int]] = field(default_factory=list)
    """Path and range of every request, and the number of bytes of the reply."""

    def __post_init__(self) -> None:
        self._server = _QuietServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def url(self, path: str) -> str:
        """Return the address of a file."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/{path}"

    def close(self) -> None:
        """Stop; no connection is accepted after this."""
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                name, asked = self.path.lstrip("/"), self.headers.get("Range")
                if name in outer.redirects:
                    self.send_response(302)
                    self.send_header("Location", f"/{outer.redirects[name]}")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                content = outer.files.get(name)
                if outer.status or content is None:
                    self._send(outer.status or 404, b"", {}, asked)
                    return
                digest = f'"{hashlib.md5(content).hexdigest()}"'
                headers = {"strong": {"ETag": digest}, "weak": {"ETag": f"W/{digest}"}}.get(outer.etag, {})
                is_same = self.headers.get("If-Range", digest) == digest
                start = int(re.findall(r"\d+", asked)[0]) if asked and outer.has_ranges and is_same else 0
                if start >= len(content) > 0:
                    self._send(416, b"", {"Content-Range": f"bytes */{len(content)}"}, asked)
                elif start:
                    headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
                    self._send(206, content[start:], headers, asked)
                else:
                    self._send(200, content, headers, asked)

            def _send(self, status: int, body: bytes, headers: dict[str, str], asked: str | None) -> None:
                self.send_response(status)
                self.send_header("Content-Type", outer.content_type)
                self.send_header("Content-Length", str(len(body)))
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                sent = body if outer.cut is None else body[: outer.cut]
                outer.cut = None
                outer.requests.append((self.path.lstrip("/"), asked, len(sent)))
                self.wfile.write(sent)
                self.close_connection = len(sent) < len(body)

            def log_message(self, *_: Any) -> None:
                pass

        return Handler
