"""What comes of a review: the table of corrections, the corrected reports, and data sets to train and score with."""

import csv
import math
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from long_values import DATA
from maira_command import maira
from meta_run import run_meta
from review_files import BOX, CORNERS, REFERENCE, REPORT, change, finish, new_store, write_set

from maira.data.manifest import read_manifest
from maira.model.parser import parse_report
from maira.review.export import answers_csv, corrected_drafts, guard, write_export
from maira.review.store import Store
from maira.review.studies import read_review_drafts
from maira.review.summary import summarize
from radfact.io.jsonl import dumps, read_json, read_jsonl
from radfact.io.pairs import read_candidates_and_references, read_drafts
from radfact.meta.datasets.layouts import read_ratings
from radfact.records import parse_sentences

NARRATIVE = "Heart size is normal. No effusion."


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(new_store(tmp_path, {"one": REPORT, "two": NARRATIVE, "six": REPORT}, ["Ada", "Ben"])) as store:
        change(store, "edit", sentence="d0", text="The heart is enlarged.")
        change(store, "assess", sentence="d0", severity=1, error_type="MISCLASSIFICATION", comment="Cardiothoracic.")
        change(store, "delete", sentence="d1")
        change(store, "add", text="=Rib fracture.", boxes=[CORNERS])
        change(store, "comment", text="Rotated.")
        finish(store)
        change(store, "boxes", number=3, reader="Ben", sentence="d1", boxes=[CORNERS])
        yield store


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(text)))


def test_the_table_has_a_row_per_correction(store: Store) -> None:
    table = rows(answers_csv(store, store.readers()))
    source = {"reader": "Ada", "sample_id": "one", "arm": "", "model": "", "training": "false", "excluded": "false"}
    texts = {"draft_text": "The heart size is normal.", "corrected_text": "The heart is enlarged."}
    answers = {"error_type": "MISCLASSIFICATION", "severity": "1", "comment": "Cardiothoracic."}
    boxes = {"boxes_changed": "false", "draft_boxes": dumps([CORNERS]), "corrected_boxes": dumps([CORNERS])}
    edit = {**source, "sentence": "1", "kind": "edit", **texts, **answers, **boxes}
    assert [*table[0].items()] == [*edit.items(), ("finished", "true"), ("study_comment", "Rotated.")]
    cells = [" ".join(row[name] for name in ("reader", "sample_id", "sentence", "kind", "finished")) for row in table]
    assert cells[1:] == ["Ada one 2 deletion true", "Ada one 3 addition true", "Ben six 2 edit false"]
    assert (table[1]["draft_text"], table[1]["corrected_text"]) == ("No pleural effusion.", "")
    assert (table[2]["draft_text"], table[2]["corrected_text"]) == ("", "'=Rib fracture.")
    assert [row["boxes_changed"] for row in table] == ["false", "false", "false", "true"]


@pytest.mark.parametrize("cell", ["=1+1", "+1", "-1", "@SUM(1)", "\t=1", "  =1", "＝1", "'quoted'", "\r=1"])
def test_no_cell_is_a_formula(cell: str) -> None:
    assert guard(cell) == f"'{cell}"


def test_finished_reports_become_drafts_and_narratives_stay_narratives(store: Store) -> None:
    (draft,) = corrected_drafts(store, "Ada")
    assert (draft["sample_id"], draft["reader"]) == ("one", "Ada")
    assert draft["report"] == [
        {"text": "The heart is enlarged.", "boxes": [BOX]},
        {"text": "=Rib fracture.", "boxes": [BOX]},
    ]
    assert list(corrected_drafts(store, "Ben")) == []
    change(store, "edit", number=2, sentence="d0", text="Heart size is enlarged.")
    change(store, "add", number=2, text="Rib fracture?")
    finish(store, number=2)
    reports = {row["sample_id"]: row["report"] for row in corrected_drafts(store, "Ada")}
    assert reports["two"] == "Heart size is enlarged. No effusion. Rib fracture?"


def test_masks_are_kept_with_their_boxes(tmp_path: Path) -> None:
    mask = {"size": [4, 4], "counts": [0, 16]}
    sentence = {"text": "Nodule.", "boxes": [BOX], "masks": [mask], "prior_boxes": [BOX]}
    with closing(new_store(tmp_path, {"one": [sentence, sentence]})) as store:
        change(store, "boxes", sentence="d0", boxes=[[0, 0, 1, 1]])
        change(store, "edit", sentence="d1", text="Mass.")
        finish(store)
        (draft,) = corrected_drafts(store, "Ada")
    moved, edited = draft["report"]
    assert moved == {"text": "Nodule.", "boxes": [dict.fromkeys(BOX, 0.0) | {"x_max": 1, "y_max": 1}],
                     "prior_boxes": [BOX]}  # fmt: skip
    assert edited == {**sentence, "text": "Mass."}


