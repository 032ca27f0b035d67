"""Phrases to locate, the completion of a report's boxes, and scores by the generator's labels and by overlaps."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from error_checks import raises
from hypothesis import given
from hypothesis import strategies as st
from test_examples import box

from maira.data import phantoms as generator
from maira.data.manifest import read_manifest
from maira.data.study import Label, Study
from maira.generate.engine import Response
from maira.grounding.boxes import Overlap, read_completion, summarize_overlaps
from maira.grounding.evaluation import completion_items
from maira.grounding.labels import evaluate_labels, most_frequent_report
from maira.grounding.phrases import Phrase, manifest_phrases, read_phrases
from maira.model.task_examples import BOX_CLIPPED, BOX_OUTSIDE, Example, make_example
from radfact.records import Sentence

CASES: dict[str, list[list[Any]]] = yaml.safe_load(Path(__file__).with_name("grounding.yaml").read_text("utf-8"))


def test_csv_and_json_lines_are_equivalent(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text('sample_id,phrase\na,"Mass, left"\nb,Effusion\n\na,Nodule\n')
    rows = [("a", "Mass, left"), ("b", "Effusion"), ("a", "Nodule")]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps({"sample_id": s, "text": t}) + "\n" for s, t in rows))
    expected = [Phrase(name, index, Sentence(text=text)) for (name, text), index in zip(rows, (0, 0, 1), strict=True)]
    assert read_phrases(tmp_path / "p.csv", ["a", "b"]) == expected
    assert read_phrases(tmp_path / "p.jsonl", ["a", "b"]) == expected


def test_json_lines_have_boxes(tmp_path: Path) -> None:
    row = {"sample_id": "a", "phrase": "Mass", "boxes": [{"x_min": 0.1, "y_min": 0.2, "x_max": 0.3, "y_max": 0.4}]}
    (tmp_path / "p.jsonl").write_text(json.dumps(row))
    (phrase,) = read_phrases(tmp_path / "p.jsonl", ["a"])
    assert phrase.sentence.boxes == (box(0.1, 0.2, 0.3, 0.4),)


@pytest.mark.parametrize(("error", "text"), CASES["unusable phrases"])
def test_unusable_phrases_are_errors_with_their_line(tmp_path: Path, error: str, text: str) -> None:
    path = tmp_path / error.partition(":")[0]
    path.write_text(text)
    with raises(error):
        read_phrases(path, ["study-1", "study-2"])


def test_phrases_follow_manifest_order(phantoms: Path) -> None:
    studies = read_manifest(phantoms)
    assert [(p.sample_id, p.index, p.sentence) for p in manifest_phrases(studies)] == [
        (study.sample_id, index, sentence) for study in studies for index, sentence in enumerate(study.phrases or [])
    ]


def test_scores_are_means_over_phrases() -> None:
    scores = summarize_overlaps([Overlap(1, 0.5, 0.5), Overlap(0, 0, 0), Overlap(math.nan, math.nan, math.nan)])
    points = {name: (score.point, score.n) for name, score in scores.items()}
    assert points == {"precision": (0.5, 2), "recall": (0.25, 2), "mean_iou": (0.25, 2)}


NODULE = Sentence(text="Left nodule.", boxes=(box(0.5, 0.2, 0.625, 0.4), box(0.5, 0.5, 0.6, 0.6)))
OPACITY = Sentence(text="Opacity.", boxes=(box(0.3, 0.1, 0.4, 0.3),))
REPORT = [Sentence(text="Clear right lung."), NODULE, OPACITY]


def completions(study: Study) -> tuple[list[Example], list[tuple[int, bool]]]:
    """The examples of a study's box completions; of their rows for empty responses, the sentence and the mark."""
    items = completion_items(study, 9)
    rows = [item.row(Response("", False, 0.0), "model") for item in items]
    return [item.request.example for item in items], [(row["index"], row["is_clipped"]) for row in rows]


def test_the_condition_ends_with_the_first_box_of_the_sentence(make_study: Any) -> None:
    study = make_study("lateral", grounded_findings=REPORT)
    prompt = make_example(study, "grounded").text
    (first, second), rows = completions(study)
    assert first.text == f"{prompt} <obj>Clear right lung.</obj><obj>Left nodule.<box>"
    assert first.target == "<x50><y20><x75><y40></box><box><x50><y50><x70><y60></box></obj>"
    assert second.text == first.text + first.target + "<obj>Opacity.<box>"
    assert second.target == "<x10><y10><x30><y30></box></obj>"
    assert rows == [(1, False), (2, False)]


