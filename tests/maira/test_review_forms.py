"""Forms of a review: answers given over HTTP or by keyboard, as the commands of `radfact meta` read them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from accessibility import serious_violations
from chat_server import ChatServer, last
from error_checks import raises
from maira_command import maira
from meta_run import run_meta
from review_desk import ADDRESS, TOKEN, press, saved, serving, watching
from review_files import CASES, SENTENCES, new_store, write_review_set
from starlette.testclient import TestClient

from maira.review.app import make_app
from maira.review.form import RATED_COUNTS, default_form, read_form, shipped_forms
from maira.review.security import link_tokens
from maira.review.store import Store
from maira.review.studies import read_review_set
from radfact.io.csv_tables import read_csv, write_csv
from radfact.io.jsonl import read_json, write_json, write_jsonl
from radfact.meta.datasets.layouts import read_ratings
from radfact.meta.datasets.preferences import read_preferences

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CANDIDATE = "1. Heart normal\n2. Effusion"
REPORTS = [["s1", "The heart is enlarged.", CANDIDATE], ["s2", "No effusion.", "Small effusion."]]


def write_reports(folder: Path) -> Path:
    write_csv(folder / "table.csv", ["id", "reference", "candidate"], REPORTS)
    return folder / "table.csv"


class Answering:
    """Two readers who answer a form over HTTP."""

    def __init__(self, store: Store, client: TestClient, folder: Path) -> None:
        self.store, self.client, self.folder = store, client, folder
        for name in ("Ada", "Bo"):
            client.post("/api/readers", json={"name": name})

    def study(self, reader: str, number: int = 1) -> Any:
        return self.client.get(f"/api/studies/{number}", params={"reader": reader}).json()

    def change(self, reader: str, kind: str, number: int = 1, code: int = 200, **fields: Any) -> Any:
        version = self.study(reader, number)["state"]["version"]
        body = {"reader": reader, "id": f"change-{reader}-{number}-{version}", "version": version, "kind": kind}
        answer = self.client.post(f"/api/studies/{number}/changes", json={**body, **fields})
        assert answer.status_code == code, answer.text
        return answer.json()

    def answer(self, reader: str, unit: str = "", number: int = 1, code: int = 200, **values: Any) -> Any:
        return self.change(reader, "answer", number, code, unit=unit, values=values)

    def export(self, *options: object, command: str = "export") -> Path:
        maira("review", command, self.store.path, "--out", self.folder / command, *options)
        return self.folder / command

    def summarize(self) -> Any:
        return read_json(self.export(command="summary") / "summary.json")


@contextmanager
def answering(folder: Path, name: str, *, table: Path | None = None) -> Iterator[Answering]:
    form, drafts = read_form(name), write_review_set(folder, 2) / "drafts.jsonl"
    second = ({"sample_id": f"s{number}", "report": "The heart is enlarged."} for number in (1, 2))
    write_jsonl(folder / "second.jsonl", second)
    item = {"line": 0, "was": SENTENCES[0], "correction": None, "severity": 2, "comment": "Wrong.", "categories": []}
    details = {"corrections": [item, {**item, "line": None, "was": None, "correction": "Effusion."}]}
    write_jsonl(folder / "results/metrics/fineradscore.jsonl", [{"sample_id": "s1", "details": details}])
    options = {"comment": {"results": folder / "results"}, "pair": {"second": folder / "second.jsonl"}}
    manifest = None if table else folder / "manifest.jsonl"
    review_set = read_review_set(table or drafts, manifest, form=form, **options.get(form.unit, {}))
    with (
        closing(Store(folder / "review.sqlite", review_set.drafts, form=form)) as store,
        TestClient(make_app(review_set, store, link_tokens(TOKEN, ())), base_url=ADDRESS) as client,
    ):
        client.get("/", params={"token": TOKEN})
        yield Answering(store, client, folder)


def test_counts_by_significance_are_read_as_rexval(tmp_path: Path) -> None:
    with answering(tmp_path, "rexval", table=write_reports(tmp_path)) as desk:
        assert desk.study("Ada")["reference"][0]["text"] == "The heart is enlarged"
        missing = desk.change("Ada", "finish", code=422)["error"]
        assert "(a) False report of a finding (2)" in missing
        for value in (-1, "many"):
            desk.answer("Ada", code=400, significant_a=value)
        desk.change("Ada", "delete", code=400, sentence="d0")
        for reader, count in (("Ada", 2), ("Bo", 4)):
            desk.answer(reader, **dict.fromkeys(RATED_COUNTS, 0) | {"significant_a": count, "insignificant_f": 1})
            for kind in ("undo", "redo", "finish"):
                desk.change(reader, kind)
        desk.answer("Ada", number=2, significant_a=5)
        out = desk.export("--manifest", tmp_path / "table.csv")
        statistics = desk.summarize()
    ratings = read_ratings(out, "rexval")
    (sample,) = ratings.samples
    assert (sample.pair.candidate, sample.pair.reference) == (CANDIDATE, "The heart is enlarged.")
    assert sample.ratings["errors"] == {"0": 3, "1": 5}
    assert sample.ratings["insignificant_f"] == {"0": 1, "1": 1}
    assert statistics["readers"]["Bo"]["answers"]["significant_a"]["mean"] == 4
    assert {row["measure"] for row in statistics["krippendorff_alpha"]} == {*RATED_COUNTS}
    run_meta("agreement", out, "--layout", "rexval", "--metrics", "rouge_l", "--out", tmp_path / "r")
    assert read_json(tmp_path / "r" / "agreement.json")["inter_rater"][0]["mean_absolute_difference"] == 2
    run_meta("pairs", out, "--layout", "rexval", "--out", tmp_path / "pairs.csv")
    assert CANDIDATE in (tmp_path / "pairs.csv").read_text()


def test_counts_of_rexamine_are_summed_by_rater_and_continue_its_run(tmp_path: Path) -> None:
    def add_a_mass(request: dict[str, Any], _: int) -> tuple[int, dict[str, str], str]:
        return 200, {}, f"{last(request).splitlines()[0]} A mass."

    write_csv(tmp_path / "r.csv", ["id", "site", "report"], [[f"r{n}", "xy"[n % 2], f"Clear {n}."] for n in range(4)])
    with closing(ChatServer(add_a_mass)) as server:
        models = ("--styler", "openai:m", "--errors-by", "openai:m", "--base-url", server.base_url)
        command = ("rexamine", tmp_path / "r.csv", *models, "--metrics", "bleu_1", "--out", tmp_path / "run")
        run_meta(*command)
        with answering(tmp_path, "rexamine", table=tmp_path / "run/for_experts.csv") as desk:
            names = [field.name for field in desk.store.form.fields]
            for number in range(1, len(desk.store.drafts) + 1):
                for reader, count in (("Ada", number), ("Bo", number + 1)):
                    desk.answer(reader, number=number, **dict.fromkeys(names, 0) | {"omission": count, "position": 1})
                    desk.change(reader, "finish", number)
            run_meta(*command, "--counts", desk.export() / "counts.csv")
    rows = [row for _, row in read_csv(tmp_path / "export/counts.csv")[1]]
    assert [row["errors"] for row in rows if row["rater"] == "Ada"] == [str(number + 1) for number in range(1, 5)]
    assert read_json(tmp_path / "run/rexamine.json")["experts"] == "experts"


def test_severities_by_line_are_read_as_refisco(tmp_path: Path) -> None:
    with answering(tmp_path, "fineradscore") as desk:
        assert desk.study("Ada")["reference"] is None
        desk.change("Ada", "edit", sentence="d0", text="The heart is enlarged.")
        desk.change("Ada", "delete", sentence="d1")
        desk.change("Ada", "add", text="Rib fracture.")
        added = desk.study("Ada")["state"]["sentences"][-1]["id"]
        for unit, severity in (("d0", 4), ("d1", 0), (added, 1)):
            desk.answer("Ada", unit, severity=severity, comment="Seen.")
        desk.change("Ada", "finish")
        table = desk.export() / "refisco.csv"
    with closing(ChatServer(lambda *_: (200, {}, "{}"))) as server:
        model = ("--judge", "openai:m", "--base-url", server.base_url)
        run_meta("corrections", table, *model, "--metrics", "bleu_2", "--out", tmp_path / "c")
    assert read_json(tmp_path / "c/corrections.json")["severities"]["model"]["mean_absolute"] == 3
    (sample,) = read_ratings(table, "refisco-v1").samples
    corrections = sample.corrections
    assert corrections is not None
    found = [(item.line, item.text, item.severity, item.comment) for item in corrections.items]
    assert found == [(0, "The heart is enlarged.", 3, "Seen."), (None, "Rib fracture.", 1, "Seen.")]
    assert sample.ratings["severity_sum"] == {"Ada": 4}


def test_preferences_are_blinded_and_read_in_the_order_of_the_files(tmp_path: Path) -> None:
    with answering(tmp_path, "preferences") as desk:
        texts = [desk.study("Ada", number)["candidates"][0] for number in (1, 2)]
        # The second file is report A in one of two studies.
        assert sorted(len(candidate) for candidate in texts) == [1, 3]
        assert desk.study("Ada")["state"]["sentences"] == []
        assert desk.client.get("/export/answers.csv", params={"reader": "Ada"}).status_code == 404
        for reader in ("Ada", "Bo"):
            prefers = ["first", "second"][len(desk.study(reader)["candidates"][0]) == 3]
            desk.answer(reader, preference=prefers, confidence=9)
            assert desk.study(reader)["state"]["answers"]["preference"] == prefers
            desk.change(reader, "finish")
        table = desk.export("--manifest", tmp_path / "manifest.jsonl") / "preferences.csv"
        with raises("--manifest: missing-option"):
            maira("review", "export", desk.store.path, "--out", tmp_path / "other")
    preferences = read_preferences(table)
    assert (preferences.expert, preferences.confidence) == (["second"], [9])
    run_meta("agreement", table, "--layout", "preferences", "--metrics", "rouge_l", "--out", tmp_path / "r")
    assert read_json(tmp_path / "r" / "agreement.json")["preferences"]
    assert preferences.second[0].candidate == "The heart is enlarged."


def test_comments_of_a_results_folder_are_rated(tmp_path: Path) -> None:
    with answering(tmp_path, "comments") as desk:
        for unit in ("d0", "d1"):
            desk.answer("Ada", unit, accurate="yes" if unit == "d0" else "no", helpful="yes")
        desk.change("Ada", "finish")
        rows = [row for _, row in read_csv(desk.export() / "answers.csv")[1]]
        answers = desk.summarize()["readers"]["Ada"]["answers"]
    rated = [" ".join((row["text"].split(" ")[0], row["accurate"], row["helpful"])) for row in rows]
    assert rated == ["The yes yes", "(added) no yes"]
    assert answers == {"accurate": {"yes": 1, "no": 1}, "helpful": {"yes": 2, "no": 0}}


def test_an_answer_that_is_no_longer_asked_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    choice = {"type": "choice", "options": [{"value": value, "name": str(value)} for value in (0, 1)]}
    fields = [{"name": "has", **choice}, {"name": "n", **choice, "when": {"has": [1]}}]
    fields.append({"name": "m", "type": "number", "when": {"n": [1]}})
    form = {"name": "own", "title": "Own", "unit": "study", "steps": [{"name": "Rate", "instruction": "Rate."}]}
    form["fields"] = [{**field, "label": field["name"]} for field in fields]
    write_json(path, form)
    with answering(tmp_path, str(path), table=write_reports(tmp_path)) as desk:
        desk.answer("Ada", has=1, n=1, m=3)
        desk.answer("Ada", has=0)
        assert desk.study("Ada")["state"]["answers"] == {"has": 0}
        (row,) = (row for _, row in read_csv(desk.export() / "answers.csv")[1])
        assert (row["has"], row["n"], row["m"]) == ("0", "", "")
        desk.answer("Ada", has=1)
        assert desk.study("Ada")["state"]["answers"] == {"has": 1, "n": 1, "m": 3}


@pytest.mark.parametrize(("lines", "error"), CASES["wrong forms"])
def test_a_wrong_form_is_refused(tmp_path: Path, lines: str, error: str) -> None:
    path = tmp_path / "form.yaml"
    start = "name: own\ntitle: Own\nsteps: [{name: Rate, instruction: Rate.}]\n"
    path.write_text(start + lines)
    with pytest.raises(ValueError, match=error):
        read_form(str(path))


def test_a_review_keeps_its_form(tmp_path: Path) -> None:
    assert shipped_forms() == ["comments", "fineradscore", "maira2", "preferences", "rexamine", "rexval"]
    with closing(new_store(tmp_path, {"one": "Clear."})) as store:
        assert store.form == default_form()
        # As in files of earlier versions, no action names the form.
        assert store.campaign.history == []
        with raises("review.sqlite: form: mismatch"):
            Store(store.path, store.drafts, form=read_form("rexval"))


@pytest.mark.browser
def test_counts_and_preferences_by_keyboard(browser: Browser, tmp_path: Path) -> None:
    keys = {"rexval": ("1", "1", "Shift+Digit2", "0", "f"), "preferences": ("b", "0", "f")}
    for name, pressed in keys.items():
        folder = tmp_path / name
        folder.mkdir()
        with answering(folder, name, table=write_reports(folder) if name == "rexval" else None) as desk:
            with serving(desk.client.app) as url, watching(browser, f"{url}?token={TOKEN}") as page:
                page.get_by_role("button", name="Ada", exact=True).click()
                page.locator("#report").wait_for()
                press(page, "f")
                page.locator("#message", has_text="Not answered yet").wait_for()
                press(page, *pressed)
                saved(page)
                for width in (1366, 390):
                    page.set_viewport_size({"width": width, "height": 768})
                    assert serious_violations(page) == []
                    assert page.evaluate("document.documentElement.scrollWidth") == width
            state = desk.store.review("Ada", 1).state
            counts = {**dict.fromkeys(RATED_COUNTS, 0), "significant_a": 2, "insignificant_b": 1}
            preferred = "first" if desk.store.is_swapped("Ada", 1) else "second"
            answers = {"rexval": counts, "preferences": {"preference": preferred, "confidence": 10}}
            assert (state.done, state.answers) == (True, answers[name])
