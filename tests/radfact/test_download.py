"""Resumable downloads, from a real HTTP server on this machine."""

import hashlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from file_server import FileServer

from radfact.errors import ErrorCode, RunError
from radfact.io.download import download

CONTENT = bytes(range(256)) * 4000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server() -> Iterator[FileServer]:
    with closing(FileServer({"file": CONTENT})) as server:
        yield server


def fails(server: FileServer, path: Path, **options: object) -> RunError:
    with pytest.raises(RunError) as caught:
        download(server.url("file"), path, **options)  # type: ignore[arg-type]
    return caught.value


@pytest.mark.parametrize("sha256", [SHA256, None])
def test_a_file_is_downloaded_once(server: FileServer, tmp_path: Path, sha256: str | None) -> None:
    steps: list[tuple[int, int | None]] = []
    path = tmp_path / "new/file"
    for _ in range(2):
        digest = download(server.url("file"), path, sha256=sha256, on_progress=lambda *step: steps.append(step))
        assert digest == SHA256
    assert path.read_bytes() == CONTENT
    assert steps[-1] == (len(CONTENT), len(CONTENT))
    assert [path.name for path in path.parent.iterdir()] == ["file"]
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("changes", "sha256", "has_range", "is_resumed"),
    [
        ({}, SHA256, True, True),
        ({}, None, True, True),
        ({"files": {"latest": CONTENT}, "redirects": {"file": "latest"}}, SHA256, True, True),
        # Without ranges or a way to check them, it starts again.
        ({"etag": "weak"}, None, False, False),
        ({"etag": ""}, None, False, False),
        ({"has_ranges": False}, None, True, False),
        ({"has_ranges": False}, SHA256, True, False),
    ],
)
def test_a_broken_download_is_resumed(
    server: FileServer, changes: dict[str, Any], sha256: str | None, has_range: bool, is_resumed: bool, tmp_path: Path
) -> None:
    vars(server).update(changes, cut=300_000)
    error = fails(server, tmp_path / "file", sha256=sha256)
    assert error.code is ErrorCode.SERVER_UNAVAILABLE
    assert not (tmp_path / "file").exists()
    done = (tmp_path / "file.part").stat().st_size
    assert 0 < done <= 300_000
    assert download(server.url("file"), tmp_path / "file", sha256=sha256) == SHA256
    ((_, requested, size),) = server.requests[1:]
    assert requested == (f"bytes={done}-" if has_range else None)
    assert size == len(CONTENT) - (done if is_resumed else 0)


def test_another_version_is_not_appended(server: FileServer, tmp_path: Path) -> None:
    server.cut = 300_000
    fails(server, tmp_path / "file")
    server.files["file"] = CONTENT[::-1]
    download(server.url("file"), tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT[::-1]


@pytest.mark.parametrize("extra", [b"", b"more"])
def test_a_part_of_the_whole_size_is_recognized(server: FileServer, tmp_path: Path, extra: bytes) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT + extra)
    assert download(server.url("file"), tmp_path / "file", sha256=SHA256) == SHA256
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_file_of_the_user_with_another_checksum_stays(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert fails(server, tmp_path / "file", sha256=SHA256).code is ErrorCode.CHECKSUM_MISMATCH
    assert (tmp_path / "file").read_text() == "mine"
    assert server.requests == []


@pytest.mark.parametrize(
    ("options", "changes", "code", "message"),
    [
        ({"sha256": "0" * 64}, {}, "checksum-mismatch", SHA256),
        ({"size": 5}, {}, "checksum-mismatch", "5 bytes"),
        ({}, {"content_type": "text/html; charset=utf-8"}, "server-unavailable", "web page"),
        ({}, {"status": 403}, "server-unavailable", "HTTP 403"),
        ({}, {"status": 500}, "server-unavailable", "HTTP 500"),
    ],
)
def test_what_is_not_the_file_is_refused_and_removed(
    server: FileServer, options: dict[str, object], changes: dict[str, object], code: str, message: str, tmp_path: Path
) -> None:
    vars(server).update(changes)
    error = fails(server, tmp_path / "file", **options)
    assert (error.code, message in error.message) == (code, True)
    assert list(tmp_path.iterdir()) == []