def test_clipped_boxes_are_marked_and_hidden_boxes_not_requested(make_study: Any) -> None:
    sentences = [
        Sentence(text="Hidden.", boxes=(box(0, 0, 0.2, 1),)),
        Sentence(text="Half hidden.", boxes=(box(0.2, 0, 0.5, 1),)),
        Sentence(text="One of two hidden.", boxes=(box(0, 0, 0.2, 1), box(0.5, 0, 0.7, 1))),
    ]
    (half, _), rows = completions(make_study(grounded_findings=sentences))
    assert rows == [(1, True), (2, True)]
    assert half.text.endswith(" <obj>Hidden.</obj><obj>Half hidden.<box>")
    assert half.notes == (BOX_OUTSIDE, BOX_CLIPPED, BOX_OUTSIDE)


@pytest.mark.parametrize(("continuation", "count", "kinds"), CASES["continuations"])
def test_a_continuation_is_read_up_to_the_end_of_the_sentence(continuation: str, count: int, kinds: list[str]) -> None:
    boxes = (box(0.105, 0.205, 0.305, 0.405),) * count
    assert read_completion("Left nodule.", continuation) == (boxes, tuple(kinds))


X, Y = (0.015, 0.035), (0.025, 0.045)


@given(st.lists(st.sampled_from(["<x1>", "<y2>", "<x3>", "<y4>", "<box>", "</box>", "<obj>", "</obj>", "a. ", " "])))
def test_any_continuation_is_parsed(pieces: list[str]) -> None:
    result, _ = read_completion("Nodule.", "".join(pieces))
    assert {b.as_tuple() for b in result} <= {(x0, y0, x1, y1) for x0 in X for y0 in Y for x1 in X for y1 in Y}


HALF, QUARTER = box(0, 0, 0.5, 1), box(0, 0, 0.5, 0.5)
LEFT = Label(kind="effusion", side="left", boxes=(HALF,))
RIGHT_NODULE = Label(kind="nodule", side="right", boxes=(HALF,))
LABELS = {"left effusion": LEFT, "right nodule": RIGHT_NODULE}


def labeled(name: str, *labels: Label) -> Study:
    return Study(sample_id=name, frontal=Path("frontal.png"), labels=list(labels))


def test_the_reference_scores_perfectly() -> None:
    studies = [generator.make_study(11, i, 64, "test").study for i in range(20)]
    scores = evaluate_labels({s.sample_id: s.grounded_findings or [] for s in studies}, studies)
    assert scores["f1"].point == 1
    assert scores["mean_iou"].point == pytest.approx(1)


@pytest.mark.parametrize(("sentences", "labels", "expected"), CASES["scores by labels"])
def test_scores_by_labels(sentences: list[Any], labels: list[str], expected: dict[str, float]) -> None:
    boxes = {"half": (HALF,), "quarter": (QUARTER,), "none": None}
    report = [Sentence(text=text, boxes=boxes[name]) for text, name in sentences]
    scores = evaluate_labels({"a": report}, [labeled("a", *(LABELS[label] for label in labels))])
    assert {name: scores[name].point for name in expected} == pytest.approx(expected)


@pytest.mark.parametrize(("drafts", "labels", "error"), CASES["incomparable drafts"])
def test_studies_that_cannot_be_compared_are_refused(drafts: Any, labels: list[str] | None, error: str) -> None:
    own = labels and [LABELS[label] for label in labels]
    with raises(error) as caught:
        evaluate_labels(drafts, [Study(sample_id="a", frontal=Path("frontal.png"), labels=own)])
    assert "'a'" in str(caught.value)


def test_the_most_frequent_report_has_the_most_frequent_findings() -> None:
    reports = [Sentence(text="Left effusion.", boxes=(HALF,)), *[Sentence(text="Lungs are clear.")] * 2]
    studies = [
        labeled(name, *labels).model_copy(update={"grounded_findings": [sentence]})
        for name, labels, sentence in zip("abc", ([LEFT], [], []), reports, strict=True)
    ]
    assert most_frequent_report(studies)["report"] == [{"text": "Lungs are clear.", "boxes": None}]
