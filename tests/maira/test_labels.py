"""Figures from the generator's own labels."""

from pathlib import Path
from typing import Any

import pytest
from error_checks import raises_code

from maira.data.phantoms import make_study
from maira.data.study import Label, Study
from maira.grounding.labels import evaluate_labels, most_frequent_report
from radfact.errors import ErrorCode
from radfact.records import Box, Sentence

HALF = Box(x_min=0.0, y_min=0.0, x_max=0.5, y_max=1.0)
QUARTER = Box(x_min=0.0, y_min=0.0, x_max=0.5, y_max=0.5)


def _study(name: str, *labels: Label) -> Study:
    return Study(sample_id=name, frontal=Path("frontal.png"), labels=list(labels))


def _points(drafts: dict[str, list[Sentence]], studies: list[Study]) -> dict[str, float | None]:
    return {name: score.point for name, score in evaluate_labels(drafts, studies).items()}


LEFT = Label(kind="effusion", side="left", boxes=(HALF,))
RIGHT_NODULE = Label(kind="nodule", side="right", boxes=(HALF,))


def test_the_reference_scores_perfectly() -> None:
    studies = [make_study(11, i, 64, "test").study for i in range(20)]
    drafts = {s.sample_id: s.grounded_findings or [] for s in studies}
    points = _points(drafts, studies)
    assert points["f1"] == 1
    assert points["mean_iou"] == pytest.approx(1)


def test_the_wrong_side_counts_on_both_sides() -> None:
    sentences = [Sentence(text="Small right pleural effusion.", boxes=(HALF,)), Sentence(text="Right mid zone nodule.")]
    points = _points({"a": sentences}, [_study("a", LEFT, RIGHT_NODULE)])
    assert (points["precision"], points["recall"], points["f1"]) == (0.5, 0.5, 0.5)


def test_boxes_count_for_matched_findings_only() -> None:
    sentences = [
        Sentence(text="Small left pleural effusion.", boxes=(QUARTER,)),
        Sentence(text="Left mid zone nodule.", boxes=(HALF,)),
    ]
    assert _points({"a": sentences}, [_study("a", LEFT, RIGHT_NODULE)])["mean_iou"] == pytest.approx(0.5)


def test_a_repeated_finding_matches_once() -> None:
    sentences = [Sentence(text="Small left pleural effusion.")] * 2
    points = _points({"a": sentences}, [_study("a", LEFT)])
    assert (points["precision"], points["recall"]) == (0.5, 1)


@pytest.mark.parametrize(
    ("drafts", "labels", "code", "field"),
    [
        ({"a": []}, None, ErrorCode.MISSING_FIELD, "labels"),
        ({}, [LEFT], ErrorCode.MISMATCH, "sample_id"),
        ({"a": "Small left pleural effusion."}, [LEFT], ErrorCode.INVALID_VALUE, "report"),
    ],
)
def test_studies_that_cannot_be_compared_are_refused(drafts: Any, labels: Any, code: ErrorCode, field: str) -> None:
    with raises_code(code, match="'a'", field=field):
        evaluate_labels(drafts, [Study(sample_id="a", frontal=Path("frontal.png"), labels=labels)])


def test_the_most_frequent_report_has_the_most_frequent_findings() -> None:
    normal = [Sentence(text="Lungs are clear.")]
    studies = [
        _study("a", LEFT).model_copy(update={"grounded_findings": [Sentence(text="Left effusion.", boxes=(HALF,))]}),
        _study("b").model_copy(update={"grounded_findings": normal}),
        _study("c").model_copy(update={"grounded_findings": normal}),
    ]
    assert most_frequent_report(studies)["report"] == [{"text": "Lungs are clear.", "boxes": None}]
