import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from error_checks import raises, raises_code
from hypothesis import given
from hypothesis import strategies as st
from pycocotools import mask as coco
from results_folder import write_manifest as write_rows

from radfact.errors import ErrorCode, InputError
from radfact.io.coco import decode_mask, read_coco
from radfact.io.pairs import read_candidates_and_references, read_pairs
from radfact.meta.datasets.reports import read_counts, read_reports
from radfact.records import Pair, PatientContext, Sentence

INVALID, READABLE = (
    yaml.safe_load(Path(__file__).with_name(f"{kind}_reports.yaml").read_text("utf-8"))
    for kind in ("invalid", "readable")
)
READERS: dict[str, Callable[..., object]] = {
    "pairs": read_pairs,
    "drafts": read_candidates_and_references,
    "coco": read_coco,
    "candidates of COCO": read_candidates_and_references,
    "counts": read_counts,
    "reports of sites": partial(read_reports, default_site=""),
}


def write_files(case: dict[str, Any], folder: Path) -> list[Path]:
    """Write the files of a case and return their paths."""
    files = case.get("files", {})
    if "annotations" in case:
        images, categories = [{"id": 1, "width": 200, "height": 100}], [{"id": 7, "name": "Nodule"}]
        dataset = {"images": images, "categories": categories, "annotations": case["annotations"]}
        files = {"coco.json": dataset}
    for name, content in files.items():
        if name.endswith(".jsonl") and not isinstance(content, str):
            write_rows(folder / name, *content)
        else:
            (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return [folder / name for name in files]


def as_report(value: Any) -> Any:
    return value if isinstance(value, str) else [Sentence.model_validate(item) for item in value]


@pytest.mark.parametrize("case", READABLE)
def test_files_are_read(case: dict[str, Any], tmp_path: Path) -> None:
    read: Any = READERS[case["reader"]](*write_files(case, tmp_path))
    if case["reader"] == "coco":
        assert read == {name: as_report(report) for name, report in case["reports"].items()}
        return
    context = PatientContext(*case.get("context", ()))
    assert list(read) == [Pair(name, *map(as_report, reports), context=context) for name, *reports in case["pairs"]]
    counts = [read.read, read.skipped, [*read.without_reference]]
    assert case.get("counts", counts) == counts


@pytest.mark.parametrize("case", INVALID, ids=lambda case: case["error"])
def test_an_invalid_file_is_one_line_with_its_location(case: dict[str, Any], tmp_path: Path) -> None:
    paths = write_files(case, tmp_path)
    with raises(case["error"]):
        READERS[case["reader"]](*paths)


PIXELS = np.zeros((100, 200), dtype=np.uint8)
PIXELS[10:40, 10:30] = 1


@pytest.mark.parametrize(
    "segmentation",
    [
        [[10, 10, 30, 10, 30, 40, 10, 40]],
        {"size": [100, 200], "counts": coco.encode(np.asfortranarray(PIXELS))["counts"].decode()},
        {"size": [100, 200], "counts": [1010, 30, *[70, 30] * 19, 17060]},
    ],
    ids=["polygons", "packed runs", "runs"],
)
def test_a_segmentation_becomes_a_mask_and_overrides_the_bbox(segmentation: Any, tmp_path: Path) -> None:
    annotation = {"image_id": 1, "category_id": 7, "segmentation": segmentation, "bbox": [0, 0, 200, 100]}
    (sentence,) = read_coco(*write_files({"annotations": [annotation]}, tmp_path))["1"]
    assert sentence.boxes is None
    assert sentence.masks is not None
    assert (decode_mask(sentence.masks[0]) == PIXELS).all()


def test_a_dataset_given_as_pairs_is_refused_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="COCO files are given as --candidates and --references"):
        read_pairs(*write_files({"annotations": []}, tmp_path))


@given(
    drafted=st.sets(st.integers(0, 9).map(str), min_size=1),
    recorded=st.sets(st.integers(0, 9).map(str), min_size=1),
)
def test_ids_without_a_counterpart_are_refused(
    drafted: set[str], recorded: set[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("match")
    drafts = write_rows(folder / "drafts.jsonl", *({"sample_id": key, "report": "Clear."} for key in sorted(drafted)))
    manifest = write_rows(
        folder / "manifest.jsonl", *({"sample_id": key, "findings": "Clear."} for key in sorted(recorded))
    )
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
    drafts = write_rows(tmp_path / "drafts.jsonl", {"sample_id": "b", "report": []})
    manifest = write_rows(
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
    write_rows(drafts.with_name("failures.jsonl"), reason | {"source": drafts.name}, other)
    pairs = read_candidates_and_references(*one_of_three, missing="skip")
    assert pairs.without_candidate == {"a": "no candidate report: too long", "c": "no candidate report"}
    with raises_code(ErrorCode.MISMATCH, match="too long"):
        read_candidates_and_references(*one_of_three)


@pytest.mark.parametrize(
    ("age", "years"), [(5, 5.0), ("006M", 0.5), ("26 weeks", 0.5), (">89", None), (True, None), ("", None)]
)
def test_ages_are_years_and_unreadable_ones_unknown(age: object, years: float | None) -> None:
    assert PatientContext.of({"age": age}).age == years
