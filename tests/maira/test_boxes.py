"""Means of overlaps over phrases, and the completion of a reference report's boxes."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_examples import box

from maira.data.study import Study
from maira.generate.engine import Response
from maira.grounding.boxes import Overlap, read_completion, summarize_overlaps
from maira.grounding.evaluation import completion_items
from maira.model.task_examples import BOX_CLIPPED, BOX_OUTSIDE, Example, make_example
from radfact.records import Box, Sentence


def test_scores_are_means_over_phrases() -> None:
    scores = summarize_overlaps([Overlap(1, 0.5, 0.5), Overlap(0, 0, 0), Overlap(math.nan, math.nan, math.nan)])
    assert {name: (score.point, score.n) for name, score in scores.items()} == {
        "precision": (0.5, 2),
        "recall": (0.25, 2),
        "mean_iou": (0.25, 2),
    }


NODULE = Sentence(text="Left nodule.", boxes=(box(0.5, 0.2, 0.625, 0.4), box(0.5, 0.5, 0.6, 0.6)))
OPACITY = Sentence(text="Opacity.", boxes=(box(0.3, 0.1, 0.4, 0.3),))
REPORT = [Sentence(text="Clear right lung."), NODULE, OPACITY]


def _completions(study: Study) -> tuple[list[Example], list[dict[str, Any]]]:
    """The examples of a study's box completions, and their rows for empty responses."""
    items = completion_items(study, 9)
    return [item.request.example for item in items], [item.row(Response("", False, 0.0), "model") for item in items]


def test_the_condition_ends_with_the_first_box_of_the_sentence(make_study: Any) -> None:
    study = make_study("lateral", grounded_findings=REPORT)
    prompt = make_example(study, "grounded").text
    (first, second), rows = _completions(study)
    assert first.text == f"{prompt} <obj>Clear right lung.</obj><obj>Left nodule.<box>"
    assert first.target == "<x50><y20><x75><y40></box><box><x50><y50><x70><y60></box></obj>"
    assert second.text == first.text + first.target + "<obj>Opacity.<box>"
    assert second.target == "<x10><y10><x30><y30></box></obj>"
    assert [(row["index"], row["is_clipped"]) for row in rows] == [(1, False), (2, False)]


def test_clipped_boxes_are_marked_and_hidden_boxes_not_requested(make_study: Any) -> None:
    sentences = [
        Sentence(text="Hidden.", boxes=(box(0, 0, 0.2, 1),)),
        Sentence(text="Half hidden.", boxes=(box(0.2, 0, 0.5, 1),)),
        Sentence(text="One of two hidden.", boxes=(box(0, 0, 0.2, 1), box(0.5, 0, 0.7, 1))),
    ]
    (half, _), rows = _completions(make_study(grounded_findings=sentences))
    assert [(row["index"], row["is_clipped"]) for row in rows] == [(1, True), (2, True)]
    assert half.text.endswith(" <obj>Hidden.</obj><obj>Half hidden.<box>")
    assert half.notes == (BOX_OUTSIDE, BOX_CLIPPED, BOX_OUTSIDE)


A = box(0.105, 0.205, 0.305, 0.405)


@pytest.mark.parametrize(
    ("continuation", "result", "kinds"),
    [
        ("<x10><y20><x30><y40></box></obj>", (A,), ()),
        # What comes after the sentence is another one.
        ("<x10><y20><x30><y40></box></obj><obj>More.<box><x1><y1><x2><y2></box></obj>", (A,), ()),
        ("<x10><y20><x30><y40></box><obj>More.<box><x1><y1><x2><y2></box></obj>", (A,), ("nested",)),
        ("<x10><y20><x30><y40></box><box><x5", (A,), ("cut_off",)),
        ("<x30><y40><x10><y20></box></obj>", (A,), ("swapped_corners",)),
        ("<x10><y20></box></obj>", (), ("malformed_box",)),
        ("</obj>", (), ("malformed_box",)),
        ("", (), ("cut_off",)),
    ],
)
def test_a_continuation_is_read_up_to_the_end_of_the_sentence(
    continuation: str, result: tuple[Box, ...], kinds: tuple[str, ...]
) -> None:
    assert read_completion("Left nodule.", continuation) == (result, kinds)


X, Y = (0.015, 0.035), (0.025, 0.045)


@given(st.lists(st.sampled_from(["<x1>", "<y2>", "<x3>", "<y4>", "<box>", "</box>", "<obj>", "</obj>", "a. ", " "])))
def test_any_continuation_is_parsed(pieces: list[str]) -> None:
    result, _ = read_completion("Nodule.", "".join(pieces))
    assert {b.as_tuple() for b in result} <= {(x0, y0, x1, y1) for x0 in X for y0 in Y for x1 in X for y1 in Y}
