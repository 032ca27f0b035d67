"""Downloads, names of models on the Hub, and digests of weights."""

import hashlib
import json
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from file_server import FileServer

from radfact.errors import ErrorCode, RunError
from radfact.fingerprint import weights_digest
from radfact.io.download import download
from radfact.io.hub import parse_hub_name, snapshot_name

CASES: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("downloads.yaml").read_text("utf-8"))
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


@pytest.mark.parametrize(("changes", "has_checksum", "has_range", "is_resumed"), CASES["resumed"])
def test_a_broken_download_is_resumed(
    server: FileServer, changes: dict[str, Any], has_checksum: bool, has_range: bool, is_resumed: bool, tmp_path: Path
) -> None:
    sha256 = SHA256 if has_checksum else None
    server.files["latest"] = CONTENT
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


@pytest.mark.parametrize(("options", "changes", "code", "message"), CASES["refused"])
def test_what_is_not_the_file_is_refused_and_removed(
    server: FileServer, options: dict[str, object], changes: dict[str, object], code: str, message: str, tmp_path: Path
) -> None:
    vars(server).update(changes)
    error = fails(server, tmp_path / "file", **options)
    assert (error.code, message in error.message) == (code, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "expected"), CASES["names"])
def test_a_name_is_told_from_a_path(
    name: str, expected: list[str | None] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    assert parse_hub_name(name) == (expected and tuple(expected))
    assert parse_hub_name(Path(name)) == parse_hub_name(str(Path(name)))


def test_a_snapshot_in_the_cache_has_its_name() -> None:
    assert snapshot_name(Path("cache/models--org--my-name/snapshots/abc")) == ("org/my-name", "abc")
    assert snapshot_name(Path("checkpoints/phantom")) is None


SIZE = 100_000


def write(path: Path, names: Sequence[str], changed: int | None = None) -> Path:
    """Tensors of one size, all zeros but for one byte."""
    spans = {name: [place * SIZE, (place + 1) * SIZE] for place, name in enumerate(names)}
    header = json.dumps({name: {"dtype": "U8", "shape": [SIZE], "data_offsets": at} for name, at in spans.items()})
    tensors = bytearray(SIZE * len(names))
    if changed is not None:
        tensors[changed] = 1
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + tensors)
    return path


NAMES = [f"layers.{number}.weight" for number in range(200)]


def test_names_and_each_end_and_the_middle_of_tensors_count(tmp_path: Path) -> None:
    plain = weights_digest(write(tmp_path / "plain", NAMES))
    places = [tensor * SIZE + place for tensor in (0, 77, 199) for place in (0, SIZE // 2, SIZE - 1)]
    assert plain not in [weights_digest(write(tmp_path / "other", NAMES, changed)) for changed in places]
    swapped = [NAMES[1], NAMES[0], *NAMES[2:]]
    assert weights_digest(write(tmp_path / "swapped", swapped)) != plain


@pytest.mark.parametrize(
    "content", [b"", b"PK", bytes(1_000_000), b"\x02\0\0\0\0\0\0\0{}", b"\x02\0\0\0\0\0\0\0[]12345678"]
)
def test_what_is_no_safetensors_is_read_in_places(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(content)
    (tmp_path / "b").write_bytes(content + b"\x01")
    assert weights_digest(tmp_path / "a") != weights_digest(tmp_path / "b")


def test_the_first_bytes_of_another_format_are_no_length_of_a_header(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    with path.open("wb") as file:
        file.write((200_000_000).to_bytes(8, "little"))
        file.truncate(300_000_000)
    tracemalloc.start()
    weights_digest(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000
