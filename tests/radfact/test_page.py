"""The results page as HTML: scores, studies, safety of texts, images, drafts without a reference, and wrong input."""

import base64
import json
import re
from collections.abc import Callable, Mapping
from html import unescape
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from error_checks import raises, raises_code
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from results_folder import HOSTILE, figure, page_data, sentence, write_folder, write_image, write_manifest
from typer.testing import CliRunner

from radfact import Pair, evaluate
from radfact.cli.main import create_app
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import write_json, write_jsonl
from radfact.pages import page as page_module
from radfact.pages.page import page_record, write_page
from radfact.results.display import words
from radfact.results.options import PageOptions
from radfact.results.schema import VERSION

CASES = yaml.safe_load(Path(__file__).with_name("page_cases.yaml").read_text("utf-8"))


class Page:
    """The content of a page: its HTML, the data of its script, and its text."""

    def __init__(self, path: Path) -> None:
        self.html = path.read_text("utf-8")
        self.data = page_data(path)
        text = re.sub(r"<(script|style).*?</\1>|<[^>]*>", "", self.html, flags=re.DOTALL)
        self.text = " ".join(unescape(text).split())

    def study(self, sample_id: str = "good") -> dict[str, Any]:
        return next(study for study in self.data["studies"] if study["sample_id"] == sample_id)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "results")


def rewrite(path: Path, change: Callable[[list[dict[str, Any]]], Any]) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    change(rows)
    write_jsonl(path, rows)


def page_of_scores(folder: Path, scores: Mapping[str, Any], **metrics: str) -> Page:
    records = {name: {"scores": [score]} for name, score in metrics.items()} or {"radfact": {"scores": list(scores)}}
    scores_file = {"version": VERSION, "scores": scores, "judge": "x", "counts": {}, "metrics": records}
    write_json(folder / "scores.json", scores_file)
    return Page(write_page(folder))


def test_each_score_is_a_row_with_its_interval(folder: Path) -> None:
    page = Page(write_page(folder, notes=["Phantoms, not patients."]))
    row = next(row for row in re.findall(r"<tr.*?</tr>", page.html, re.S) if "Logical precision" in row)
    assert re.findall(r"<td[^>]*>([^<]*)</td>", row)[:3] == ["0.750", "0.760", "0.650 – 0.850"]
    for text in CASES["shown"]:
        assert text in page.text


@pytest.mark.parametrize(("metrics", "names"), CASES["main"])
def test_a_page_begins_with_a_few_main_scores(folder: Path, metrics: dict[str, list[str]], names: list[str]) -> None:
    scores = {name: figure(0.5) for own in metrics.values() for name in own}
    records = {metric: {"scores": own} for metric, own in metrics.items()}
    write_json(folder / "scores.json", {"version": VERSION, "scores": scores, "counts": {}, "metrics": records})
    page = Page(write_page(folder))
    assert re.findall(r"<h3>(.*?)</h3>", page.html.partition("<script")[0]) == names
    assert "0.500 95% interval 0.400 – 0.600, n = 2" in page.text


@pytest.mark.parametrize(("reports", "errors"), CASES["errors"])
def test_a_sentence_names_its_error(tmp_path: Path, reports: list[str], errors: list[str]) -> None:
    evaluate([Pair("a", *reports)], ["radfact"], judge="offline", bootstrap=0, out=tmp_path)
    study = Page(tmp_path / "report.html").study("a")
    assert [study[side][0].get("error") for side in ("candidate", "reference")] == errors


def test_a_row_of_the_findings_adds_up(tmp_path: Path) -> None:
    texts = CASES["nodules"]
    pairs = [
        Pair(key, text, "Large right nodule." if key == "size" else "Right nodule.") for key, text in texts.items()
    ]
    evaluate(pairs, ["findings"], bootstrap=0, out=tmp_path)
    row = re.search(r"Nodule</button></th>(.*?)</tr>", Page(tmp_path / "report.html").html, re.DOTALL)
    assert row is not None
    cells = re.findall(r"<td>(.*?)</td>", row[1])
    assert cells == ["5", "1", "2 (1 wrong side)", "1", "1", "0", "0"]


def test_scores_without_a_value_are_named_and_have_no_row(folder: Path) -> None:
    page = page_of_scores(folder, {"bleu_4": figure(30.0, unit="0 to 100"), "spatial_f1": figure(None, n=0)})
    assert "BLEU-4 ↑ (0 to 100)" in page.text
    assert "No study has a value of Spatial F1." in page.text
    assert list(page.data["directions"]) == ["bleu_4"]


@pytest.mark.parametrize("score", [figure(None, n=0), figure(2.5, direction="lower")])
def test_only_scores_from_0_to_1_have_a_bar(folder: Path, score: dict[str, Any]) -> None:
    page = page_of_scores(folder, {"errors": score}, errors="errors")
    assert "<svg" not in page.html.partition("<script")[0]
    assert "The bar runs" not in page.text
    assert "RadFact's" not in page.text


