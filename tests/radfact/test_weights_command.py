"""`radfact weights`: small weights from an HTTP server on this machine, in the layout that metrics read."""

import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from file_server import FileServer
from metric_files import write_wordnet

from radfact.api import evaluate
from radfact.metrics import weights as weights_module
from radfact.metrics.registry import entries
from radfact.metrics.weights import catalog
from radfact.records import Pair

Run = Callable[..., tuple[int, str, str]]
CASES = yaml.safe_load(Path(__file__).with_name("downloads.yaml").read_text("utf-8"))["commands"]
PAIRS = [Pair("1", "The chest is clear.", "The bosom is clear.")]


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
        "wordnet.zip": Path(shutil.make_archive(str(source / "archive"), "zip", source, "wordnet")).read_bytes(),
        "radgraph.tar.gz": tar_of({"config.json": "{}", "weights.th": "tensors", "vocabulary/labels.txt": "a\n"}),
        "encoder.json": b'{"model_type": "bert"}',
        "chexbert.pth": bytes(100_000),
        "vocab.txt": b"[PAD]\n",
    }
    with closing(FileServer(files)) as server:
        yield server


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
    """The folder of weights with two of the catalog."""
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


def test_a_broken_fetch_is_resumed_and_a_wrong_checksum_ends_it(
    run_radfact: Run, root: Path, server: FileServer
) -> None:
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


@pytest.mark.parametrize(("words", "hint", "code"), CASES)
def test_names_without_weights_are_refused_with_a_hint(
    run_radfact: Run, root: Path, words: list[str], hint: str, code: str
) -> None:
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
