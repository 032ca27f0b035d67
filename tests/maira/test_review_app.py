"""The review server over HTTP: requests of the page, and refused requests."""

import json
import re
import shutil
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import numpy as np
import pytest
from error_checks import raises
from httpx import Client
from maira_command import maira
from PIL import Image
from review_desk import ADDRESS, TOKEN
from review_files import CASES, CORNERS, REFERENCE, REPORT, start_server, write_set
from starlette.testclient import TestClient
from waiting import PATIENCE

from maira.review.app import make_app
from maira.review.security import MAX_REQUEST_BYTES, check_certificate, link_tokens
from maira.review.store import Store
from maira.review.studies import ReviewSet, read_review_set
from radfact.io.jsonl import write_jsonl
from radfact.pages.access import listen, read_token


@pytest.fixture
def review_set(tmp_path: Path) -> ReviewSet:
    """Drafts of a model, one of them with RadFact's verdicts."""
    drafts, manifest = write_set(tmp_path, {"one": REPORT, "two": []}, {"one": {"indication": "Cough."}})
    secret = drafts.rename(tmp_path / "secret-model.jsonl")
    secret.write_text(secret.read_text().replace("{", '{"model": "secret-model", ', 1))
    verdict = {"sample_id": "one", "side": "candidate", "status": "entailment", "evidence": [0], "why": "Both."}
    rows = [{**verdict, "index": index, "text": sentence["text"]} for index, sentence in enumerate(REPORT)]
    write_jsonl(tmp_path / "sentences.jsonl", rows)
    return read_review_set(secret, manifest, results=tmp_path)


@pytest.fixture
def store(tmp_path: Path, review_set: ReviewSet) -> Iterator[Store]:
    with closing(Store(tmp_path / "review.sqlite", review_set.drafts)) as store:
        yield store


@pytest.fixture
def page(review_set: ReviewSet, store: Store) -> Iterator[TestClient]:
    """What the page itself can do in a browser on this machine that has opened the printed address."""
    with TestClient(make_app(review_set, store, link_tokens(TOKEN, ())), base_url=ADDRESS) as client:
        assert client.get("/", params={"token": TOKEN}).status_code == 200
        client.post("/api/readers", json={"name": "Ada"})
        yield client


def study(page: TestClient, number: int = 1) -> Any:
    return page.get(f"/api/studies/{number}", params={"reader": "Ada"}).json()


def change(page: TestClient, number: int = 1, **fields: Any) -> Any:
    version = study(page, number)["state"]["version"]
    body = {"reader": "Ada", "id": f"change-{number}-{version}", "version": version, **fields}
    return page.post(f"/api/studies/{number}/changes", json=body)


def test_images_are_served_by_study_number(page: TestClient) -> None:
    answer = page.get("/images/1/frontal")
    info = json.loads(answer.headers["image-info"])
    assert (info["columns"], info["rows"], info["level"]) == (40, 20, {"columns": 40, "rows": 20, "step": 1})
    values = np.frombuffer(answer.content, "<u2") * info["scale"] + info["offset"]
    assert set(values) == {90}
    thumbnail = page.get("/thumbnails/1/frontal")
    assert thumbnail.headers["content-type"] == "image/png"
    assert Image.open(BytesIO(thumbnail.content)).size == (256, 128)
    assert page.get(f"/images/1/frontal?longest={'5' * 5000}").content == answer.content
    for folder in ("images", "thumbnails"):
        assert page.get(f"/{folder}/1/lateral").status_code == 404


def test_the_reference_and_radfact_verdicts_are_hidden_until_their_step(page: TestClient) -> None:
    assert (study(page)["reference"], study(page)["verdicts"]) == (None, None)
    for number in (1, 2):
        change(page, number, kind="step", step=3)
    assert study(page)["reference"] == [{"text": REFERENCE[0]["text"], "boxes": [CORNERS]}]
    assert study(page)["verdicts"][1] == {"index": 1, "status": "entailment", "why": "Both.", "evidence": [0]}
    assert study(page, 2)["verdicts"] is None
    # What was seen stays visible.
    change(page, kind="step", step=2)
    assert study(page)["reference"] is not None


