import json
from pathlib import Path
from typing import Any

import pytest
from box_strategies import boxes
from error_checks import raises
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from maira.data.manifest import Failure, read_manifest, write_manifest
from maira.data.study import Label, Original, Study
from radfact.records import Sentence

texts = st.text(st.characters(exclude_categories=("Cs",)), min_size=1).filter(lambda t: bool(t.strip()))
box_lists = st.none() | st.lists(boxes(), min_size=1, max_size=3).map(tuple)
sentences = st.lists(st.builds(Sentence, text=texts, boxes=box_lists, prior_boxes=box_lists), min_size=1, max_size=3)
labels = st.builds(Label, kind=texts, side=st.sampled_from(["left", "right", "both", None]), boxes=box_lists)
studies = st.builds(
    Study,
    sample_id=texts,
    frontal=st.just(Path("images/a.png")),
    findings=st.none() | texts,
    grounded_findings=st.none() | sentences,
    phrases=st.none() | sentences,
    labels=st.none() | st.lists(labels, max_size=2),
)


def write_rows(path: Path, *rows: dict[str, Any] | str) -> Path:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows), encoding="utf-8")
    return path


def row(**fields: Any) -> dict[str, Any]:
    return {"sample_id": "s1", "frontal": "a.png"} | fields


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(studies, max_size=4, unique_by=lambda s: s.sample_id))
def test_write_and_read_round_trip(tmp_path: Path, written: list[Study]) -> None:
    path = tmp_path / "manifest.jsonl"
    assert write_manifest(path, written) == len(written)
    assert read_manifest(path) == [s.model_copy(update={"frontal": tmp_path / s.frontal}) for s in written]


def test_relative_images_are_resolved_from_the_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "set").mkdir()
    write_rows(tmp_path / "set" / "manifest.jsonl", row(lateral="../other/b.png"))
    monkeypatch.chdir(tmp_path)
    [study] = read_manifest("set/manifest.jsonl")
    assert study.frontal == tmp_path / "set" / "a.png"
    assert study.lateral is not None
    assert study.lateral.resolve() == tmp_path / "other" / "b.png"


def test_missing_is_null_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "manifest.jsonl"
    write_manifest(path, [Study(sample_id="s", frontal=Path("a.png"))])
    assert json.loads(path.read_text()) == dict.fromkeys(Study.model_fields) | {"sample_id": "s", "frontal": "a.png"}


SWAPPED = {"x_min": 0.5, "y_min": 0, "x_max": 0.2, "y_max": 1}


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (row(), "sample_id: duplicate"),
        (row(sample_id="s2", finding="x"), "finding: unknown-field"),
        (row(sample_id=7), "sample_id: invalid-value"),
        (row(sample_id="s2", labels=[{"kind": "mass", "boxes": [SWAPPED]}]), "labels[0].boxes[0]: invalid-value"),
        (
            row(sample_id="s2", phrases=[{"text": "x", "boxes": [SWAPPED | {"x_min": False}]}]),
            "phrases[0].boxes[0].x_min: invalid-value",
        ),
        (row(sample_id="s2", indication=" "), "indication: invalid-value"),
        ('{"sample_id": "s2", "frontal": "a.png", "split": "a", "split": "b"}', "split: duplicate"),
        (row(sample_id="s2", originals={"front": {"path": "a.dcm"}}), "originals.front: invalid-value"),
        (row(sample_id="s2", originals={"frontal": "a.dcm"}), "originals.frontal: invalid-value"),
        (row(sample_id="s2", originals={"frontal": {}}), "originals.frontal.path: missing-field"),
        ({"sample_id": "s2"}, "frontal: missing-field"),
        ('{"sample_id": ', "invalid-format"),
    ],
)
def test_an_invalid_line_is_an_error_with_its_number(
    tmp_path: Path, second: dict[str, Any] | str, expected: str
) -> None:
    path = write_rows(tmp_path / "manifest.jsonl", row(), second)
    skipped: list[Failure] = []
    for failures in (None, skipped) if second != {"sample_id": "s2"} else (None,):
        with raises(f"manifest.jsonl:2: {expected}") as caught:
            read_manifest(path, failures)
        assert "\n" not in str(caught.value)
    assert skipped == []


@pytest.mark.parametrize("frontal", [{}, {"frontal": None}, {"frontal": ""}])
def test_samples_without_a_frontal_are_skipped_on_request(tmp_path: Path, frontal: dict[str, str | None]) -> None:
    path = write_rows(tmp_path / "manifest.jsonl", row(), {"sample_id": "s2", "lateral": "b.png"} | frontal)
    left_out: list[Failure] = []
    assert [study.sample_id for study in read_manifest(path, left_out)] == ["s1"]
    (failure,) = left_out
    assert (failure.sample_id, failure.stage) == ("s2", "read")
    assert failure.reason == f"{path}:2: frontal: expected the path of the frontal image"


def test_duplicates_leave_the_existing_manifest(tmp_path: Path) -> None:
    path = tmp_path / "manifest.jsonl"
    study = Study(sample_id="s", frontal=Path("a.png"))
    write_manifest(path, [study])
    before = path.read_bytes()
    with raises("manifest.jsonl:2: sample_id: duplicate"):
        write_manifest(path, [study, study])
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["manifest.jsonl"]


def test_paths_of_originals_move_with_the_manifest(tmp_path: Path) -> None:
    originals = {
        "frontal": Original(path=tmp_path / "dicom/one.dcm"),
        "lateral": Original(path=Path("/archive/films.zip"), member="two.png", is_inverted=True),
    }
    study = Study.model_validate({"sample_id": "s1", "frontal": tmp_path / "a.png", "originals": originals})
    write_manifest(tmp_path / "manifest.jsonl", [study])
    (row,) = (tmp_path / "manifest.jsonl").read_text().splitlines()
    assert [original["path"] for original in json.loads(row)["originals"].values()] == [
        "dicom/one.dcm",
        "/archive/films.zip",
    ]
    assert read_manifest(tmp_path / "manifest.jsonl") == [study]
    tmp_path.rename(moved := tmp_path.with_name("moved"))
    [other] = read_manifest(moved / "manifest.jsonl")
    assert other.frontal == moved / "a.png"


@pytest.mark.parametrize("blank", ["", " \n\t"])
def test_a_blank_optional_text_or_report_without_sentences_is_none(blank: str) -> None:
    empty = {"grounded_findings": [], "phrases": [], "lateral": blank, "prior_frontal": blank}
    texts = ("study_id", "patient_id", "prior_report", "indication", "technique", "comparison", "findings", "split")
    study = Study.model_validate(row(**empty, **dict.fromkeys((*texts, "source"), blank)))
    assert study == Study(sample_id="s1", frontal=Path("a.png"))
    # No finding differs from no labels.
    assert Study.model_validate(row(labels=[])).labels == []


@pytest.mark.parametrize("field", ["sample_id", "frontal"])
@pytest.mark.parametrize("blank", ["", "  ", None])
def test_identity_and_frontal_are_required(field: str, blank: str | None) -> None:
    with pytest.raises(ValidationError, match=field):
        Study.model_validate(row(**{field: blank}))
