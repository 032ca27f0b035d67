"""The web server of the explorer: read-only, and only for requests that have the token and name this machine."""

from __future__ import annotations

import json
import logging
import socket
import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlencode

from radfact.errors import InputError, RunError
from radfact.io.jsonl import dumps
from radfact.pages.access import SECURITY_HEADERS, Access
from radfact.pages.opened_run import OpenedRun, version_of
from radfact.pages.run_pages import error_page, list_page, pair_page, run_page
from radfact.pages.run_pair import RunPair
from radfact.pages.runs import RunSummary, find_runs

_OPEN = 4
"""Number of runs, and of pairs of runs, that stay in memory."""
_TIMEOUT = 60
_HTML, _JSON, _JPEG = "text/html; charset=utf-8", "application/json", "image/jpeg"
# The pages state what they load; frames can only be refused in a header.
_POLICY = "frame-ancestors 'none'"

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class _NotFoundError(Exception):
    """The requested run, study, image or page does not exist."""


class Explorer:
    """Responds to the requests of the explorer's pages from the runs below some folders."""

    def __init__(self, folders: Sequence[Path]) -> None:
        """List the runs.

        Raises:
            InputError: a folder does not exist.
        """
        self.folders = list(folders)
        self.runs: Mapping[str, RunSummary] = find_runs(self.folders)
        self._opened: OrderedDict[Any, Any] = OrderedDict()
        self._lock = threading.RLock()

    def list_page(self) -> str:
        """Return the list of runs, as the folders are now."""
        self.runs = find_runs(self.folders)
        return list_page(self.runs, [str(folder) for folder in self.folders])

    def run_page(self, name: str) -> str:
        """Return the page of a run."""
        run = self._run(name)
        others = [other.name for other in self.runs.values() if other.reason is None and other.name != name]
        folder = name.rpartition("/")[0]
        return run_page(run, sorted(others, key=lambda other: other.rpartition("/")[0] != folder))

    def pair_page(self, query: Mapping[str, str]) -> str:
        """Return the page of two runs."""
        return pair_page(self._pair(query))

    def study(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return a study of a run, or of two runs."""
        study = self._source(query).study(query.get("study", ""))
        if study is None:
            raise _NotFoundError("no such study")
        return study

    def search(self, query: Mapping[str, str]) -> list[int]:
        """Return the indices of the studies with some words."""
        return self._source(query).search(query.get("words", ""))

    def scores(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return the table of scores of two runs."""
        return self._pair(query).scores

    def image(self, query: Mapping[str, str]) -> bytes:
        """Return an image of a study; its file is looked up, and no part of the request is used as a path."""
        run = self._run(query.get("run", ""))
        jpeg = run.jpeg(query.get("study", ""), query.get("kind", ""), full=query.get("full") == "1")
        if jpeg is None:
            raise _NotFoundError("no such image")
        return jpeg

    def _source(self, query: Mapping[str, str]) -> OpenedRun | RunPair:
        return self._run(query["run"]) if "run" in query else self._pair(query)

    def _run(self, name: str) -> OpenedRun:
        if name not in self.runs:
            self.runs = find_runs(self.folders)
        if name not in self.runs:
            raise _NotFoundError(f"no run {name!r} in {', '.join(map(str, self.folders))}")
        summary = self.runs[name]
        return self._keep(("run", name), version_of(summary.folder), lambda: OpenedRun(summary))

    def _pair(self, query: Mapping[str, str]) -> RunPair:
        names = [query.get(side, "") for side in ("baseline", "system")]
        if len(set(names)) < len(names):
            raise InputError(f"expected two different runs, found {names[0]!r} twice")
        runs = [self._run(name) for name in names]
        return self._keep(("pair", *names), [run.version for run in runs], lambda: RunPair(*runs))

    def _keep(self, key: Any, version: Any, make: Callable[[], _T]) -> _T:
        """Return an object in memory, made again if its files have changed."""
        with self._lock:
            if key not in self._opened or self._opened[key][0] != version:
                self._opened[key] = (version, make())
            self._opened.move_to_end(key)
            while len(self._opened) > 2 * _OPEN:
                self._opened.popitem(last=False)
            value: _T = self._opened[key][1]
            return value


def make_server(explorer: Explorer, listener: socket.socket, access: Access) -> ThreadingHTTPServer:
    """Return the server of an explorer, ready to serve.

    Args:
        explorer: responds to the requests.
        listener: socket from `radfact.pages.access.listen`; the server closes it.
        access: decides which requests are accepted.
    """

    class Handler(_Handler):
        pages = explorer
        gate = access

    server = _Server(listener.getsockname()[:2], Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    return server


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that leaves a page closes its connections: no reason to print a traceback."""


class _Handler(BaseHTTPRequestHandler):
    pages: Explorer
    gate: Access
    protocol_version = "HTTP/1.1"
    timeout = _TIMEOUT

    def do_GET(self) -> None:
        host = self.headers.get("Host", "")
        path, _, query = self.path.partition("?")
        is_page = not path.startswith(("/api/", "/image"))
        try:
            if not self.gate.is_own_host(host):
                self._refuse(
                    HTTPStatus.FORBIDDEN, "unknown host name; open the URL that `radfact view` printed", is_page
                )
            elif not self.gate.is_admitted(self.headers.get("Cookie", ""), host):
                self._admit(path, query, host, is_page)
            elif self.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none") and not is_page:
                self._refuse(HTTPStatus.FORBIDDEN, "the request comes from another site", is_page)
            else:
                self._respond(path, dict(parse_qsl(query)), is_page)
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def _respond(self, path: str, query: Mapping[str, str], is_page: bool) -> None:
        routes: dict[str, Callable[[], tuple[str, bytes]]] = {
            "/": lambda: (_HTML, _encode(self.pages.list_page())),
            "/compare": lambda: (_HTML, _encode(self.pages.pair_page(query))),
            "/api/study": lambda: (_JSON, _encode(dumps(self.pages.study(query)))),
            "/api/search": lambda: (_JSON, json.dumps(self.pages.search(query)).encode()),
            "/api/scores": lambda: (_JSON, _encode(dumps(self.pages.scores(query)))),
            "/image": lambda: (_JPEG, self.pages.image(query)),
        }
        try:
            if path == "/favicon.ico":
                # Every browser asks for one.
                self._send(HTTPStatus.NO_CONTENT, _HTML, b"")
                return
            if path.startswith("/run/"):
                content, body = _HTML, _encode(self.pages.run_page(unquote(path.removeprefix("/run/"))))
            elif path in routes:
                content, body = routes[path]()
            else:
                raise _NotFoundError("no such page")
        except _NotFoundError as error:
            self._refuse(HTTPStatus.NOT_FOUND, str(error), is_page)
        except (InputError, RunError) as error:
            self._refuse(HTTPStatus.UNPROCESSABLE_ENTITY, str(error), is_page)
        except OSError as error:
            self._refuse(HTTPStatus.UNPROCESSABLE_ENTITY, f"cannot be read: {error.strerror}", is_page)
        except Exception as error:
            # The message may contain text of a report, the location does not.
            at = traceback.extract_tb(error.__traceback__)[-1]
            _log.error("%s in %s, line %s", type(error).__name__, Path(at.filename).name, at.lineno)
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error; see the terminal of the server", is_page)
        else:
            self._send(HTTPStatus.OK, content, body)

    def _admit(self, path: str, query: str, host: str, is_page: bool) -> None:
        """Exchange the token in the URL for a cookie, and redirect to the URL without it."""
        if not self.gate.has_token(query):
            reason = "Open the URL with ?token= that the command printed; after that, every URL works."
            self._refuse(HTTPStatus.UNAUTHORIZED, reason, is_page)
            return
        others = urlencode([(name, value) for name, value in parse_qsl(query) if name != "token"])
        # With a second slash, it would be a URL of another host.
        location = f"/{quote(unquote(path).lstrip('/'))}" + (f"?{others}" if others else "")
        headers = {"Location": location, "Set-Cookie": self.gate.set_cookie(host)}
        self._send(HTTPStatus.SEE_OTHER, _HTML, b"", headers)

    def _refuse(self, status: HTTPStatus, reason: str, is_page: bool) -> None:
        title = {HTTPStatus.NOT_FOUND: "Not found", HTTPStatus.UNAUTHORIZED: "No access"}.get(status, "Cannot be shown")
        body = _encode(error_page(title, reason) if is_page else dumps({"error": reason}))
        self._send(status, _HTML if is_page else _JSON, body)

    def _send(self, status: HTTPStatus, content: str, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": content, "Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def end_headers(self) -> None:
        for name, value in {"content-security-policy": _POLICY, **SECURITY_HEADERS}.items():
            self.send_header(name, value)
        super().end_headers()

    def version_string(self) -> str:
        return "radfact"

    def log_message(self, *_: Any) -> None:
        """No access log: requests contain ids of patients' studies."""


def _encode(text: str) -> bytes:
    # JSON can hold half a surrogate pair, which UTF-8 cannot.
    return text.encode("utf-8", "replace")


def serve(server: ThreadingHTTPServer) -> None:
    """Serve until interrupted.

    Args:
        server: from `make_server`.
    """
    with server, suppress(KeyboardInterrupt):
        server.serve_forever()