def test_file_names_and_models_stay_hidden(page: TestClient) -> None:
    for kind in ({"kind": "step", "step": 2}, {"kind": "step", "step": 3}, {"kind": "finish"}):
        assert change(page, **kind).status_code == 200
    paths = ["/", "/api/set", "/api/studies", "/api/studies/1"]
    paths += [f"/export/{name}" for name in ("corrections.csv", "drafts.jsonl", "summary.json")]
    answers = [page.get(path, params={"reader": "Ada"}) for path in paths]
    assert [answer.status_code for answer in answers] == [200] * 7
    assert not [answer.url for answer in answers if "secret" in answer.text]


def test_an_export_holds_one_reader(page: TestClient, store: Store) -> None:
    change(page, kind="delete", sentence="d0")
    store.add_reader("Ben")
    for path in ("corrections.csv", "drafts.jsonl", "summary.json"):
        assert page.get(f"/export/{path}").status_code == 400
    tables = [page.get("/export/corrections.csv", params={"reader": name}).text for name in ("Ada", "Ben")]
    assert [table.count("\r\n") for table in tables] == [2, 1]
    figures = page.get("/export/summary.json", params={"reader": "ben"}).json()
    assert (list(figures["readers"]), figures["agreement"]) == (["Ben"], [])


def test_a_locked_or_removed_database_is_reported_to_page_and_terminal(
    page: TestClient, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    store._connection.execute("PRAGMA busy_timeout = 0")
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        body = {"reader": "Ada", "id": "while-locked", "version": 0, "kind": "delete", "sentence": "d0"}
        answers = [page.post("/api/studies/1/changes", json=body)]
        other.execute("COMMIT")
        other.execute("BEGIN EXCLUSIVE")
        answers.append(page.get("/api/set"))
    assert [answer.status_code for answer in answers] == [503, 503]
    assert {answer.json()["error"] for answer in answers} == {"the database is locked by another program"}
    assert caplog.messages[0] == f"{store.path}: cannot be written: locked by another program"
    caplog.clear()
    store.path.unlink()
    for answer in (change(page, kind="delete", sentence="d0"), page.post("/api/readers", json={"name": "Eve"})):
        assert (answer.status_code, answer.json()["error"]) == (503, "the database is unavailable")
    assert caplog.messages == [f"{store.path}: cannot be written: removed or replaced since it was opened"] * 2


def test_every_response_has_security_headers(page: TestClient) -> None:
    paths = ["/api/set", "/images/1/frontal", "/none", "/export/corrections.csv", "/api/studies", "/static/viewer.js"]
    expected = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "cache-control": "no-store"}
    for answer in (*map(page.get, paths), page.post("/api/readers", content="x" * (MAX_REQUEST_BYTES + 1))):
        policy = answer.headers["content-security-policy"]
        assert ("default-src 'none'" in policy, "unsafe" in policy) == (True, False)
        assert answer.headers.items() >= expected.items()