def test_scores_have_the_names_of_their_papers() -> None:
    assert {name: words(name) for name in CASES["labels"]} == CASES["labels"]


@pytest.mark.parametrize("score", [{"point": 0.5}, {"point": 0.5, "n": None}])
def test_an_unknown_number_of_samples_is_not_zero(score: dict[str, Any], folder: Path) -> None:
    assert "<td>–</td>" in page_of_scores(folder, {"logical_f1": score}).html


@pytest.mark.parametrize("score", ['{"point": 1e999}', '{"point": 0.5, "n": -1}'])
def test_a_score_that_is_no_number_is_refused(score: str, folder: Path) -> None:
    text = f'{{"version": {VERSION}, "scores": {{"a": {score}}}, "counts": {{}}, "metrics": {{}}}}'
    (folder / "scores.json").write_text(text)
    with pytest.raises(InputError, match=r"scores\.json: scores\.a\.\w+: expected a"):
        write_page(folder)


def test_a_page_holds_a_limited_number_of_studies(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "MAX_STUDIES", 3)
    assert len(Page(write_page(folder)).data["studies"]) == 3
    monkeypatch.setattr(page_module, "MAX_STUDIES", 2)
    page = Page(write_page(folder))
    assert page.data == {}
    assert "Logical F1" in page.text
    assert "These 3 studies are too many for one page. radfact view" in page.text


def test_no_text_becomes_markup(folder: Path) -> None:
    judge = {"name": HOSTILE, "note": HOSTILE}
    metrics = {"radfact": {"scores": [HOSTILE]}}
    scores = {"version": VERSION, "scores": {HOSTILE: figure(0.5)}, "metrics": metrics}
    write_json(folder / "scores.json", {**scores, "judge": judge, "counts": {HOSTILE: 1}})
    write_json(folder / "run.json", {"version": VERSION, HOSTILE: {HOSTILE: HOSTILE}})
    rewrite(folder / "samples.jsonl", lambda rows: rows[2].update(failure=HOSTILE))
    page = Page(write_page(folder, notes=[HOSTILE, "Set \u202eone\u2066"]))
    assert page.study("bad")["candidate"][0]["text"] == HOSTILE
    assert (page.html.count("<script"), page.html.count("<img")) == (2, 0)
    assert not re.search(r"<[^>]*\s(?:on\w+|style)=", page.html.partition("<script")[0])
    # Bidirectional controls are written out.
    assert "<p>Set [U+202E]one[U+2066]</p>" in page.html
    assert not set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069") & set(page.html)


def test_the_page_loads_nothing_and_runs_only_its_own_script(folder: Path) -> None:
    page = Page(write_page(folder))
    (policy,) = re.findall('http-equiv="Content-Security-Policy" content="([^"]*)"', page.html)
    # The hashes that it allows are right: else the browser runs no script and shows no style.
    assert re.match("default-src 'none'; .*script-src 'sha256-[^ ]+';.* style-src 'sha256-[^ ]+';", unescape(policy))
    markup = re.sub(r"<(script|style).*?</\1>", "", page.html, flags=re.DOTALL)
    assert re.findall(r' (?:src|href)="([^"]*)"', markup) == ["#scores-title", "#studies-title"]


