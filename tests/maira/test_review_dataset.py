"""A review as a data set: ratings, references and preferences, read by the parts that use them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from review_files import CORNERS, REFERENCE, REPORT, change, finish, new_store, write_set
from typer.testing import CliRunner

from maira.cli.main import app
from maira.data.manifest import read_manifest
from maira.model.parser import parse_report
from maira.review.store import Store
from maira.review.studies import read_review_drafts
from radfact.io.jsonl import read_jsonl
from radfact.io.pairs import read_candidates_and_references
from radfact.meta.datasets.layouts import read_ratings

NARRATIVE = "Heart size is normal. No effusion."


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Ada finished all studies but the last; Ben finished the first."""
    reports = {"one": REPORT, "two": NARRATIVE, "six": REPORT, "ten": REPORT}
    with closing(new_store(tmp_path, reports, ["Ada", "Ben"])) as store:
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
        yield store


def exported(store: Store, *options: str) -> Path:
    """The folder of the data set of a review."""
    folder = store.path.parent
    arguments = ["review", "export", str(store.path), "--manifest", str(folder / "manifest.jsonl")]
    result = CliRunner().invoke(app, [*arguments, "--out", str(folder / "out"), *options])
    assert result.exit_code == 0, result.output
    return folder / "out"


def test_ratings_count_errors_by_significance(store: Store) -> None:
    ratings = read_ratings(exported(store) / "ratings.csv", better="lower")
    counts = {sample.pair.sample_id: sample.ratings for sample in ratings.samples}
    assert counts["one"] == {
        "errors": {"Ada": 3, "Ben": 0},
        "significant": {"Ada": 1, "Ben": 0},
        "insignificant": {"Ada": 2, "Ben": 0},
    }
    assert counts["two"]["errors"]["Ada"] == 0
    assert math.isnan(counts["two"]["errors"]["Ben"])
    # Nobody finished the last study: its errors are unknown.
    assert counts.keys() == {"one", "two", "six"}
    first = ratings.samples[0].pair
    assert (first.candidate, first.reference) == (" ".join(s["text"] for s in REPORT), REFERENCE[0]["text"])


def test_drafts_without_a_reference_have_no_rating(store: Store) -> None:
    manifest = store.path.with_name("manifest.jsonl")
    manifest.write_text(manifest.read_text("utf-8").replace('"grounded_findings"', '"phrases"', 1))
    rated = read_ratings(exported(store) / "ratings.csv", better="lower").samples
    assert [sample.pair.sample_id for sample in rated] == ["two", "six"]


def test_corrected_reports_are_references_and_training_targets(store: Store) -> None:
    out = exported(store)
    studies = {study.sample_id: study for study in read_manifest(out / "manifest-1-Ada.jsonl")}
    assert studies["one"].frontal.is_file()
    assert [sentence.text for sentence in studies["one"].grounded_findings or ()] == [
        "The heart is enlarged.",
        "Rib fracture.",
    ]
    assert (studies["two"].findings, studies["two"].grounded_findings) == (NARRATIVE, None)
    # An empty report and one that is not finished are no references.
    assert all((studies[name].findings, studies[name].grounded_findings) == (None, None) for name in ("six", "ten"))
    pairs = read_candidates_and_references(store.path.with_name("drafts.jsonl"), out / "manifest-1-Ada.jsonl")
    assert {pair.sample_id for pair in pairs} == {"one", "two"}
    assert pairs.without_reference == ("six", "ten")


def test_preferences_have_the_texts_of_the_model(store: Store) -> None:
    rows: list[dict[str, Any]] = [row for _, row in read_jsonl(exported(store) / "preferences.jsonl")]
    assert [(row["sample_id"], row["reader"], row["severity"]) for row in rows] == [("one", "Ada", 2)]
    (row,) = rows
    # A run makes the prompt from the study of the manifest, with its own preset.
    assert row.keys() == {"sample_id", "arm", "reader", "severity", "task", "chosen", "rejected", "images"}
    assert (row["task"], len(row["images"])) == ("grounded", 1)
    rejected, chosen = (parse_report(row[name].strip()).sentences for name in ("rejected", "chosen"))
    assert [sentence.text for sentence in rejected] == [sentence["text"] for sentence in REPORT]
    assert [sentence.text for sentence in chosen] == ["The heart is enlarged.", "Rib fracture."]


def test_corrections_without_a_preference_are_counted(store: Store) -> None:
    # The model's format has a hundred bins per side.
    moved = [CORNERS[0] + 0.001, *CORNERS[1:]]
    change(store, "boxes", 4, "Ben", sentence="d0", boxes=[moved])
    finish(store, 4, "Ben")
    folder = store.path.parent
    arguments = ["review", "export", str(store.path), "--manifest", str(folder / "manifest.jsonl")]
    result = CliRunner().invoke(app, [*arguments, "--out", str(folder / "out")])
    assert "preferences: 1, in" in result.output
    assert "without a preference: 1 (expected a report with text, found none)" in result.output
    assert "without a preference: 1 (the model's format cannot express the correction)" in result.output


def test_arms_are_groups_of_the_same_study_and_training_cases_are_out(tmp_path: Path) -> None:
    drafts = read_review_drafts(write_set(tmp_path, {"one": REPORT, "two": REPORT})[0])
    arms = [replace(draft, arm=arm) for arm in ("A", "B") for draft in drafts]
    with closing(Store(tmp_path / "review.sqlite", [*arms[:3], replace(arms[3], is_training=True)])) as store:
        store.add_reader("Ada")
        for number in range(1, 5):
            finish(store, number, "Ada")
        out = exported(store)
    samples = read_ratings(out / "ratings.csv", better="lower").samples
    assert [(sample.pair.cluster, sample.groups["group"]) for sample in samples] == [
        ("one", "A"),
        ("two", "A"),
        ("one", "B"),
    ]
    assert [len(read_manifest(path)) for path in sorted(out.glob("manifest-*.jsonl"))] == [2, 1]