def test_an_export_can_be_scored_again(store: Store, tmp_path: Path) -> None:
    finish(store, number=2)
    lines = write_export(store, tmp_path / "out", store.readers())
    path = tmp_path / "out/drafts-1-Ada.jsonl"
    assert lines[0].startswith("corrections: 4, in ")
    assert lines[1] == f"2 of 3 reports finished by Ada: {path}"
    assert read_drafts(path) == {"one": parse_sentences(next(read_jsonl(path))[1]["report"]), "two": NARRATIVE}
    table = answers_csv(store, ["Ada", "Ben"]).replace("\r\n", "\n")
    assert (tmp_path / "out/corrections.csv").read_text("utf-8-sig") == table


def test_reader_names_cannot_change_the_output_folder(store: Store, tmp_path: Path) -> None:
    for name in ("../../Ada", "Ådá", "a/b", "a-b"):
        store.add_reader(name)
    result = maira("review", "export", store.path, "--out", tmp_path / "out")
    assert "1 of 3 reports finished by Ada" in result.output
    names = sorted(path.name for path in (tmp_path / "out").glob("[!.]*"))
    drafts = ["1-Ada", "2-Ben", "3-Ada", "4-Ada", "5-a-b", "6-a-b"]
    assert names == ["corrections.csv", *(f"drafts-{name}.jsonl" for name in drafts), "readings.csv"]