def test_names_of_this_machine_and_same_origin_changes_are_accepted(page: TestClient) -> None:
    headers = {"origin": ADDRESS, "sec-fetch-site": "same-origin"}
    for name in ("Ben", "BEN"):
        assert page.post("/api/readers", json={"name": name}, headers=headers).json() == {"name": "Ben"}
    # An address that was typed comes from no site.
    assert page.get("/api/set", headers={"sec-fetch-site": "none"}).status_code == 200
    for host in ("localhost", "LOCALHOST:9000", "127.0.0.1", "[::1]:8471"):
        assert page.get("/", params={"token": TOKEN}, headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    ("status", "field", "path", "headers", "content"),
    [
        *CASES["refused requests"],
        (400, None, "/api/readers", {}, "[" * 100_000),
        (413, None, "/api/readers", {}, b" " * (MAX_REQUEST_BYTES + 1)),
        # In pieces, without a length.
        (413, None, "/api/readers", {}, [b" " * 1024] * (MAX_REQUEST_BYTES // 1024 + 2)),
    ],
)
def test_refused_requests_change_nothing(
    page: TestClient, store: Store, status: int, field: str | None, path: str, headers: dict[str, str], content: Any
) -> None:
    path = path.replace("MANY", "5" * 5000)
    if content is None:
        answer = page.get(path, headers=headers)
    else:
        own = {"content-type": "application/json", "origin": ADDRESS, "sec-fetch-site": "same-origin"}
        body = json.dumps(content) if isinstance(content, dict) else content
        answer = page.post(path, content=body, headers=own | headers)
    assert answer.status_code == status
    assert b"root:" not in answer.content
    if answer.headers["content-type"] == "application/json":
        assert answer.json()["field"] == field
    assert (store.readers(), store.review("Ada", 1).version) == (["Ada"], 0)


def test_server_errors_reveal_no_patient_data(
    page: TestClient, store: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("The heart size is normal.")

    monkeypatch.setattr(store, "readers", fail)
    answer = page.get("/api/set")
    assert answer.status_code == 500
    assert "heart" not in answer.text + caplog.text
    assert "KeyError in test_review_app.py" in caplog.text


@pytest.fixture
def network(review_set: ReviewSet, store: Store) -> Callable[[], TestClient]:
    """Browsers on other machines."""
    served = make_app(review_set, store, link_tokens(TOKEN, ()), host="0.0.0.0")
    return lambda: TestClient(served, base_url="http://192.0.2.7:8471")


def test_requests_without_the_token_are_refused(network: Callable[[], TestClient]) -> None:
    for path in ("/", "/api/set", "/images/1/frontal", "/static/viewer.js", "/?token=wrong"):
        answer = network().get(path)
        assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)
    for cookie in ("maira_review_8471=", f"maira_review_8471={TOKEN}", "maira_review_8471=\u00e9", "=;=,;;"):
        assert network().get("/api/set", headers={"cookie": cookie.encode("latin-1")}).status_code == 401


def test_health_needs_no_token_and_reveals_nothing(network: Callable[[], TestClient], store: Store) -> None:
    answer = network().get("/health")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
    assert "set-cookie" not in answer.headers
    assert network().get("/health", headers={"host": "evil.example"}).status_code == 403
    assert network().post("/health", json={}).status_code == 405
    store.close()
    answer = network().get("/health")
    assert (answer.status_code, answer.json()["error"]) == (503, "the database is unavailable")


def test_the_token_becomes_an_http_only_cookie(network: Callable[[], TestClient]) -> None:
    browser = network()
    answer = browser.get("/", params={"token": TOKEN})
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Strict"} <= {*cookie.split("; ")}
    assert TOKEN not in cookie + answer.text
    assert browser.get("/api/set").status_code == 200


def test_reviews_on_one_machine_have_separate_cookies(review_set: ReviewSet, store: Store) -> None:
    # Like a browser, which sends the cookies of an address to all ports; some of other programs are malformed.
    cookies = ['settings={"a":1}', "x=a b", "bad"]
    ways = [(TOKEN, ":8471"), (TOKEN[::-1], ":8472"), (TOKEN[::-1], "")]
    servers = []
    for token, port in ways:
        served = make_app(review_set, store, link_tokens(token, ()), host="0.0.0.0")
        servers.append(TestClient(served, base_url=f"http://192.0.2.7{port}"))
        cookies.append(servers[-1].get("/", params={"token": token}).headers["set-cookie"].split(";")[0])
    assert len({cookie.split("=")[0] for cookie in cookies}) == 6
    for server in servers:
        server.cookies.clear()
        assert server.get("/api/set", headers={"cookie": "; ".join(cookies)}).status_code == 200


READERS = ("Ada", "Bo Møller & Søn", "Cy")


@pytest.fixture
def readers(review_set: ReviewSet, store: Store) -> dict[str, TestClient]:
    """Browsers that have opened the links of three readers."""
    for name in READERS:
        store.add_reader(name)
    tokens = link_tokens(TOKEN, READERS)
    browsers = {name: TestClient(make_app(review_set, store, tokens), base_url=ADDRESS) for name in READERS}
    for name, browser in browsers.items():
        assert browser.get("/", params={"token": tokens[name]}).status_code == 200
    return browsers


def test_a_reader_answers_under_the_name_of_the_link_only(readers: dict[str, TestClient], store: Store) -> None:
    body = {"id": "change-1-0", "version": 0, "kind": "delete", "sentence": "d0"}
    for place, (name, browser) in enumerate(readers.items()):
        about = browser.get("/api/set").json()
        assert (about["reader"], about["readers"]) == (name, [name])
        for reader in READERS:
            status = 200 if reader == name else 403
            sent = {**body, "reader": reader, "id": f"change-of-{place}"}
            assert browser.post("/api/studies/1/changes", json=sent).status_code == status
            for path in ("/api/studies/1", "/api/studies", "/export/corrections.csv", "/export/drafts.jsonl"):
                assert browser.get(path, params={"reader": reader}).status_code == status
        assert browser.post("/api/readers", json={"name": "Eve"}).status_code == 403
    assert [store.review(name, 1).version for name in store.readers()] == [1, 1, 1]


def test_a_link_is_valid_for_its_reader_only_and_replaces_another(readers: dict[str, TestClient]) -> None:
    tokens = link_tokens(TOKEN, READERS)
    assert TOKEN not in tokens["Ada"]
    browser = TestClient(readers["Ada"].app, base_url=ADDRESS)
    for token in (TOKEN, *link_tokens(TOKEN, ("Bo",)).values(), f"{tokens['Ada']}x", ""):
        assert browser.get("/", params={"token": token}).status_code == 401
        assert not browser.cookies
    readers["Ada"].get("/", params={"token": tokens["Cy"]})
    assert readers["Ada"].get("/api/set").json()["reader"] == "Cy"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_the_command_serves_with_a_certificate_and_logs_no_content(tmp_path: Path) -> None:
    write_set(tmp_path, {"patient-4711": REPORT}, {"patient-4711": {"frontal": "lost-4711.png"}})
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    options = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    options += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", *options, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    with raises("certificate.pem: invalid-value"):
        check_certificate(certificate, None)
    server, address, printed = start_server(tmp_path, "--tls-certificate", str(certificate), "--tls-key", str(key))
    trusted = ssl.create_default_context(cafile=certificate)
    with Client(base_url=urljoin(address, "/"), verify=trusted, timeout=PATIENCE, trust_env=False) as browser:
        entrance = browser.get(address)
        browser.post("/api/readers", json={"name": "Ada Lovelace"})
        paths = ("/api/studies/1?reader=Ada%20Lovelace", "/images/1/frontal", "/patient-4711")
        statuses = [browser.get(path).status_code for path in paths]
        browser.post("/api/readers", content="The heart size is normal. {")
    server.send_signal(signal.SIGINT)
    printed += server.communicate()[0]
    assert (entrance.status_code, statuses, server.returncode) == (200, [200, 400, 404], 0)
    assert "Secure" in entrance.headers["set-cookie"]
    assert not re.search("4711|Lovelace|heart", printed.replace(str(tmp_path), ""))


def test_weak_tokens_and_a_port_in_use_are_refused(tmp_path: Path) -> None:
    for content in ("short", "twenty letters and a space", "twenty-letters-and-é", ""):
        (tmp_path / "token").write_text(content)
        with raises("token: invalid-value"):
            read_token(tmp_path / "token")
    with socket.create_server(("127.0.0.1", 0)) as listener, raises("invalid-option"):
        listen("127.0.0.1", listener.getsockname()[1])


def test_a_misspelt_command_is_not_a_drafts_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sumary = ["review", "sumary", "review.sqlite", "--out", "out"]
    assert "Did you mean 'summary'?" in maira(*sumary, code=2).stderr
    (tmp_path / "sumary").touch()
    assert "Did you mean" not in maira(*sumary, code=2).stderr


def test_bad_input_is_an_error_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_set(tmp_path, {"one": REPORT})
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    for options, expected in CASES["refused options"]:
        with raises(expected):
            maira(*f"review drafts.jsonl --manifest manifest.jsonl --no-browser --port=0 {options}".split())
        assert sorted(tmp_path.iterdir()) == before


def test_help_describes_a_review_and_loads_no_server() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "maira", "review", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "maira review DRAFTS --manifest FILE" in done.stdout
    assert "maira.cli.review" in done.stderr
    assert not re.search("starlette|uvicorn|matplotlib", done.stderr)
