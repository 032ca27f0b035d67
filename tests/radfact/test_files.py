import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from error_checks import raises, raises_code
from hypothesis import given
from hypothesis import strategies as st

from radfact.errors import ErrorCode, InputError
from radfact.io.coco import read_coco
from radfact.io.pairs import read_candidates_and_references, read_pairs
from radfact.records import Box, Mask, Pair, PatientContext, Sentence

BOX = {"x_min": 0.1, "y_min": 0.2, "x_max": 0.3, "y_max": 0.4}


def lines(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def document(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value))
    return path


def example(key: Any = 1, **changes: Any) -> dict[str, Any]:
    row = {"example_id": key, "prediction": [{"text": "Nodule.", "boxes": [BOX]}], "target": [{"text": "Clear lungs."}]}
    return row | changes


def test_grounded_pairs_have_texts_boxes_and_ids(tmp_path: Path) -> None:
    (pair,) = read_pairs(document(tmp_path / "pairs.json", [example(7)]))
    assert pair == Pair("7", [Sentence(text="Nodule.", boxes=(Box(**BOX),))], [Sentence(text="Clear lungs.")])


def test_empty_reports_are_legal(tmp_path: Path) -> None:
    (grounded,) = read_pairs(document(tmp_path / "pairs.json", [example(prediction=[])]))
    (tmp_path / "pairs.csv").write_text("example_id,prediction,target\n1,,Clear lungs.\n")
    (narrative,) = read_pairs(tmp_path / "pairs.csv")
    assert (grounded.candidate, narrative.candidate) == ([], "")


INVALID = yaml.safe_load(Path(__file__).with_name("invalid_reports.yaml").read_text("utf-8"))
READERS: dict[str, Callable[..., object]] = {
    "pairs": read_pairs,
    "drafts": read_candidates_and_references,
    "coco": read_coco,
    "candidates of COCO": read_candidates_and_references,
}


@pytest.mark.parametrize("case", INVALID, ids=lambda case: case["error"])
def test_an_invalid_file_is_one_line_with_its_location(case: dict[str, Any], tmp_path: Path) -> None:
    files = case["files"]
    if "annotation" in case:
        images, categories = [{"id": 1, "width": 200, "height": 100}], [{"id": 7, "name": "Nodule"}]
        files = {"coco.json": {"images": images, "categories": categories, "annotations": [case["annotation"]]}}
    for name, content in files.items():
        if isinstance(content, str):
            (tmp_path / name).write_text(content)
        elif name.endswith(".jsonl"):
            lines(tmp_path / name, *content)
        else:
            document(tmp_path / name, content)
    with raises(case["error"]):
        READERS[case["reader"]](*(tmp_path / name for name in files))


def test_additional_columns_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("split, target ,prediction,example_id\ntest,b,a,1\n")
    assert list(read_pairs(tmp_path / "pairs.csv")) == [Pair("1", "a", "b")]


def test_candidates_keep_their_order_and_grounded_findings_are_preferred(tmp_path: Path) -> None:
    drafts = lines(
        tmp_path / "drafts.jsonl",
        {"sample_id": "b", "report": [{"text": "Nodule.", "boxes": [BOX]}], "raw": "...", "model": "m", "seconds": 1},
        {"sample_id": "a", "report": "Lungs are clear."},
    )
    manifest = lines(
        tmp_path / "manifest.jsonl",
        {"sample_id": "a", "grounded_findings": None, "findings": "Clear.", "frontal": "a.png"},
        {"sample_id": "b", "grounded_findings": [{"text": "Mass.", "boxes": None}], "findings": "A mass."},
    )
    pairs = read_candidates_and_references(drafts, manifest)
    assert [pair.sample_id for pair in pairs] == ["b", "a"]
    assert [pair.reference for pair in pairs] == [[Sentence(text="Mass.")], "Clear."]
    assert (pairs.read, pairs.skipped) == (2, 0)


def test_records_without_a_reference_and_of_other_splits_are_skipped(tmp_path: Path) -> None:
    drafts = lines(tmp_path / "drafts.jsonl", *({"sample_id": key, "report": "Clear."} for key in "ad"))
    manifest = lines(
        tmp_path / "manifest.jsonl",
        {"sample_id": "a", "findings": "Clear.", "split": "test"},
        {"sample_id": "b", "findings": "Clear.", "split": "train"},
        {"sample_id": "c", "findings": None, "split": "test"},
        {"sample_id": "d", "findings": None, "split": "test"},
    )
    pairs = read_candidates_and_references(drafts, manifest)
    assert ([pair.sample_id for pair in pairs], pairs.without_reference) == (["a"], ("d",))
    assert (pairs.read, pairs.skipped) == (4, 3)


