from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from error_checks import raises
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from results_folder import HOSTILE, figure, sentence, write_folder, write_image, write_manifest
from typer.testing import CliRunner

from radfact.cli.main import app
from radfact.errors import ErrorCode, Failure, InputError
from radfact.io.jsonl import read_json, write_json, write_jsonl
from radfact.judges.protocol import EntailmentQuery, Verdict
from radfact.pages import page as page_module
from radfact.pages.markup import words
from radfact.pages.page import page_record, write_page
from radfact.results.options import PageOptions


class Page(HTMLParser):
    """What a browser makes of the file: elements with attributes, the text of each script and style, visible text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": []}
        self.text = ""
        self._inside = ""
        self.feed(path.read_text("utf-8"))
        self.data: dict[str, Any] = json.loads(self.raw["script"][0])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in self.raw:
            self._inside = tag
            self.raw[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.raw[self._inside][-1] += data
        else:
            self.text += data

    def study(self, sample_id: str) -> dict[str, Any]:
        return next(study for study in self.data["studies"] if study["sample_id"] == sample_id)

    @property
    def policy(self) -> str:
        return next(a["content"] or "" for tag, a in self.elements if tag == "meta" and "http-equiv" in a)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "results")


def rewrite(path: Path, change: Callable[[list[dict[str, Any]]], Any]) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    change(rows)
    write_jsonl(path, rows)


def jpeg_of(src: str) -> Image.Image:
    return Image.open(BytesIO(base64.b64decode(src.removeprefix("data:image/jpeg;base64,"))))


class TestFigures:
    def test_point_median_and_interval_are_in_one_row(self, folder: Path) -> None:
        rows = re.findall(r"<tr.*?</tr>", write_page(folder).read_text(), re.S)
        cells = re.findall(r"<td[^>]*>([^<]*)</td>", next(row for row in rows if "Logical precision" in row))
        assert cells[:3] == ["0.750", "0.760", "0.650 – 0.850"]

    def test_the_interval_is_drawn_to_scale(self, folder: Path) -> None:
        html = write_page(folder).read_text()
        # low 0.65 and high 0.85 on an axis of 200 units
        assert '<rect class="interval" x="130.00" y="4" width="40.00"' in html
        assert "The bar runs from 0 to 1" in html

    def test_scores_without_a_value_are_named_and_have_no_row(self, folder: Path) -> None:
        scores = read_json(folder / "scores.json")
        scores["figures"] |= {"bleu_4": figure(30.0, unit="0 to 100"), "spatial_f1": figure(None, n=0)}
        write_json(folder / "scores.json", scores)
        html = write_page(folder).read_text()
        assert re.findall(r'<th scope="row">([^<]*)</th>', html)[-1] == "BLEU-4 ↑ (0 to 100)"
        assert "No study has a value of Spatial F1." in html
        assert '"spatial_f1"' not in html

    def test_a_missing_score_is_a_dash_without_a_bar(self, folder: Path) -> None:
        write_json(folder / "scores.json", {"figures": {"spatial_f1": figure(None, n=0)}, "judge": "x", "counts": {}})
        html = write_page(folder).read_text()
        assert re.findall(r"<td[^>]*>([^<]*)</td>", html) == ["–", "–", "–", "", "0"]
        assert "<svg" not in html

    def test_a_score_outside_the_common_axis_has_no_bar(self, folder: Path) -> None:
        errors = figure(2.5, direction="lower")
        write_json(folder / "scores.json", {"figures": {"errors": errors}, "judge": "x", "counts": {}})
        html = write_page(folder).read_text()
        assert "<svg" not in html
        assert "The bar runs" not in html
        assert '<th scope="row">Errors ↓</th>' in html

    def test_an_f1_of_radfact_is_not_described_as_a_mean_over_studies(self, folder: Path) -> None:
        text = " ".join(Page(write_page(folder)).text.split())
        set_f1 = "RadFact's F1: the harmonic mean of the dataset-level precision and recall"
        assert f"Mean over the studies that have a value; {set_f1}" in text
        assert "The F1 of the dataset is that of its precision and recall, not the mean of the studies' F1." in text
        parts = {"logical_f1": figure(0.6), "bleu_4": figure(0.1)}
        metrics = {name: {"figures": [figure]} for name, figure in (("radfact", "logical_f1"), ("bleu", "bleu_4"))}
        write_json(folder / "scores.json", {"figures": parts, "metrics": metrics})
        assert f"computed from all of them; {set_f1}" in Page(write_page(folder)).text

    def test_without_radfact_its_scores_are_not_mentioned(self, folder: Path) -> None:
        metrics = {"radgraph": {"figures": ["radgraph_f1"]}}
        write_json(folder / "scores.json", {"figures": {"radgraph_f1": figure(0.6)}, "metrics": metrics})
        text = Page(write_page(folder)).text
        assert "Mean over the studies that have a value or," in text
        assert "RadFact's" not in text

    def test_the_note_of_the_judge_is_shown(self, folder: Path) -> None:
        assert "Judge: tester. Figures of this judge stand alone." in Page(write_page(folder)).text

    def test_failures_are_listed_with_their_reason(self, folder: Path) -> None:
        text = Page(write_page(folder)).text
        assert "Failures: 1 of the studies" in text
        assert "failed: no valid answer" in text

    def test_notes_are_in_the_banner(self, folder: Path) -> None:
        page = Page(write_page(folder, notes=["Phantoms, not patients."]))
        assert "Phantoms, not patients." in page.text


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("logical_f1", "Logical F1"),
        ("rouge_l", "ROUGE-L"),
        ("bleu_4", "BLEU-4"),
        ("chexbert_macro_f1_14", "CheXbert macro F1 14"),
        ("errors_per_report", "Errors per report"),
        ("my_run/rouge_l", "my_run/ROUGE-L"),
        ("openai:gpt-4o, asked", "openai:gpt-4o, asked"),
    ],
)
def test_scores_have_the_names_of_their_papers(name: str, label: str) -> None:
    assert words(name) == label


class TestStudies:
    def test_studies_keep_input_order(self, folder: Path) -> None:
        page = Page(write_page(folder))
        assert [study["sample_id"] for study in page.data["studies"]] == ["good", "bad", "failed"]

    def test_sentences_keep_their_index_in_any_order_of_lines(self, folder: Path) -> None:
        rewrite(folder / "sentences.jsonl", lambda rows: rows.insert(4, rows.pop(0)))
        texts = [s["text"] for s in Page(write_page(folder)).study("good")["candidate"]]
        assert texts == ["Nodule in the left mid zone.", "Small effusion on the right.", "Trachea central."]

    def test_boxes_are_relative_to_the_original_image(self, folder: Path, tmp_path: Path) -> None:
        write_image(tmp_path / "wide.png", 4000, 1000)
        manifest = write_manifest(tmp_path / "manifest.jsonl", {"sample_id": "good", "frontal": "wide.png"})
        study = Page(write_page(folder, manifest=manifest)).study("good")
        assert study["candidate"][0]["boxes"] == [{"x_min": 0.5, "y_min": 0.25, "x_max": 0.75, "y_max": 0.75}]

    def test_the_folder_as_the_scorer_writes_it_is_read(self, tmp_path: Path) -> None:
        from radfact.api import RadFact
        from radfact.records import Box, Pair, Sentence
        from radfact.results.writer import write_results

        class SameText:
            name = "same-text"

            def judge(self, questions: Sequence[EntailmentQuery]) -> list[Verdict | Failure]:
                return [
                    Verdict("entailment", (q.premises.index(q.hypothesis),), "same text")
                    if q.hypothesis in q.premises
                    else Verdict("not_entailment")
                    for q in questions
                ]

            def describe(self) -> dict[str, Any]:
                return {"name": self.name}

            def usage(self) -> dict[str, int]:
                return {}

        seen = Sentence(text="Hilar mass.", boxes=(Box(x_min=0.25, y_min=0.25, x_max=0.5, y_max=0.5),))
        pair = Pair("a", [seen, Sentence(text="Ribs intact.")], [seen])
        write_results(RadFact(judge=SameText(), bootstrap=10).score([pair]), tmp_path, {})
        (study,) = Page(write_page(tmp_path)).data["studies"]
        assert [s["spatial"] for s in study["candidate"]] == ["entailed", "no_boxes"]
        assert study["candidate"][0]["evidence"] == [0]


class TestSafety:
    def test_text_of_a_report_never_becomes_markup(self, folder: Path) -> None:
        page = Page(write_page(folder))
        assert page.study("bad")["candidate"][0]["text"] == HOSTILE
        assert len(page.raw["script"]) == 2
        assert not [tag for tag, _ in page.elements if tag == "img"]

    def test_notes_failures_and_names_are_escaped(self, folder: Path) -> None:
        write_json(
            folder / "scores.json",
            {"figures": {HOSTILE: figure(0.5)}, "judge": {"name": HOSTILE, "note": HOSTILE}, "counts": {HOSTILE: 1}},
        )
        write_json(folder / "run.json", {HOSTILE: {HOSTILE: HOSTILE}})
        rewrite(folder / "samples.jsonl", lambda rows: rows[2].update(failure=HOSTILE))
        page = Page(write_page(folder, notes=[HOSTILE]))
        assert len(page.raw["script"]) == 2
        assert not [tag for tag, _ in page.elements if tag == "img"]

    def test_bidirectional_controls_are_escaped(self, folder: Path) -> None:
        page = write_page(folder, notes=["Set \u202eone\u2066"]).read_text("utf-8")
        assert "<p>Set [U+202E]one[U+2066]</p>" in page
        assert not set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069") & set(page)

    def test_no_element_has_a_handler_or_a_style(self, folder: Path) -> None:
        page = Page(write_page(folder))
        names = {name for _, attributes in page.elements for name in attributes}
        assert not {name for name in names if name.startswith("on") or name == "style"}

    def test_the_policy_allows_only_scripts_and_styles_of_the_page(self, folder: Path) -> None:
        page = Page(write_page(folder))
        for kind, text in (("script", page.raw["script"][1]), ("style", page.raw["style"][0])):
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            assert f"{kind}-src 'sha256-{digest}';" in page.policy
        assert page.policy.startswith("default-src 'none';")

    def test_the_page_loads_nothing(self, folder: Path) -> None:
        page = Page(write_page(folder))
        links = {a[name] for _, a in page.elements for name in ("src", "href") if name in a}
        assert links == {"#studies"}

    @settings(deadline=None)
    @given(text=st.text(st.characters(codec=None), min_size=1))
    def test_any_text_is_unchanged_on_the_page(self, tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
        folder = write_folder(tmp_path_factory.mktemp("any"))
        with (folder / "sentences.jsonl").open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(sentence("failed", "candidate", 1, text)) + "\n")
        assert Page(write_page(folder)).study("failed")["candidate"][1]["text"] == text


class TestImages:
    def test_an_image_is_embedded_small_with_the_size_of_the_original(self, folder: Path, tmp_path: Path) -> None:
        write_image(tmp_path / "radiographs" / "tall.png", 900, 1800)
        manifest = write_manifest(tmp_path / "manifest.jsonl", {"sample_id": "good", "frontal": "radiographs/tall.png"})
        image = Page(write_page(folder, manifest=manifest)).study("good")["images"]["frontal"]
        assert (image["width"], image["height"]) == (900, 1800)
        assert jpeg_of(image["src"]).size == (320, 640)

    def test_sixteen_bit_images_are_scaled_to_their_full_range(self, folder: Path, tmp_path: Path) -> None:
        path = write_image(tmp_path / "deep.png", dtype=np.uint16)
        manifest = write_manifest(tmp_path / "manifest.jsonl", {"sample_id": "good", "frontal": str(path)})
        shown = np.asarray(
            jpeg_of(Page(write_page(folder, manifest=manifest)).study("good")["images"]["frontal"]["src"])
        )
        assert shown.min() < 5
        assert shown.max() > 250
        assert abs(float(shown.mean()) - 127.5) < 3

    def test_the_page_has_no_metadata_of_images(self, folder: Path, tmp_path: Path) -> None:
        exif = Image.Exif()
        exif[0x010E] = "Name of a patient"
        Image.new("L", (8, 8)).save(tmp_path / "radiograph.jpg", exif=exif)
        manifest = write_manifest(tmp_path / "manifest.jsonl", {"sample_id": "good", "frontal": "radiograph.jpg"})
        image = Page(write_page(folder, manifest=manifest)).study("good")["images"]["frontal"]
        assert not jpeg_of(image["src"]).getexif()

    @pytest.mark.parametrize(
        ("content", "message"),
        [(None, "radiograph.png: no such image"), (b"\x89PNG\r\n\x1a\n", "radiograph.png: this image cannot be read")],
    )
    def test_a_missing_image_is_reported(
        self, folder: Path, tmp_path: Path, content: bytes | None, message: str
    ) -> None:
        if content is not None:
            (tmp_path / "radiograph.png").write_bytes(content)
        manifest = write_manifest(tmp_path / "manifest.jsonl", {"sample_id": "good", "frontal": "radiograph.png"})
        assert Page(write_page(folder, manifest=manifest)).study("good")["images"]["frontal"] == {"message": message}

    def test_a_truncated_image_is_reported(self, folder: Path, tmp_path: Path) -> None:
        path = write_image(tmp_path / "radiograph.png", 400, 300)
        path.write_bytes(path.read_bytes()[:200])
        manifest = write_manifest(tmp_path / "manifest.jsonl", {"sample_id": "good", "frontal": "radiograph.png"})
        image = Page(write_page(folder, manifest=manifest)).study("good")["images"]["frontal"]
        assert image == {"message": "radiograph.png: this image cannot be read"}

    @pytest.fixture
    def manifest(self, tmp_path: Path) -> Path:
        write_image(tmp_path / "radiograph.png")
        return write_manifest(tmp_path / "manifest.jsonl", {"sample_id": "good", "frontal": "radiograph.png"})

    def src(self, page: Path) -> str:
        return str(Page(page).study("good")["images"]["frontal"]["src"])

    def test_images_of_many_studies_are_in_files(
        self, folder: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(page_module, "MAX_EMBEDDED", 2)
        src = self.src(write_page(folder, manifest=manifest))
        assert src.startswith("report_images/")
        assert Image.open(folder / src).size == (40, 30)

    def test_images_next_to_the_page_are_an_option(self, folder: Path, manifest: Path) -> None:
        src = self.src(write_page(folder, manifest=manifest, images="beside"))
        assert Image.open(folder / src).size == (40, 30)

    def test_the_location_of_images_is_kept(self, folder: Path, manifest: Path) -> None:
        record = page_record(PageOptions(manifest=manifest, images="beside"), folder)
        write_json(folder / "run.json", {"page": record.model_dump(mode="json")})
        assert self.src(write_page(folder)).startswith("report_images/")
        assert self.src(write_page(folder, images="inside")).startswith("data:")

    def test_unused_images_are_removed(self, folder: Path, manifest: Path) -> None:
        before = folder / self.src(write_page(folder, manifest=manifest, images="beside"))
        write_image(manifest.parent / "radiograph.png", 50, 20)
        after = folder / self.src(write_page(folder, manifest=manifest, images="beside"))
        assert (before.exists(), after.exists()) == (False, True)
        write_page(folder, manifest=manifest, images="inside")
        assert not (folder / "report_images").exists()

    def test_other_files_next_to_the_page_stay(self, folder: Path, manifest: Path) -> None:
        own = write_image(folder / "report_images" / "mine.jpg")
        write_page(folder, manifest=manifest, images="beside")
        write_page(folder, manifest=manifest, images="inside")
        assert list((folder / "report_images").iterdir()) == [own]

    def test_the_command_has_an_option_for_the_location_of_images(self, folder: Path, manifest: Path) -> None:
        arguments = ["page", str(folder), "--manifest", str(manifest), "--images", "beside"]
        assert CliRunner().invoke(app, arguments).exit_code == 0
        assert self.src(folder / "report.html").startswith("report_images/")

    def test_without_a_manifest_there_are_no_images(self, folder: Path) -> None:
        assert "images" not in Page(write_page(folder)).study("good")

    def test_context_comes_from_the_manifest(self, folder: Path, tmp_path: Path) -> None:
        manifest = write_manifest(tmp_path / "manifest.jsonl", {"sample_id": "good", "indication": "Cough."})
        assert Page(write_page(folder, manifest=manifest)).study("good")["indication"] == "Cough."


class TestUnscored:
    def drafts(self, folder: Path, **fields: Any) -> Path:
        report = [{"text": "Apical cap.", "boxes": [{"x_min": 0, "y_min": 0, "x_max": 1, "y_max": 0.25}]}]
        write_jsonl(folder / "drafts.jsonl", [{"sample_id": "radiograph", "report": report, "model": "m", **fields}])
        return folder / "drafts.jsonl"

    def test_candidates_without_a_reference_are_separate_from_the_studies(self, folder: Path, tmp_path: Path) -> None:
        page = Page(write_page(folder, unscored=self.drafts(tmp_path)))
        assert [draft["candidate"][0]["text"] for draft in page.data["unscored"]] == ["Apical cap."]
        assert len(page.data["studies"]) == 3
        assert "Drafts without a reference: shown, not scored" in page.text

    def test_without_unscored_candidates_their_section_is_absent(self, folder: Path) -> None:
        assert "not scored" not in Page(write_page(folder)).text

    def test_a_narrative_candidate_is_one_text(self, folder: Path, tmp_path: Path) -> None:
        page = Page(write_page(folder, unscored=self.drafts(tmp_path, report="Lungs clear. Heart normal.")))
        assert page.data["unscored"][0]["candidate"][0]["text"] == "Lungs clear. Heart normal."

    def test_the_manifest_next_to_the_candidates_is_preferred(self, folder: Path, tmp_path: Path) -> None:
        drafts = self.drafts(tmp_path / "model")
        write_image(tmp_path / "model" / "own.png", 11, 7)
        write_image(tmp_path / "other.png", 5, 5)
        write_manifest(tmp_path / "model" / "manifest.jsonl", {"sample_id": "radiograph", "frontal": "own.png"})
        given_one = write_manifest(tmp_path / "manifest.jsonl", {"sample_id": "radiograph", "frontal": "other.png"})
        (draft,) = Page(write_page(folder, manifest=given_one, unscored=drafts)).data["unscored"]
        assert draft["images"]["frontal"]["width"] == 11

    def test_the_given_manifest_is_used_for_candidates_without_one(self, folder: Path, tmp_path: Path) -> None:
        write_image(tmp_path / "other.png", 5, 5)
        given_one = write_manifest(tmp_path / "manifest.jsonl", {"sample_id": "radiograph", "frontal": "other.png"})
        (draft,) = Page(write_page(folder, manifest=given_one, unscored=self.drafts(tmp_path / "model"))).data[
            "unscored"
        ]
        assert draft["images"]["frontal"]["width"] == 5


class TestWrongInput:
    @pytest.mark.parametrize("name", ["scores.json", "samples.jsonl", "sentences.jsonl"])
    def test_an_incomplete_folder_is_refused(self, folder: Path, name: str) -> None:
        (folder / name).unlink()
        with pytest.raises(InputError) as error:
            write_page(folder)
        assert error.value.code is ErrorCode.FILE_NOT_FOUND

    def test_a_missing_manifest_is_refused(self, folder: Path, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"manifest\.jsonl: no such file"):
            write_page(folder, manifest=tmp_path / "manifest.jsonl")

    def test_a_manifest_of_other_studies_is_refused(self, folder: Path, tmp_path: Path) -> None:
        manifest = write_manifest(tmp_path / "others.jsonl", {"sample_id": "1", "frontal": "radiograph.png"})
        with pytest.raises(InputError, match=r"studies of the page, such as 'good'"):
            write_page(folder, manifest=manifest)
        assert not (folder / "report.html").exists()

    def test_a_refused_manifest_writes_no_page(self, folder: Path, tmp_path: Path) -> None:
        before = sorted(folder.rglob("*"))
        with pytest.raises(InputError):
            write_page(folder, manifest=tmp_path / "manifest.jsonl")
        assert sorted(folder.rglob("*")) == before

    @pytest.mark.parametrize(
        ("name", "line", "fields", "code"),
        [
            ("samples.jsonl", 2, {"logical_f1": "high"}, ErrorCode.INVALID_VALUE),
            ("samples.jsonl", 2, {"sample_id": "good"}, ErrorCode.DUPLICATE),
            ("sentences.jsonl", 2, {"sample_id": "who"}, ErrorCode.MISMATCH),
            ("sentences.jsonl", 2, {"index": 0}, ErrorCode.DUPLICATE),
            ("sentences.jsonl", 3, {"index": 7}, ErrorCode.MISMATCH),
            ("sentences.jsonl", 1, {"evidence": [9]}, ErrorCode.MISMATCH),
            ("sentences.jsonl", 1, {"side": "left"}, ErrorCode.INVALID_VALUE),
        ],
    )
    def test_an_invalid_record_is_refused(
        self, folder: Path, name: str, line: int, fields: dict[str, Any], code: ErrorCode
    ) -> None:
        rewrite(folder / name, lambda rows: rows[line - 1].update(fields))
        with pytest.raises(InputError) as error:
            write_page(folder)
        place = (error.value.file, error.value.line, error.value.field, error.value.code)
        assert place == (folder / name, line, next(iter(fields)), code)

    def test_missing_samples_are_refused(self, folder: Path) -> None:
        (folder / "samples.jsonl").write_text("")
        with raises("samples.jsonl: mismatch"):
            write_page(folder)

    def test_an_invalid_image_path_is_refused(self, folder: Path, tmp_path: Path) -> None:
        manifest = write_manifest(tmp_path / "manifest.jsonl", {"sample_id": "good", "frontal": ["a.png"]})
        with pytest.raises(InputError) as error:
            write_page(folder, manifest=manifest)
        assert (error.value.line, error.value.field) == (1, "frontal")

    def test_a_duplicate_candidate_is_refused(self, folder: Path, tmp_path: Path) -> None:
        write_jsonl(tmp_path / "drafts.jsonl", [{"sample_id": "a", "report": ""}] * 2)
        with pytest.raises(InputError, match=r"drafts\.jsonl:2: sample_id"):
            write_page(folder, unscored=tmp_path / "drafts.jsonl")


def test_many_studies_are_on_pages_of_their_own(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "MAX_STUDIES", 2)
    monkeypatch.setattr(page_module, "STUDIES_PER_PART", 2)
    write_image(tmp_path / "radiograph.png")
    manifest = write_manifest(tmp_path / "manifest.jsonl", {"sample_id": "good", "frontal": "radiograph.png"})
    page = Page(write_page(folder, manifest=manifest, images="beside"))
    listed = page.data["list"]
    assert (listed["ids"], listed["size"]) == (["good", "bad", "failed"], 2)
    assert listed["parts"] == ["report_pages/0001.html", "report_pages/0002.html"]
    assert listed["scores"]["logical_f1"] == [1.0, 0.25, None]
    assert listed["failures"] == {"2": "no valid answer"}
    assert listed["kinds"] == {"unsupported": [0, 1], "missed": [1], "failed": [2], "inputs": [0]}
    assert "Trachea" not in (folder / "report.html").read_text()
    first, second = (Page(folder / "report_pages" / name) for name in ("0001.html", "0002.html"))
    assert [study["sample_id"] for study in (*first.data["studies"], *second.data["studies"])] == [
        "good",
        "bad",
        "failed",
    ]
    assert first.study("good")["candidate"][2]["text"] == "Trachea central."
    assert Image.open(folder / "report_pages" / first.study("good")["images"]["frontal"]["src"]).size == (40, 30)
    monkeypatch.undo()
    write_page(folder)
    assert not (folder / "report_pages").exists()


def test_the_same_folder_gives_the_same_page(folder: Path, tmp_path: Path) -> None:
    for name in ("a.png", "b.png", "c.png"):
        write_image(tmp_path / name, 64, ord(name[0]))
    rows = [{"sample_id": "good", "frontal": "a.png", "lateral": "b.png"}, {"sample_id": "bad", "frontal": "c.png"}]
    manifest = write_manifest(tmp_path / "manifest.jsonl", *rows)
    first = write_page(folder, manifest=manifest).read_bytes()
    assert write_page(folder, manifest=manifest).read_bytes() == first
