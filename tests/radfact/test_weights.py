"""`radfact weights`, downloads from a real HTTP server on this machine, names on the Hub, and digests of weights."""

import hashlib
import io
import json
import re
import shutil
import tarfile
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from chat_server import LocalServer, QuietHandler
from metric_files import write_wordnet

from radfact.api import evaluate
from radfact.errors import ErrorCode, RunError
from radfact.fingerprint import weights_digest
from radfact.io.download import download
from radfact.io.hub import parse_hub_name, snapshot_name
from radfact.metrics import weights as weights_module
from radfact.metrics.registry import entries
from radfact.metrics.weights import catalog
from radfact.records import Pair

CASES: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("weights.yaml").read_text("utf-8"))
Run = Callable[..., tuple[int, str, str]]
PAIRS = [Pair("1", "The chest is clear.", "The bosom is clear.")]
CONTENT = bytes(range(256)) * 4000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
SIZE = 100_000
NAMES = [f"layers.{number}.weight" for number in range(200)]


@dataclass
class FileServer(LocalServer):
    files: dict[str, bytes] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    cut: int | None = None  # number of bytes after which the next reply breaks off
    has_ranges: bool = True  # whether a range is sent, and not the whole file
    etag: str = "strong"  # or "weak", or "" for none
    status: int = 0  # of every reply, if not 0
    content_type: str = "application/octet-stream"
    requests: list[tuple[str, str | None, int]] = field(default_factory=list)
    """Path and range of every request, and the number of bytes of the reply."""

    def url(self, path: str) -> str:
        return f"{self.root_url}/{path}"

    def __post_init__(self) -> None:
        outer = self

        class Handler(QuietHandler):
            def do_GET(self) -> None:  # noqa: N802 - the name that `http.server` calls
                name, asked = self.path.lstrip("/"), self.headers.get("Range")
                if name in outer.redirects:
                    self.send_head(302, {"Location": f"/{outer.redirects[name]}", "Content-Length": "0"})
                    return
                content = outer.files.get(name)
                if outer.status or content is None:
                    self._send(outer.status or 404, b"", {})
                    return
                digest = f'"{hashlib.md5(content).hexdigest()}"'
                headers = {"strong": {"ETag": digest}, "weak": {"ETag": f"W/{digest}"}}.get(outer.etag, {})
                is_same = self.headers.get("If-Range", digest) == digest
                start = int(re.findall(r"\d+", asked)[0]) if asked and outer.has_ranges and is_same else 0
                if start >= len(content) > 0:
                    self._send(416, b"", {"Content-Range": f"bytes */{len(content)}"})
                elif start:
                    headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
                    self._send(206, content[start:], headers)
                else:
                    self._send(200, content, headers)

            def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
                fixed = {"Content-Type": outer.content_type, "Content-Length": str(len(body))}
                self.send_head(status, fixed | headers)
                sent = body if outer.cut is None else body[: outer.cut]
                outer.cut = None
                outer.requests.append((self.path.lstrip("/"), self.headers.get("Range"), len(sent)))
                self.wfile.write(sent)
                self.close_connection = len(sent) < len(body)

        super().__init__(Handler)


def tar_of(files: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FileServer]:
    source = tmp_path_factory.mktemp("source")
    write_wordnet(source / "wordnet")
    files = {
        "file": CONTENT,
        "wordnet.zip": Path(shutil.make_archive(str(source / "archive"), "zip", source, "wordnet")).read_bytes(),
        "radgraph.tar.gz": tar_of({"config.json": "{}", "weights.th": "tensors", "vocabulary/labels.txt": "a\n"}),
        "encoder.json": b'{"model_type": "bert"}',
        "chexbert.pth": bytes(100_000),
        "vocab.txt": b"[PAD]\n",
    }
    with closing(FileServer(files)) as server:
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


def write(path: Path, names: Sequence[str], changed: int | None = None) -> Path:
    """Tensors of one size, all zeros but for one byte."""
    spans = {name: [place * SIZE, (place + 1) * SIZE] for place, name in enumerate(names)}
    header = json.dumps({name: {"dtype": "U8", "shape": [SIZE], "data_offsets": at} for name, at in spans.items()})
    tensors = bytearray(SIZE * len(names))
    if changed is not None:
        tensors[changed] = 1
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + tensors)
    return path


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