@given(
    drafted=st.sets(st.integers(0, 9).map(str), min_size=1),
    recorded=st.sets(st.integers(0, 9).map(str), min_size=1),
)
def test_ids_without_a_counterpart_are_refused(
    drafted: set[str], recorded: set[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("match")
    drafts = lines(folder / "drafts.jsonl", *({"sample_id": key, "report": "Clear."} for key in sorted(drafted)))
    manifest = lines(folder / "manifest.jsonl", *({"sample_id": key, "findings": "Clear."} for key in sorted(recorded)))
    if drafted == recorded:
        assert len(read_candidates_and_references(drafts, manifest)) == len(drafted)
        return
    alone = sorted(drafted - recorded) or sorted(recorded - drafted)
    with pytest.raises(InputError) as caught:
        read_candidates_and_references(drafts, manifest)
    assert f"{len(alone)} {'candidate' if drafted - recorded else 'reference'}" in str(caught.value)
    assert ", ".join(alone[:5]) in str(caught.value)


@pytest.fixture
def one_of_three(tmp_path: Path) -> tuple[Path, Path]:
    """Candidates of the second of three studies, whose references are sentences, sentences and a narrative."""
    drafts = lines(tmp_path / "drafts.jsonl", {"sample_id": "b", "report": []})
    manifest = lines(
        tmp_path / "manifest.jsonl",
        {"sample_id": "a", "grounded_findings": [{"text": "Mass."}]},
        {"sample_id": "b", "grounded_findings": [{"text": "Mass."}]},
        {"sample_id": "c", "findings": "A mass."},
    )
    return drafts, manifest


def test_a_missing_candidate_is_refused_skipped_or_empty(one_of_three: tuple[Path, Path]) -> None:
    with pytest.raises(InputError, match=r"2 references \(a, c\) .* --missing skip .* --missing empty"):
        read_candidates_and_references(*one_of_three)
    pairs = read_candidates_and_references(*one_of_three, missing="skip")
    assert [pair.sample_id for pair in pairs] == ["b"]
    assert (list(pairs.without_candidate), pairs.empty_candidates) == (["a", "c"], ("b",))
    assert (pairs.read, pairs.skipped) == (3, 0)
    pairs = read_candidates_and_references(*one_of_three, missing="empty")
    assert [(pair.sample_id, pair.candidate) for pair in pairs] == [("b", []), ("a", []), ("c", "")]
    assert (pairs.without_candidate, pairs.empty_candidates) == ({}, ("b", "a", "c"))
    with raises("missing: invalid-option"):
        read_candidates_and_references(*one_of_three, missing="ignore")  # type: ignore[arg-type]


def test_a_candidate_that_failed_is_named_with_the_reason(one_of_three: tuple[Path, Path]) -> None:
    drafts, _ = one_of_three
    reason = {"sample_id": "a", "stage": "generate", "reason": "too long"}
    other = {"sample_id": "c", "stage": "generate", "reason": "of another file", "source": "other.jsonl"}
    lines(drafts.with_name("failures.jsonl"), reason | {"source": drafts.name}, other)
    pairs = read_candidates_and_references(*one_of_three, missing="skip")
    assert pairs.without_candidate == {"a": "no candidate report: too long", "c": "no candidate report"}
    with raises_code(ErrorCode.MISMATCH, match="too long"):
        read_candidates_and_references(*one_of_three)


def test_masks_and_boxes_on_the_prior_image_are_read(tmp_path: Path) -> None:
    mask = {"size": [2, 2], "counts": [1, 3]}
    report = [{"text": "Scar.", "boxes": [BOX], "masks": [mask], "prior_boxes": [BOX]}]
    drafts = lines(tmp_path / "drafts.jsonl", {"sample_id": "a", "report": report})
    manifest = lines(tmp_path / "manifest.jsonl", {"sample_id": "a", "grounded_findings": report})
    (drafted,) = read_candidates_and_references(drafts, manifest)
    (paired,) = read_pairs(document(tmp_path / "pairs.json", [example("a", prediction=report, target=report)]))
    expected = Sentence(text="Scar.", boxes=(Box(**BOX),), masks=(Mask(**mask),), prior_boxes=(Box(**BOX),))
    assert drafted == paired == Pair("a", [expected], [expected])


def test_the_context_of_the_patient_is_read_from_every_layout(tmp_path: Path) -> None:
    context = {"age": "067Y", "indication": "Fever.", "comparison": None}
    (tmp_path / "pairs.json").write_text(
        json.dumps([{"example_id": "1", "prediction": [], "target": [], "age": 67, "indication": " Fever. "}])
    )
    (tmp_path / "pairs.csv").write_text("example_id,prediction,target,age,indication\n1,a,b,67 years,Fever.\n")
    (tmp_path / "drafts.jsonl").write_text(json.dumps({"sample_id": "1", "report": "a"}) + "\n")
    (tmp_path / "manifest.jsonl").write_text(json.dumps({"sample_id": "1", "findings": "b", **context}) + "\n")
    read = [
        *read_pairs(tmp_path / "pairs.json"),
        *read_pairs(tmp_path / "pairs.csv"),
        *read_candidates_and_references(tmp_path / "drafts.jsonl", tmp_path / "manifest.jsonl"),
    ]
    assert {pair.context for pair in read} == {PatientContext(67.0, "Fever.")}


@pytest.mark.parametrize(
    ("age", "years"), [(5, 5.0), ("006M", 0.5), ("26 weeks", 0.5), (">89", None), (True, None), ("", None)]
)
def test_ages_are_years_and_unreadable_ones_unknown(age: object, years: float | None) -> None:
    assert PatientContext.of({"age": age}).age == years
