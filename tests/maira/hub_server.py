"""A server with the part of the Hugging Face Hub's protocol that pushing and loading models needs.

It is written from the requests of huggingface_hub 1.33 and 2.4 and from what these read in the responses; the real Hub
was not contacted. Repositories are held in memory. Large files take the LFS protocol, without the Xet protocol, so that
clients need HF_HUB_DISABLE_XET=1.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_test"
USER = "me"
_LFS_BYTES = 100_000
"""Size from which a file is large; safetensors always are."""
Files = dict[str, bytes]
Failure = Callable[[str, str], int | None]
"""Returns the status with which a request (method, path) fails; None if it does not. 0 closes the connection."""


@dataclass
class Repository:
    """A repository: its commits, oldest first, each with all files."""

    is_private: bool
    commits: dict[str, Files] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    @property
    def files(self) -> Files:
        """Files of the last commit."""
        return self.commits[self.branches["main"]]

    def commit(self, files: Files) -> str:
        """Add a commit to the branch main."""
        sha = hashlib.sha1(f"{len(self.commits)}".encode() + b"".join(sorted(map(str.encode, files)))).hexdigest()
        self.commits[sha] = files
        self.branches["main"] = sha
        return sha

    def resolve(self, revision: str) -> str | None:
        """Return the commit of a branch or commit."""
        sha = self.branches.get(revision, revision)
        return sha if sha in self.commits else None


@dataclass
class _Reply:
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


def _json(value: Any, status: int = 200) -> _Reply:
    return _Reply(status, json.dumps(value).encode(), {"Content-Type": "application/json"})


def _error(status: int, code: str, message: str = "") -> _Reply:
    return _Reply(status, b"", {"X-Error-Code": code, "X-Error-Message": message or code})


def _is_large(path: str, size: int) -> bool:
    return path.endswith(".safetensors") or size >= _LFS_BYTES


class HubServer:
    """The server; `repositories`, `requests` (method and path) and `blobs` (large files by SHA-256) are its state."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.requests: list[tuple[str, str]] = []
        self.blobs: dict[str, bytes] = {}
        self.fail: Failure = lambda _method, _path: None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1

            def _respond(self) -> None:
                path = unquote(urlsplit(self.path).path)
                body = self._read_body()
                outer.requests.append((self.command, path))
                status = outer.fail(self.command, path)
                if status == 0:
                    self.close_connection = True
                    return
                token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
                reply = outer.reply(self.command, path, body, token) if status is None else _Reply(status)
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(reply.body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(reply.body)

            def _read_body(self) -> bytes:
                if self.headers.get("Transfer-Encoding") != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length") or 0))
                parts = []
                while size := int(self.rfile.readline(), 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(parts)

            do_GET = do_POST = do_PUT = do_HEAD = _respond  # noqa: N815

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()

    def reply(self, method: str, path: str, body: bytes, token: str | None) -> _Reply:
        """Respond to a request."""
        if token not in (None, TOKEN):
            return _error(401, "InvalidToken", "Invalid credentials in Authorization header")
        if method == "PUT" and path.startswith("/upload/"):
            oid = path.removeprefix("/upload/")
            if hashlib.sha256(body).hexdigest() != oid:
                return _Reply(400)
            self.blobs[oid] = body
            return _Reply(200)
        if path == "/api/whoami-v2":
            return _json({"name": USER, "type": "user", "orgs": []}) if token else _error(401, "NoToken")
        if path == "/api/validate-yaml":
            return _json({"errors": [], "warnings": []})
        if path == "/api/repos/create":
            return self._create(json.loads(body), token)
        if match := re.fullmatch(r"/(?:api/models/)?([^/]+/[^/]+?)(?:\.git)?(/.*)?", path):
            name, rest = match[1], match[2] or ""
            repository = self.repositories.get(name)
            if repository is None or (repository.is_private and token is None):
                return _error(404 if token else 401, "RepoNotFound", "Repository not found")
            return self._reply_repository(name, repository, rest, body, token)
        return _Reply(404)

    def _create(self, values: dict[str, Any], token: str | None) -> _Reply:
        if token is None:
            return _error(401, "NoToken", "Invalid username or password.")
        name = f"{values.get('organization') or USER}/{values['name']}"
        url = {"url": f"{self.url}/{name}", "name": name}
        if name in self.repositories:
            return _json(url, 409)
        self.repositories[name] = Repository(values.get("private") or values.get("visibility") == "private")
        self.repositories[name].commit({".gitattributes": b"*.safetensors filter=lfs\n"})
        return _json(url)

    def _reply_repository(self, name: str, repository: Repository, rest: str, body: bytes, token: str | None) -> _Reply:
        kind, _, tail = rest.removeprefix("/").partition("/")
        if kind in ("", "revision"):
            return self._info(name, repository, tail or "main")
        if kind == "tree":
            return self._tree(repository, *tail.partition("/")[::2])
        if kind == "resolve":
            return self._resolve(repository, *tail.split("/", 1))
        if token is None:
            return _error(403, "Forbidden", "No write access")
        if kind == "preupload":
            files = [
                {
                    "path": item["path"],
                    "uploadMode": "lfs" if _is_large(item["path"], item["size"]) else "regular",
                    "shouldIgnore": False,
                }
                for item in json.loads(body)["files"]
            ]
            return _json({"files": files})
        if rest == "/info/lfs/objects/batch":
            return self._batch(json.loads(body))
        if kind == "commit":
            return self._commit(name, repository, [json.loads(line) for line in body.splitlines()])
        return _Reply(404)

    def _info(self, name: str, repository: Repository, revision: str) -> _Reply:
        if (sha := repository.resolve(revision)) is None:
            return _error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        siblings = [{"rfilename": path} for path in repository.commits[sha]]
        facts = {"_id": name, "id": name, "modelId": name, "private": repository.is_private, "tags": []}
        return _json({**facts, "downloads": 0, "likes": 0, "sha": sha, "siblings": siblings})

    def _tree(self, repository: Repository, revision: str, folder: str) -> _Reply:
        if (sha := repository.resolve(revision)) is None:
            return _error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        entries = []
        for path, content in ((p, c) for p, c in repository.commits[sha].items() if p.startswith(folder)):
            entry = {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
            if _is_large(path, len(content)):
                digest = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 134}
            entries.append(entry)
        return _json(entries)

    def _resolve(self, repository: Repository, revision: str, path: str) -> _Reply:
        if (sha := repository.resolve(revision)) is None:
            return _error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        content = repository.commits[sha].get(path)
        if content is None:
            return _Reply(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": sha})
        algorithm = hashlib.sha256 if _is_large(path, len(content)) else hashlib.sha1
        return _Reply(200, content, {"ETag": f'"{algorithm(content).hexdigest()}"', "X-Repo-Commit": sha})

    def _batch(self, values: dict[str, Any]) -> _Reply:
        objects: list[dict[str, Any]] = []
        for item in values["objects"]:
            upload = {"actions": {"upload": {"href": f"{self.url}/upload/{item['oid']}"}}}
            objects.append({**item, **({} if item["oid"] in self.blobs else upload)})
        return _json({"transfer": "basic", "objects": objects})

    def _commit(self, name: str, repository: Repository, lines: list[dict[str, Any]]) -> _Reply:
        files = dict(repository.files)
        for line in lines:
            value = line["value"]
            if line["key"] == "header" and value.get("parentCommit", repository.branches["main"]) not in (
                repository.branches["main"],
            ):
                return _error(412, "PreconditionFailed", "A commit has happened since")
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                if value["oid"] not in self.blobs:
                    return _error(400, "MissingLfsFile")
                files[value["path"]] = self.blobs[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        sha = repository.commit(files)
        return _json({"commitUrl": f"{self.url}/{name}/commit/{sha}", "commitOid": sha, "pullRequestUrl": None})
