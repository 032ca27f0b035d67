"""Resumable download of a file, checked by size and SHA-256."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException, IncompleteRead
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from radfact.errors import ErrorCode, RunError

SILENT_SECONDS = 60.0
"""Seconds without a byte, after which a server counts as broken."""
_PIECE_BYTES = 1 << 18

OnProgress = Callable[[int, int | None], None]
"""Receives the bytes so far, and the total or None."""


def download(
    url: str,
    path: Path,
    *,
    size: int | None = None,
    sha256: str | None = None,
    on_progress: OnProgress = lambda _done, _total: None,
) -> str:
    """Download a file, or the rest of `PATH.part`, or check the one that exists, and return its SHA-256."""
    part = path.with_name(f"{path.name}.part")
    is_new = not path.exists()
    if is_new:
        path.parent.mkdir(parents=True, exist_ok=True)
        _receive_all(url, part, size, sha256 is not None, on_progress)
    source = part if is_new else path
    digest = file_sha256(source)
    if digest != (sha256 or digest):
        if is_new:
            _remove(part)
        fate = "the download is removed" if is_new else "replace or remove the file"
        message = f"{path}: expected the SHA-256 {sha256}, found {digest}; {fate}"
        raise RunError(message, code=ErrorCode.CHECKSUM_MISMATCH)
    if is_new:
        part.rename(path)
        _etag_file(part).unlink(missing_ok=True)
    return digest


def file_sha256(path: Path) -> str:
    """Compute the SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _etag_file(part: Path) -> Path:
    return part.with_name(f"{part.name}.etag")


def _remove(part: Path) -> None:
    part.unlink()
    _etag_file(part).unlink(missing_ok=True)


def _receive_all(url: str, part: Path, size: int | None, has_checksum: bool, on_progress: OnProgress) -> None:
    """Receive the file, or what is missing of it, with one line for every error of the network."""
    host = urlsplit(url).netloc
    try:
        while not _receive(url, part, size, has_checksum, on_progress):
            _remove(part)
    except URLError as error:
        raise _unavailable(f"{host}: no connection ({error.reason})") from None
    except (HTTPException, TimeoutError, ConnectionError) as error:
        done = part.stat().st_size if part.exists() else 0
        message = f"{host}: the connection broke off after {done:,} bytes of {part.stem} ({type(error).__name__})"
        raise _unavailable(f"{message}; the same command resumes") from None


def _receive(url: str, part: Path, size: int | None, has_checksum: bool, on_progress: OnProgress) -> bool:
    """Send one request; False if the server does not know the range, so that the download must start again."""
    etag, headers = "", {}
    with suppress(OSError):
        etag = _etag_file(part).read_text(encoding="utf-8")
    done = part.stat().st_size if part.exists() and (has_checksum or etag) else 0
    if done:
        # A checksum finds a mixture of two versions; without one, the server must not send the rest of another version.
        headers = {"Range": f"bytes={done}-"} | ({} if has_checksum else {"If-Range": etag})
    # A compressed body has other ranges than the file.
    request = Request(url, headers={"Accept-Encoding": "identity", **headers})
    try:
        reply = urlopen(request, timeout=SILENT_SECONDS)
    except HTTPError as error:
        error.close()
        if error.code == 416 and done:
            return error.headers.get("Content-Range") == f"bytes */{done}"
        raise _unavailable(f"{url}: HTTP {error.code} {error.reason}") from None
    with reply:
        if reply.headers.get_content_type() == "text/html":
            raise _unavailable(f"{url}: expected a file, found a web page, as of a proxy or a login")
        if reply.status == 200:
            done = 0
        elif not reply.headers.get("Content-Range", "").startswith(f"bytes {done}-"):
            return False
        total = None if reply.length is None else done + reply.length
        if size is not None and total not in (None, size):
            raise RunError(f"{url}: expected {size:,} bytes, found {total:,}", code=ErrorCode.CHECKSUM_MISMATCH)
        etag = reply.headers.get("ETag", "")
        # A weak ETag does not tell that all bytes are the same.
        if re.fullmatch(r'"[^"]*"', etag):
            _etag_file(part).write_text(etag, encoding="utf-8")
        elif not done:
            _etag_file(part).unlink(missing_ok=True)
        with part.open("ab" if done else "wb") as file:
            while piece := reply.read(_PIECE_BYTES):
                done += file.write(piece)
                on_progress(done, total)
        if total is not None and done < total:
            raise IncompleteRead(b"", total - done)
    if size is not None and done < size:
        raise _unavailable(f"{url}: expected {size:,} bytes, received {done:,}; the same command resumes")
    return True


def _unavailable(message: str) -> RunError:
    return RunError(message, code=ErrorCode.SERVER_UNAVAILABLE)
