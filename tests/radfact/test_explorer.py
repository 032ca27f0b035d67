"""The explorer of results folders: its list, two runs side by side, and what its server responds to."""

import json
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import pytest
from error_checks import raises
from results_folder import EXPLORER, REFERENCES, SECOND, TOKEN, serve_explorer, write_runs
from waiting import PATIENCE

from radfact import Pair, Sentence, evaluate
from radfact.io.jsonl import read_json, write_json
from radfact.pages import comparison_page
from radfact.pages.comparison_page import RunPair
from radfact.pages.runs import OpenedRun, find_runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_runs(tmp_path_factory.mktemp("explorer"))


@pytest.fixture(scope="module")
def pair(runs: Path) -> RunPair:
    return RunPair(*(OpenedRun(f"runs/{name}", runs / name) for name in ("first", "second")))


def test_runs_have_the_same_names_whatever_else_is_listed(runs: Path, tmp_path: Path) -> None:
    assert list(find_runs([runs])) == ["runs/first", "runs/second"]
    assert list(find_runs([runs / "second"])) == ["second"]
    assert list(find_runs([runs, runs / "second"])) == ["runs/first", "runs/second"]
    copytree(runs, tmp_path / "other" / "runs")
    names = [name.split("/")[-3:] for name in find_runs([runs, tmp_path / "other" / "runs"])]
    assert names[2:] == [["other", "runs", "first"], ["other", "runs", "second"]]


def test_a_folder_that_cannot_be_read_is_listed_with_the_reason(runs: Path, tmp_path: Path) -> None:
    copytree(runs / "first", tmp_path / "damaged")
    (tmp_path / "damaged" / "scores.json").write_text('{"scores": 3')
    write_json(tmp_path / "other" / "settings.json", {})
    reasons = {name.rpartition("/")[2]: run.reason or "" for name, run in find_runs([tmp_path]).items()}
    assert list(reasons) == ["damaged"]
    assert "not JSON" in reasons["damaged"]
    with raises("none: file-not-found"):
        find_runs([tmp_path / "none"])


def test_the_list_has_model_judge_samples_and_main_scores(runs: Path, tmp_path: Path) -> None:
    copytree(runs / "first", tmp_path / "run")
    record = read_json(tmp_path / "run" / "run.json")
    write_json(tmp_path / "run" / "run.json", {**record, "input": {"files": ["drafts.jsonl"], "models": ["maira-2"]}})
    [run] = find_runs([tmp_path / "run"]).values()
    assert (run.file, run.model, run.judge, run.samples) == ("drafts.jsonl", "maira-2", "offline", 4)
    assert run.main == ["logical_f1", "grounding_f1", "spatial_f1", "findings", "findings_f1"]
    assert run.groups["findings"][:3] == ["findings", "findings_f1", "findings_precision"]
    assert run.date is not None


