"""The web server of `radfact view`: read-only, and only for requests that have the token and name this machine."""

from __future__ import annotations

import json
import logging
import socket
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs, parse_qsl, quote, unquote, urlencode

from radfact.errors import InputError, RunError
from radfact.io.jsonl import dumps
from radfact.pages.access import SECURITY_HEADERS, Access
from radfact.pages.comparison_page import SIDES, RunPair
from radfact.pages.markup import SERVED, STATIC, TEMPLATES, assemble
from radfact.pages.page import encode, render_studies, score_data
from radfact.pages.runs import OpenedRun, RunSummary, find_runs, run_url, version_of
from radfact.results.display import score_label, words
from radfact.results.schema import RADFACT

_OPEN = 8
"""Number of runs, and of pairs of runs, that stay in memory."""
_COLUMNS = 6
"""Scores in the list of runs, if none are selected."""
_TIMEOUT = 60
_HTML, _JSON, _JPEG = "text/html; charset=utf-8", "application/json", "image/jpeg"
# The pages state what they load; frames can only be refused in a header.
_POLICY = "frame-ancestors 'none'"

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class _NotFoundError(Exception):
    """The requested run, study, image or page does not exist."""


class Explorer:
    """Responds to the requests of the viewer's pages from the runs below some folders."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = list(folders)
        self.runs: Mapping[str, RunSummary] = find_runs(self.folders)
        self._lock = threading.Lock()
        # Of equal requests, the second waits for what the first computes.
        self._comparing = threading.Lock()
        # A run whose files have changed has another version, and is read again.
        self._open = lru_cache(_OPEN)(lambda name, folder, _: OpenedRun(name, folder))
        self._compare = lru_cache(_OPEN)(RunPair)

    def respond(self, path: str, query: Mapping[str, str]) -> tuple[str, bytes]:
        """Return type and content of a response."""
        if path == "/":
            return _HTML, encode(self._list_page(query.get("scores", "").split(",")))
        if path.startswith("/run/"):
            return _HTML, encode(self.run_page(unquote(path.removeprefix("/run/"))))
        if path == "/compare":
            return _HTML, encode(self._pair_page(self._pair(query)))
        if path == "/api/study":
            return _JSON, encode(dumps(_existing(self._source(query).study(query.get("study", "")), "study")))
        if path == "/api/search":
            return _JSON, json.dumps(self._source(query).search(query.get("words", ""))).encode()
        if path == "/api/scores":
            pair = self._pair(query)
            with self._comparing:
                return _JSON, encode(dumps(pair.compared_scores))
        if path == "/image":
            # The file is looked up, and no part of the request is used as a path.
            run, study, kind = (query.get(name, "") for name in ("run", "study", "kind"))
            return _JPEG, _existing(self._run(run).jpeg(study, kind, full=query.get("full") == "1"), "image")
        raise _NotFoundError("no such page")

    def _list_page(self, selected: Sequence[str] = ()) -> str:
        """Return the list of runs, as the folders are now, with the selected scores or the first main ones."""
        self.runs = find_runs(self.folders)
        readable = [run for run in self.runs.values() if run.reason is None]
        scores = {name: score for run in readable for name, score in run.scores.items()}
        groups: dict[str, list[str]] = {}
        for metric, names in (item for run in readable for item in run.groups.items()):
            groups[metric] = list(dict.fromkeys((*groups.get(metric, ()), *names)))
        shown = [name for names in groups.values() for name in names if name in selected]
        folders = ", ".join(map(str, self.folders))
        count, broken = len(self.runs), len(self.runs) - len(readable)
        counts = f"{count} {'run' if count == 1 else 'runs'} in {folders}{f'; {broken} cannot be read' * (broken > 0)}"
        return simple_page(
            "Runs",
            lead=counts,
            folders=folders,
            runs=list(self.runs.values()),
            can_compare=len(readable) > 1,
            scores=shown or list(dict.fromkeys(name for run in readable for name in run.main))[:_COLUMNS],
            groups=groups,
            labels={name: score_label(words(name), score.direction, score.unit) for name, score in scores.items()},
        )

    def run_page(self, name: str) -> str:
        """Return the page of a run, whose script fetches the studies."""
        run = self._run(name)
        folder = name.rpartition("/")[0]
        others = [other for other, summary in self.runs.items() if summary.reason is None and other != name]
        others.sort(key=lambda other: other.rpartition("/")[0] != folder)
        drafts = [{"sample_id": draft["sample_id"], "scored": False} for draft in run.drafts]
        data = _served_data({"run": name}, unscored=drafts, located=run.has_regions)
        navigation = {"links": [], "run": name, "others": [(other, self.runs[other].label) for other in others]}
        return run.render(data, title=run.label, navigation=navigation, policy=SERVED)

    def _pair_page(self, pair: RunPair) -> str:
        """Return the page of two runs side by side, whose script fetches the studies and the scores."""
        first, second = pair.runs
        named = second.scores.model_copy(update={"scores": {name: second.scores.scores[name] for name in pair.scores}})
        tables = [table for run in pair.runs for table in run.studies.finding_tables.values()]
        query = {"baseline": first.name, "system": second.name}
        data = _served_data(
            query,
            list=pair.columns,
            unscored=[],
            sides={**dict(zip(SIDES, pair.short_names, strict=True)), "reference": "Reference"},
            judged=all(RADFACT in run.scores.metrics for run in pair.runs),
            located=any(run.has_regions for run in pair.runs),
            findings={concept: name for table in tables for concept, name in table.names.items()},
            **score_data(named, second.scoring if first.scoring == second.scoring else None),
        )
        links = [(run.label, run_url(run.name)) for run in pair.runs]
        links.append(("Swap", f"/compare?{urlencode({'baseline': second.name, 'system': first.name})}"))
        title = f"{second.label} compared with {first.label}"
        return render_studies(
            data, title=title, counts=pair.describe_counts(), navigation={"links": links, "others": []}, policy=SERVED
        )

    def _source(self, query: Mapping[str, str]) -> OpenedRun | RunPair:
        return self._run(query["run"]) if "run" in query else self._pair(query)

    def _run(self, name: str) -> OpenedRun:
        if name not in self.runs:
            self.runs = find_runs(self.folders)
        if name not in self.runs:
            raise _NotFoundError(f"no run {name!r} in {', '.join(map(str, self.folders))}")
        folder = self.runs[name].folder
        with self._lock:
            return self._open(name, folder, version_of(folder))

    def _pair(self, query: Mapping[str, str]) -> RunPair:
        names = [query.get(side, "") for side in ("baseline", "system")]
        if len(set(names)) < len(names):
            raise InputError(f"expected two different runs, found {names[0]!r} twice")
        runs = [self._run(name) for name in names]
        with self._lock:
            return self._compare(*runs)


def _existing(value: _T | None, noun: str) -> _T:
    if value is None:
        raise _NotFoundError(f"no such {noun}")
    return value


def _served_data(query: Mapping[str, str], **data: Any) -> dict[str, Any]:
    """Return data for a page's scripts with the addresses of the server."""
    text = urlencode(query)
    addresses = {"study": f"/api/study?{text}&study=", "search": f"/api/search?{text}&words="}
    return {**data, "api": {**addresses, "scores": f"/api/scores?{text}"}}