@pytest.fixture
def root(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Use a catalog of the files of the server, and an empty folder of weights."""

    def file(path: str, name: str = "", **fields: Any) -> dict[str, Any]:
        content = server.files[name or path]
        checksum = {} if name else {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        return {"path": path, "url": server.url(name or path), **checksum, **fields}

    files = {
        "wordnet": [file("wordnet.zip", unpack="wordnet")],
        "chexbert": [file("vocab.txt"), file("chexbert.pth")],
        "radgraph": [
            file("radgraph.tar.gz", "radgraph.tar.gz", unpack="."),
            file("encoder/config.json", "encoder.json"),
        ],
    }
    about = {"title": "Small weights", "license": "MIT", "license_url": "https://example.org"}
    content = {name: {**about, "files": items} for name, items in files.items()}
    path = tmp_path / "catalog.yaml"
    path.write_text(json.dumps(content))  # JSON is YAML
    monkeypatch.setattr(weights_module, "CATALOG", path)
    monkeypatch.setenv("RADFACT_WEIGHTS", str(tmp_path / "weights"))
    catalog.cache_clear()
    yield tmp_path / "weights"
    catalog.cache_clear()


def listed(run_radfact: Run) -> dict[str, dict[str, Any]]:
    code, out, _ = run_radfact("weights", "list", "--json")
    assert code == 0
    return {item["name"]: item for item in json.loads(out)["weights"]}


@pytest.fixture
def fetched(run_radfact: Run, root: Path) -> Path:
    assert run_radfact("weights", "fetch", "wordnet", "chexbert")[0] == 0
    return root


def names_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_the_catalog_has_all_weights_of_the_metrics() -> None:
    needed = {name for entry in entries().values() if entry.is_builtin for name in entry.declared.requirements.weights}
    assert catalog().keys() == needed
    for entry in catalog().values():
        assert urlsplit(entry.license_url).scheme == "https"
        assert {urlsplit(file.url).scheme for file in entry.files} == {"https"}
        assert all(len(bytes.fromhex(file.sha256)) == 32 for file in entry.files if file.sha256)


def test_nothing_is_there_before_a_fetch(run_radfact: Run, root: Path, server: FileServer) -> None:
    items = listed(run_radfact)
    assert {item["status"] for item in items.values()} == {"missing"}
    assert items["wordnet"]["metrics"] == ["meteor"]
    assert items["radgraph"]["files"][0]["sha256"] is None
    code, out, _ = run_radfact("weights", "list")
    assert code == 0
    assert server.url("radgraph.tar.gz") in out
    assert "unknown" in out
    unavailable = evaluate(PAIRS, ["rouge_l", "meteor"]).unavailable["meteor"]
    assert "radfact weights fetch wordnet" in unavailable
    assert not root.exists()
    assert server.requests == []


def test_a_metric_finds_what_was_fetched(run_radfact: Run, root: Path, server: FileServer) -> None:
    code, out, err = run_radfact("weights", "fetch", "meteor")
    assert (code, str(root / "wordnet") in out) == (0, True), err
    assert "license: MIT" in err
    assert "lexnames" in names_in(root / "wordnet")
    assert [path.name for path in root.iterdir()] == ["wordnet"]
    assert listed(run_radfact)["wordnet"]["status"] == "ready"
    assert evaluate(PAIRS, ["meteor"]).scores["meteor"] > 0.9
    assert run_radfact("weights", "verify")[0] == 0
    requests = len(server.requests)
    assert run_radfact("weights", "fetch", "wordnet")[0] == 0
    assert len(server.requests) == requests


@pytest.mark.usefixtures("fetched")
def test_a_folder_argument_comes_before_the_fetched_weights(tmp_path: Path) -> None:
    (tmp_path / "own/wordnet").mkdir(parents=True)
    for weights in ([tmp_path / "own"], {"wordnet": tmp_path / "own/wordnet"}):
        unavailable = evaluate(PAIRS, ["rouge_l", "meteor"], weights=weights).unavailable
        assert str(tmp_path / "own/wordnet") in unavailable["meteor"]
    # A folder without wordnet says nothing about it.
    assert "meteor" in evaluate(PAIRS, ["meteor"], weights={"chexbert": tmp_path}).runs


def test_a_broken_fetch_resumes_and_a_wrong_checksum_ends_it(run_radfact: Run, root: Path, server: FileServer) -> None:
    content, server.cut = server.files["chexbert.pth"], 3
    server.files["chexbert.pth"] = content[1:] + b"x"
    for code, files in (
        ("server-unavailable", {"vocab.txt.part", "vocab.txt.part.etag"}),
        ("checksum-mismatch", {"vocab.txt"}),
    ):
        exit_code, _, err = run_radfact("weights", "fetch", "chexbert")
        assert (exit_code, err.strip().endswith(f"[{code}]")) == (1, True)
        assert names_in(root) == {f"downloads/chexbert/{name}" for name in files}
        assert listed(run_radfact)["chexbert"]["status"] == "partial download"
    server.files["chexbert.pth"] = content
    assert run_radfact("weights", "fetch", "chexbert")[0] == 0
    ranges = [request[:2] for request in server.requests]
    assert ranges == [("vocab.txt", None), ("vocab.txt", "bytes=3-"), *[("chexbert.pth", None)] * 2]


@pytest.mark.parametrize(("words", "hint", "code"), CASES["commands"])
def test_unknown_names_are_refused(run_radfact: Run, root: Path, words: list[str], hint: str, code: str) -> None:
    exit_code, _, err = run_radfact("weights", *words)
    assert (exit_code, hint in err, f"[{code}]" in err, root.exists()) == (2, True, True, False)


@pytest.mark.usefixtures("root")
def test_without_network_files_of_the_user_are_used(run_radfact: Run, server: FileServer) -> None:
    server.close()
    code, _, err = run_radfact("weights", "fetch", "wordnet")
    assert code == 1
    assert err.strip().endswith("[server-unavailable]")
    place = Path(listed(run_radfact)["wordnet"]["files"][0]["download_to"])
    assert str(place) in err
    place.parent.mkdir(parents=True)
    place.write_bytes(server.files["wordnet.zip"])
    assert run_radfact("weights", "fetch", "wordnet")[0] == 0
    assert listed(run_radfact)["wordnet"]["status"] == "ready"


def test_a_copied_folder_is_verified_and_a_damaged_file_found_and_replaced(
    run_radfact: Run, fetched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = fetched.rename(tmp_path / "copy")
    monkeypatch.setenv("RADFACT_WEIGHTS", str(root))
    code, out, _ = run_radfact("weights", "verify")
    assert (code, "chexbert: 2 files, 2 with the published checksum" in out, "recorded checksum" in out) == (0, 1, 1)
    damages: list[Callable[[Path], object]] = [lambda path: path.write_text("damaged"), Path.unlink]
    for name, other in (("chexbert/vocab.txt", "wordnet"), ("wordnet/lexnames", "chexbert")):
        for damage in damages:
            damage(root / name)
            code, out, err = run_radfact("weights", "verify")
            assert (code, f"{root / name}: " in out, err.strip().endswith("[checksum-mismatch]")) == (1, True, True)
            assert run_radfact("weights", "verify", other)[0] == 0
        assert listed(run_radfact)[name.split("/")[0]]["status"] == "incomplete"
        assert run_radfact("weights", "fetch", "wordnet", "chexbert")[0] == 0
        assert run_radfact("weights", "verify")[0] == 0


def test_an_invalid_record_is_an_error_and_repaired_by_a_fetch(run_radfact: Run, fetched: Path) -> None:
    for record in ("", "[1]", "{}", '{"sources": {}, "files": {"lexnames": 1}}'):
        (fetched / "wordnet/.weights.json").write_text(record)
        code, _, err = run_radfact("weights", "verify")
        assert (code, "wordnet/.weights.json:" in err) == (2, True)
        assert listed(run_radfact)["wordnet"]["status"] == "incomplete"
    assert run_radfact("weights", "fetch", "wordnet")[0] == 0
    assert run_radfact("weights", "verify")[0] == 0


def test_files_without_record_are_kept_and_not_called_valid(run_radfact: Run, root: Path) -> None:
    (root / "chexbert").mkdir(parents=True)
    (root / "chexbert/vocab.txt").write_text("[PAD]\n")
    (root / "chexbert/notes.txt").write_text("mine")
    assert listed(run_radfact)["chexbert"]["status"] == "without record"
    code, out, _ = run_radfact("weights", "verify", "chexbert")
    assert code == 1
    assert "chexbert.pth: missing" in out
    assert "notes.txt: neither" in out
    assert "1 with the published checksum" in out
    code, _, err = run_radfact("weights", "fetch", "chexbert")
    assert (code, "[output-conflict]" in err) == (2, True)
    assert (root / "chexbert/notes.txt").read_text() == "mine"
    write_wordnet(root / "wordnet")
    code, out, _ = run_radfact("weights", "verify", "wordnet")
    assert code == 3
    assert f"{root / 'wordnet/lexnames'}: neither" in out


def test_an_archive_is_unpacked_next_to_other_files_and_another_address_is_fetched_again(
    run_radfact: Run, root: Path, server: FileServer
) -> None:
    code, _, err = run_radfact("weights", "fetch", "radgraph")
    assert code == 0
    names = {"config.json", "weights.th", "vocabulary/labels.txt", "encoder/config.json", ".weights.json"}
    assert names_in(root / "radgraph") == names
    assert "no published checksum of radgraph.tar.gz, encoder/config.json" in err
    text = weights_module.CATALOG.read_text()
    server.files["encoder2.json"] = b"{}"
    weights_module.CATALOG.write_text(text.replace("/encoder.json", "/encoder2.json"))
    catalog.cache_clear()
    assert listed(run_radfact)["radgraph"]["status"] == "incomplete"
    assert run_radfact("weights", "fetch", "radgraph")[0] == 0
    assert (root / "radgraph/encoder/config.json").read_text() == "{}"


def test_an_archive_that_cannot_be_used_is_one_error(run_radfact: Run, root: Path, server: FileServer) -> None:
    archives = {
        b"no archive": "cannot be unpacked",
        tar_of({"config.json": "{}"})[:40]: "cannot be unpacked",
        tar_of({"config.json": "{}", "../../outside.txt": "x"}): "cannot be unpacked",
        tar_of({"readme.txt": "x"}): "config.json",
    }
    for archive, message in archives.items():
        server.files["radgraph.tar.gz"] = archive
        code, _, err = run_radfact("weights", "fetch", "radgraph")
        assert (code, message in err.strip().splitlines()[-1]) == (1, True)
        assert not (root / "radgraph").exists()
        assert not list(root.rglob("outside.txt"))
        shutil.rmtree(root)