@settings(max_examples=20)  # many texts a page, since writing it takes longer
@given(texts=st.lists(st.text(min_size=1), min_size=1, max_size=30))
def test_any_text_is_unchanged_on_the_page(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    folder = write_folder(tmp_path_factory.mktemp("any"))
    rows = [sentence("failed", "candidate", index, text) for index, text in enumerate(texts, 1)]
    with (folder / "sentences.jsonl").open("a", encoding="utf-8") as handle:
        handle.writelines(json.dumps(row) + "\n" for row in rows)
    shown = Page(write_page(folder)).study("failed")["candidate"]
    assert [row["text"] for row in shown[1:]] == texts


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    write_image(tmp_path / "radiograph.png")
    row = {"sample_id": "good", "frontal": "radiograph.png", "indication": "Cough."}
    return write_manifest(tmp_path / "manifest.jsonl", row)


def frontal(folder: Path, manifest: Path, **options: Any) -> dict[str, Any]:
    return dict(Page(write_page(folder, manifest=manifest, **options)).study()["images"]["frontal"])


def pixels(folder: Path, manifest: Path) -> Image.Image:
    src = frontal(folder, manifest)["src"]
    return Image.open(BytesIO(base64.b64decode(src.removeprefix("data:image/jpeg;base64,"))))


def test_an_image_is_embedded_small_without_metadata_and_with_its_size(folder: Path, manifest: Path) -> None:
    exif = Image.Exif()
    exif[0x010E] = "Name of a patient"
    Image.new("L", (900, 1800)).save(manifest.parent / "radiograph.png", exif=exif)
    image = frontal(folder, manifest)
    assert (image["width"], image["height"]) == (900, 1800)
    assert pixels(folder, manifest).size == (320, 640)
    assert not pixels(folder, manifest).getexif()


def test_sixteen_bit_images_are_scaled_to_their_full_range(folder: Path, manifest: Path) -> None:
    write_image(manifest.parent / "radiograph.png", dtype=np.uint16)
    shown = np.asarray(pixels(folder, manifest))
    assert shown.min() < 5
    assert shown.max() > 250
    assert abs(float(shown.mean()) - 127.5) < 3


@pytest.mark.parametrize("kept", [None, 8, 200])
def test_a_missing_or_damaged_image_is_reported(folder: Path, manifest: Path, kept: int | None) -> None:
    path = write_image(manifest.parent / "radiograph.png", 400, 300)
    content = path.read_bytes()
    path.unlink()
    if kept is not None:
        path.write_bytes(content[:kept])
    reason = "no such image" if kept is None else "this image cannot be read"
    assert frontal(folder, manifest) == {"message": f"radiograph.png: {reason}"}


def test_images_of_many_studies_are_in_files(folder: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "MAX_EMBEDDED", 2)
    own = write_image(folder / "report_images" / "mine.jpg")
    before = folder / frontal(folder, manifest)["src"]
    assert Image.open(before).size == (40, 30)
    write_image(manifest.parent / "radiograph.png", 50, 20)
    after = folder / frontal(folder, manifest)["src"]
    assert (before.exists(), after.exists()) == (False, True)
    write_page(folder, manifest=manifest, images="inside")
    assert list((folder / "report_images").iterdir()) == [own]


def test_the_location_of_images_is_an_option_that_is_kept(folder: Path, manifest: Path) -> None:
    record = page_record(PageOptions(manifest=manifest, images="beside"), folder)
    write_json(folder / "run.json", {"version": VERSION, "page": record.model_dump(mode="json")})
    for arguments, begin in (([], "report_images/"), (["--images", "inside"], "data:")):
        assert CliRunner().invoke(create_app(), ["page", str(folder), *arguments]).exit_code == 0
        study = Page(folder / "report.html").study()
        assert study["images"]["frontal"]["src"].startswith(begin)
        assert study["indication"] == "Cough."


def write_drafts(folder: Path, report: Any = "Lungs clear. Heart normal.") -> Path:
    write_jsonl(folder / "drafts.jsonl", [{"sample_id": "radiograph", "report": report, "model": "m"}])
    return folder / "drafts.jsonl"


@pytest.mark.parametrize(
    ("report", "text"), [([{"text": "Apical cap."}], "Apical cap."), ("Heart normal. Clear.", "Heart normal. Clear.")]
)
def test_drafts_are_separate_from_the_studies(folder: Path, tmp_path: Path, report: Any, text: str) -> None:
    page = Page(write_page(folder, unscored=write_drafts(tmp_path, report)))
    assert [draft["candidate"][0]["text"] for draft in page.data["unscored"]] == [text]
    assert len(page.data["studies"]) == 3
    assert "Drafts without a reference: shown, not scored" in page.text
    assert "not scored" not in Page(write_page(folder)).text


@pytest.mark.parametrize("has_own", [True, False])
def test_the_manifest_next_to_the_drafts_is_preferred(folder: Path, tmp_path: Path, has_own: bool) -> None:
    drafts = write_drafts(tmp_path / "model")
    for place, width in ((tmp_path / "model", 11), (tmp_path, 5))[not has_own :]:
        write_image(place / "image.png", width, 5)
        write_manifest(place / "manifest.jsonl", {"sample_id": "radiograph", "frontal": "image.png"})
    [draft] = Page(write_page(folder, manifest=tmp_path / "manifest.jsonl", unscored=drafts)).data["unscored"]
    assert draft["images"]["frontal"]["width"] == (11 if has_own else 5)


@pytest.mark.parametrize("name", ["scores.json", "samples.jsonl", "sentences.jsonl"])
def test_an_incomplete_folder_is_refused(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with raises_code(ErrorCode.FILE_NOT_FOUND):
        write_page(folder)


@pytest.mark.parametrize(("row", "place"), CASES["manifests"])
def test_an_unusable_manifest_is_refused(folder: Path, tmp_path: Path, row: dict[str, Any] | None, place: str) -> None:
    if row is not None:
        write_manifest(tmp_path / "manifest.jsonl", row)
    before = sorted(folder.rglob("*"))
    with raises(place):
        write_page(folder, manifest=tmp_path / "manifest.jsonl")
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(("place", "fields", "code"), CASES["records"])
def test_an_invalid_record_is_refused(folder: Path, place: str, fields: dict[str, Any], code: str) -> None:
    name, line = place.split(":")
    rewrite(folder / name, lambda rows: rows[int(line) - 1].update(fields))
    with raises(f"{place}: {next(iter(fields))}: {code}"):
        write_page(folder)


def test_missing_samples_are_refused(folder: Path) -> None:
    (folder / "samples.jsonl").write_text("")
    with raises("samples.jsonl: mismatch"):
        write_page(folder)