def export(store: Store, manifest: Path, out: Path) -> str:
    """Write the data set of a review, and return what the command prints."""
    return maira("review", "export", store.path, "--manifest", manifest, "--out", out).output


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Ada finished all studies but the last; Ben finished the first and the third."""
    reports = {"one": REPORT, "two": NARRATIVE, "six": REPORT, "ten": REPORT}
    with closing(new_store(tmp_path_factory.mktemp("review"), reports, ["Ada", "Ben"])) as store:
        change(store, "edit", sentence="d0", text="The heart is enlarged.")
        change(store, "assess", sentence="d0", severity=2)
        change(store, "delete", sentence="d1")
        change(store, "assess", sentence="d1", severity=1)
        change(store, "add", text="Rib fracture.", boxes=[CORNERS])
        for number in (1, 2):
            finish(store, number)
        for sentence in ("d0", "d1"):
            change(store, "delete", 3, sentence=sentence)
        finish(store, 3)
        change(store, "delete", 4, sentence="d0")
        finish(store, 1, "Ben")
        # The model's format has a hundred bins per side.
        change(store, "boxes", 3, "Ben", sentence="d0", boxes=[[CORNERS[0] + 0.001, *CORNERS[1:]]])
        finish(store, 3, "Ben")
        yield store


@pytest.fixture(scope="module")
def exported(finished: Store) -> tuple[Path, str]:
    """The folder of the data set of the review, and what the command printed."""
    out = finished.path.with_name("out")
    return out, export(finished, finished.path.with_name("manifest.jsonl"), out)


def test_ratings_count_errors_by_significance(exported: tuple[Path, str], tmp_path: Path) -> None:
    ratings = read_ratings(exported[0] / "ratings.csv", better="lower")
    counts = {sample.pair.sample_id: sample.ratings for sample in ratings.samples}
    assert counts["one"] == DATA["counts of errors"]
    assert counts["two"]["errors"]["Ada"] == 0
    assert math.isnan(counts["two"]["errors"]["Ben"])
    # Nobody finished the last study: its errors are unknown.
    assert counts.keys() == {"one", "two", "six"}
    options = ("--better", "lower", "--metrics", "rouge_l", "--out", tmp_path / "r")
    run_meta("agreement", exported[0] / "ratings.csv", *options)
    raters = read_json(tmp_path / "r/agreement.json")["inter_rater"]
    assert {row["quantity"] for row in raters} == {"errors", "significant", "insignificant"}
    first = ratings.samples[0].pair
    assert (first.candidate, first.reference) == (" ".join(s["text"] for s in REPORT), REFERENCE[0]["text"])


def test_drafts_without_a_reference_have_no_rating(finished: Store, tmp_path: Path) -> None:
    manifest = finished.path.with_name("without-a-reference.jsonl")
    complete = finished.path.with_name("manifest.jsonl").read_text("utf-8")
    manifest.write_text(complete.replace('"grounded_findings"', '"phrases"', 1))
    export(finished, manifest, tmp_path)
    rated = read_ratings(tmp_path / "ratings.csv", better="lower").samples
    assert [sample.pair.sample_id for sample in rated] == ["two", "six"]


def test_corrected_reports_are_references_and_training_targets(finished: Store, exported: tuple[Path, str]) -> None:
    out, _ = exported
    studies = {study.sample_id: study for study in read_manifest(out / "manifest-1-Ada.jsonl")}
    assert studies["one"].frontal.is_file()
    texts = [sentence.text for sentence in studies["one"].grounded_findings or ()]
    assert texts == ["The heart is enlarged.", "Rib fracture."]
    assert (studies["two"].findings, studies["two"].grounded_findings) == (NARRATIVE, None)
    # An empty report and one that is not finished are no references.
    assert all((studies[name].findings, studies[name].grounded_findings) == (None, None) for name in ("six", "ten"))
    pairs = read_candidates_and_references(finished.path.with_name("drafts.jsonl"), out / "manifest-1-Ada.jsonl")
    assert {pair.sample_id for pair in pairs} == {"one", "two"}
    assert pairs.without_reference == ("six", "ten")


def test_preferences_have_the_texts_of_the_model_and_others_are_counted(exported: tuple[Path, str]) -> None:
    out, printed = exported
    rows: list[dict[str, Any]] = [row for _, row in read_jsonl(out / "preferences.jsonl")]
    assert [(row["sample_id"], row["reader"], row["severity"]) for row in rows] == [("one", "Ada", 2)]
    (row,) = rows
    # A run makes the prompt from the study of the manifest, with its own preset.
    assert row.keys() == {"sample_id", "arm", "reader", "severity", "task", "chosen", "rejected", "images"}
    assert (row["task"], len(row["images"])) == ("grounded", 1)
    rejected, chosen = (parse_report(row[name].strip()).sentences for name in ("rejected", "chosen"))
    assert [sentence.text for sentence in rejected] == [sentence["text"] for sentence in REPORT]
    assert [sentence.text for sentence in chosen] == ["The heart is enlarged.", "Rib fracture."]
    assert "preferences: 1, in" in printed
    assert "without a preference: 1 (expected a report with text, found none)" in printed
    assert "without a preference: 1 (the model's format cannot express the correction)" in printed


def test_arms_and_training_cases_are_exported_apart(tmp_path: Path) -> None:
    drafts = read_review_drafts(write_set(tmp_path, {"one": REPORT, "two": REPORT})[0])
    names = (("first", "m1"), ("second arm", "m2"))
    arms = [replace(draft, arm=arm, record={"model": model}) for arm, model in names for draft in drafts]
    out = tmp_path / "out"
    with closing(Store(tmp_path / "review.sqlite", [*arms[:3], replace(arms[3], is_training=True)])) as store:
        store.add_reader("Ada")
        for number in range(1, 5):
            change(store, "delete", number, sentence="d0")
            change(store, "comment", number, text="Rotated.")
            finish(store, number)
        table = rows(answers_csv(store, ["Ada"]))
        cells = [(row["arm"], row["model"], row["training"]) for row in table]
        assert cells == [("first", "m1", "false")] * 2 + [("second arm", "m2", "false"), ("second arm", "m2", "true")]
        blinded = rows(answers_csv(store, ["Ada"], is_blinded=True))[0]
        assert not {"arm", "model", "training", "excluded"} & blinded.keys()
        _, *written = write_export(store, tmp_path / "plain", ["Ada"])
        first, second = (tmp_path / f"plain/drafts-1-Ada-{arm}.jsonl" for arm in ("1-first", "2-second-arm"))
        finished = "reports of arm {} finished by Ada: {}"
        assert written == [
            f"2 of 2 {finished.format('first', first)}",
            f"1 of 1 {finished.format('second arm', second)}",
        ]
        statistics = summarize(store, ["Ada"])["readers"]["Ada"]
        comments = ["one of arm first", "two of arm first", "one of arm second arm"]
        assert (statistics["finished"], list(statistics["comments"])) == (3, comments)
        export(store, tmp_path / "manifest.jsonl", out)
    samples = read_ratings(out / "ratings.csv", better="lower").samples
    groups = [(sample.pair.cluster, sample.groups["group"]) for sample in samples]
    assert groups == [("one", "first"), ("two", "first"), ("one", "second arm")]
    assert [len(read_manifest(path)) for path in sorted(out.glob("manifest-*.jsonl"))] == [2, 1]
