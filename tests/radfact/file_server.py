"""A real HTTP server of files with ranges and ETags, for the tests of downloads."""

import hashlib
import re
from dataclasses import dataclass, field

from chat_server import LocalServer, QuietHandler


@dataclass
class FileServer(LocalServer):
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
        super().__init__(self._handler())

    def url(self, path: str) -> str:
        """Return the address of a file."""
        return f"{self.root_url}/{path}"

    def _handler(self) -> type[QuietHandler]:
        outer = self

        class Handler(QuietHandler):
            def do_GET(self) -> None:  # noqa: N802 - the name that `http.server` calls
                name, asked = self.path.lstrip("/"), self.headers.get("Range")
                if name in outer.redirects:
                    self.send_head(302, {"Location": f"/{outer.redirects[name]}", "Content-Length": "0"})
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
                self.send_head(
                    status, {"Content-Type": outer.content_type, "Content-Length": str(len(body)), **headers}
                )
                sent = body if outer.cut is None else body[: outer.cut]
                outer.cut = None
                outer.requests.append((self.path.lstrip("/"), asked, len(sent)))
                self.wfile.write(sent)
                self.close_connection = len(sent) < len(body)

        return Handler