def test_scores_of_two_runs_are_computed_again_only_if_a_run_changes(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    copytree(runs, tmp_path / "runs")

    def compared() -> dict[str, Any]:
        return RunPair(*(OpenedRun(name, tmp_path / "runs" / name) for name in ("first", "second"))).compared_scores

    first = json.dumps(compared())
    with monkeypatch.context() as patch:
        patch.setattr(comparison_page, "compare", None)
        assert json.dumps(compared()) == first
    pairs = [Pair(key, report, REFERENCES[key]) for key, report in SECOND.items()]
    evaluate(pairs, "radfact", judge="offline", bootstrap=0, out=tmp_path / "runs" / "first")
    assert json.dumps(compared()) != first
    rmtree(tmp_path / "cache")
    (tmp_path / "cache").touch()
    assert compared()["rows"]


def test_shared_studies_are_of_the_kinds_by_which_they_changed(pair: RunPair) -> None:
    assert list(pair.indices) == ["effusion", "clear", "empty"]
    # An empty draft has no precision, which is unknown and not a loss.
    assert pair.scores["logical_precision"] == [-0.5, 1.0, None]
    expected = {
        **{"lost": {0, 2}, "gained": {1}, "changed": {0, 1, 2}, "emptied": {2}, "lateral": {0}},
        **{"baseline:missed": {1}, "candidate:misplaced": {0}},
    }
    assert {kind: pair.kinds.get(kind) for kind in expected} == expected


def test_studies_with_other_references_stay_apart(runs: Path, tmp_path: Path) -> None:
    other = {**REFERENCES, "clear": [Sentence(text="Right effusion.")]}
    pairs = [Pair(key, report, other[key]) for key, report in SECOND.items()]
    evaluate(pairs, "radfact", judge="offline", bootstrap=0, out=tmp_path / "other")
    compared = RunPair(OpenedRun("first", runs / "first"), OpenedRun("other", tmp_path / "other"))
    assert compared.kinds["other_reference"] == {1}
    assert set((compared.study("clear") or {})["separate"]) == {"baseline", "candidate"}


@pytest.mark.parametrize("name", ["sentences.jsonl", "metrics/findings.jsonl"])
def test_a_study_is_the_same_wherever_its_rows_are_in_a_file(runs: Path, tmp_path: Path, name: str) -> None:
    copytree(runs / "first", tmp_path / "run")
    path = tmp_path / "run" / name
    rows = path.read_text("utf-8").splitlines(keepends=True)
    path.write_text("".join(["\n", *reversed(rows)]), "utf-8")
    changed, run = (OpenedRun("run", folder).study("effusion") or {} for folder in (tmp_path / "run", runs / "first"))
    assert changed
    # The copy is elsewhere, so it has no manifest.
    assert {**run, **changed} == run


@pytest.fixture(scope="module")
def served(runs: Path) -> Iterator[str]:
    with serve_explorer(runs) as address:
        yield address


def request(served: str, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    with closing(HTTPConnection(served.removeprefix("http://"), timeout=PATIENCE)) as connection:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()


@pytest.fixture(scope="module")
def cookie(served: str) -> str:
    status, headers, _ = request(served, f"/run/runs/first?token={TOKEN}&x=1")
    assert (status, headers["location"]) == (303, "/run/runs/first?x=1")
    assert "HttpOnly" in headers["set-cookie"]
    assert TOKEN not in headers["set-cookie"]
    # A token leads to no other host.
    assert request(served, f"//evil.example/?token={TOKEN}")[1]["location"] == "/evil.example/"
    return headers["set-cookie"].split(";")[0]


def get_json(served: str, cookie: str, path: str) -> Any:
    status, headers, content = request(served, path, Cookie=cookie)
    assert (status, headers["content-type"]) == (200, "application/json")
    return json.loads(content)


STUDY = "/api/study?run=runs/first&study=effusion"


@pytest.mark.parametrize("path", EXPLORER["protected"])
def test_nothing_is_shown_without_the_token(served: str, path: str) -> None:
    for address in (path, f"{path}{'&' if '?' in path else '?'}token=wrong"):
        status, headers, content = request(served, address, Cookie="radfact_view_80=; =;;")
        assert status == 401
        assert "set-cookie" not in headers
        assert b"effusion" not in content


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "192.168.0.1", "[", ""])
def test_other_hosts_and_sites_are_refused(served: str, cookie: str, host: str) -> None:
    assert request(served, "/", Host=host, Cookie=cookie)[0] == 403
    assert request(served, STUDY, Cookie=cookie, Sec_Fetch_Site="cross-site")[0] == 403
    # A link in a message leads to a page.
    assert request(served, "/run/runs/first", Cookie=cookie, Sec_Fetch_Site="cross-site")[0] == 200


@pytest.mark.parametrize("path", EXPLORER["not_found"])
def test_what_is_not_listed_is_not_found(served: str, cookie: str, path: str) -> None:
    status, headers, _ = request(served, path, Cookie=cookie)
    assert status == 404
    assert headers["content-security-policy"] == "frame-ancestors 'none'"
    assert headers["cache-control"] == "no-store"


def test_the_server_only_reads(served: str, cookie: str, runs: Path) -> None:
    def state() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in runs.parent.rglob("*")}

    before = state()
    image = get_json(served, cookie, STUDY)["images"]["frontal"]
    assert (image["width"], image["height"]) == (400, 200)
    for src in (image["src"], image["full"]):
        status, headers, content = request(served, src, Cookie=cookie)
        assert (status, headers["content-type"], content[:2]) == (200, "image/jpeg", b"\xff\xd8")
    query = "baseline=runs/first&system=runs/second"
    rows = get_json(served, cookie, f"/api/scores?{query}")["rows"]
    assert ["Logical recall ↑", ""] in [row[0] for row in rows]
    assert get_json(served, cookie, f"/api/search?{query}&words=cardiomegaly") == [0]
    itself = request(served, "/compare?baseline=runs/first&system=runs/first", Cookie=cookie)
    assert (itself[0], b"two different runs" in itself[2]) == (422, True)
    for path in ("/", "/run/runs/first", f"/compare?{query}"):
        assert request(served, path, Cookie=cookie)[0] == 200
    assert state() == before
    assert request(served, "/", "POST", Cookie=cookie)[0] == 501


def test_a_run_that_changes_is_read_again(runs: Path, tmp_path: Path) -> None:
    copytree(runs / "first", tmp_path / "run")
    with serve_explorer(tmp_path / "run", token=None) as explorer:
        assert get_json(explorer, "", "/api/study?run=run&study=clear")["candidate"][0]["text"] == "Right pneumothorax."
        pairs = [Pair(key, report, REFERENCES[key]) for key, report in SECOND.items()]
        evaluate(pairs, "radfact", judge="offline", bootstrap=0, out=tmp_path / "run")
        shown = get_json(explorer, "", "/api/study?run=run&study=clear")
        assert shown["candidate"][0]["text"] == "The lungs are clear."
        rmtree(tmp_path / "run")
        assert request(explorer, "/run/run")[0] == 422