def simple_page(title: str, *, lead: str = "", reason: str = "", **context: Any) -> str:
    """Return the list of runs, or a page that says why there is nothing to show."""
    styles = [STATIC / "base.css", STATIC / "page.css"]
    context |= {"title": title, "lead": lead, "reason": reason}
    return assemble(TEMPLATES / "runs.html", styles, policy=SERVED, **context)


def make_server(explorer: Explorer, listener: socket.socket, access: Access) -> ThreadingHTTPServer:
    handler = type("Handler", (_Handler,), {"pages": explorer, "gate": access})
    server = _Server(listener.getsockname()[:2], handler, bind_and_activate=False)
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
        self._is_page = not path.startswith(("/api/", "/image"))
        is_cross_site = self.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none")
        try:
            if not self.gate.is_own_host(host):
                self._refuse(HTTPStatus.FORBIDDEN, "unknown host name; open the URL that `radfact view` printed")
            elif not self.gate.is_admitted(self.headers.get("Cookie", ""), host):
                self._admit(path, query, host)
            elif is_cross_site and not self._is_page:
                self._refuse(HTTPStatus.FORBIDDEN, "the request comes from another site")
            elif path == "/favicon.ico":
                # Every browser asks for one.
                self._send(HTTPStatus.NO_CONTENT, _HTML, b"")
            else:
                # A form repeats the name of what is selected several times.
                self._respond(path, {name: ",".join(values) for name, values in parse_qs(query).items()})
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def _respond(self, path: str, query: Mapping[str, str]) -> None:
        try:
            content, body = self.pages.respond(path, query)
        except _NotFoundError as error:
            self._refuse(HTTPStatus.NOT_FOUND, str(error))
        except (InputError, RunError) as error:
            self._refuse(HTTPStatus.UNPROCESSABLE_ENTITY, str(error))
        except OSError as error:
            self._refuse(HTTPStatus.UNPROCESSABLE_ENTITY, f"cannot be read: {error.strerror}")
        except Exception as error:
            # The message may contain text of a report, the location does not.
            at = traceback.extract_tb(error.__traceback__)[-1]
            _log.error("%s in %s, line %s", type(error).__name__, Path(at.filename).name, at.lineno)
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error; see the terminal of the server")
        else:
            self._send(HTTPStatus.OK, content, body)

    def _admit(self, path: str, query: str, host: str) -> None:
        """Exchange the token in the URL for a cookie, and redirect to the URL without it."""
        if not self.gate.has_token(query):
            reason = "Open the URL with ?token= that the command printed; after that, every URL works."
            self._refuse(HTTPStatus.UNAUTHORIZED, reason)
            return
        others = urlencode([(name, value) for name, value in parse_qsl(query) if name != "token"])
        # With a second slash, it would be a URL of another host.
        location = f"/{quote(unquote(path).lstrip('/'))}" + (f"?{others}" if others else "")
        self._send(HTTPStatus.SEE_OTHER, _HTML, b"", {"Location": location, "Set-Cookie": self.gate.set_cookie(host)})

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        title = {HTTPStatus.NOT_FOUND: "Not found", HTTPStatus.UNAUTHORIZED: "No access"}.get(status, "Cannot be shown")
        text = simple_page(title, reason=reason) if self._is_page else dumps({"error": reason})
        self._send(status, _HTML if self._is_page else _JSON, encode(text))

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


def serve(server: ThreadingHTTPServer) -> None:
    with server, suppress(KeyboardInterrupt):
        server.serve_forever()
