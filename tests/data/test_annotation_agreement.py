"""Several annotators: combined by a stated rule, and compared by figures known by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from box_strategies import boxes
from hypothesis import given
from hypothesis import strategies as st

from maira.data.annotation.combine import agreement, cohens_kappa, combine, iou
from maira.data.annotation.protocol import Annotation, PhraseAnnotation, PhraseLabel, Quality, Rejected
from radfact.metrics.radfact.regions import covered_share
from radfact.records import Box, Sentence

BOX = Box(x_min=0.0, y_min=0.0, x_max=0.4, y_max=0.4)
NEAR = Box(x_min=0.1, y_min=0.0, x_max=0.4, y_max=0.4)  # Within BOX, three quarters of it.
FAR = Box(x_min=0.6, y_min=0.6, x_max=0.8, y_max=0.8)

box_lists = st.lists(
    st.lists(boxes(st.integers(0, 1000).map(lambda n: n / 1000), 0.011), max_size=3), min_size=2, max_size=3
)


def by(who: str, *phrases: PhraseAnnotation, quality: Quality = Quality.NO_ISSUE) -> Annotation:
    return Annotation(who, phrases, quality)


def finding(*regions: Box) -> PhraseAnnotation:
    return PhraseAnnotation(PhraseLabel.FINDING, boxes=regions)


NON_FINDING = PhraseAnnotation(PhraseLabel.NON_FINDING)


def test_several_annotators_are_an_error_that_names_them() -> None:
    with pytest.raises(Rejected, match=r"2 annotators \(a, b\)"):
        combine([by("a", NON_FINDING), by("b", NON_FINDING)], "skip")


def test_the_same_box_drawn_twice_is_one() -> None:
    united = combine([by("a", finding(BOX)), by("b", finding(NEAR, FAR))], "union")
    assert united.phrases[0].boxes == (BOX, FAR)


@given(box_lists)
def test_the_union_covers_all_boxes(annotated: list[list[Box]]) -> None:
    united = combine([by(str(i), finding(*drawn)) for i, drawn in enumerate(annotated)], "union").phrases[0].boxes
    evidence = Sentence(text="union", boxes=united)
    for box in (box for drawn in annotated for box in drawn):
        assert covered_share(Sentence(text="x", boxes=(box,)), [evidence], compat="exact") == pytest.approx(1)


def test_the_union_has_the_majority_label() -> None:
    said = [by("a", NON_FINDING), by("b", finding(BOX)), by("c", finding(FAR))]
    assert combine(said, "union").phrases[0].label is PhraseLabel.FINDING


def test_iou_of_hand_computed_regions() -> None:
    assert iou((BOX,), (), (NEAR,), ()) == pytest.approx(0.75)
    assert iou((BOX,), (), (FAR,), ()) == 0
    assert iou((BOX, NEAR), (), (BOX,), ()) == pytest.approx(1)
    assert iou((), (), (BOX,), ()) == 0


def test_kappa_of_the_textbook_table() -> None:
    # 20 and 15 of 50 alike, 5 and 10 not: observed 0.7, by chance 0.5.
    pairs = [("y", "y")] * 20 + [("y", "n")] * 5 + [("n", "y")] * 10 + [("n", "n")] * 15
    assert cohens_kappa(pairs) == pytest.approx(0.4)


@pytest.mark.parametrize("pairs", [[], [("a", "a")] * 3])
def test_kappa_without_variety_is_none(pairs: Sequence[tuple[str, str]]) -> None:
    assert cohens_kappa(pairs) is None


def test_agreement_of_two_annotators() -> None:
    samples = [
        [by("a", finding(BOX), NON_FINDING), by("b", finding(NEAR), finding(FAR))],
        [by("b", NON_FINDING, quality=Quality.IMAGE), by("a", NON_FINDING)],
        [by("a", finding(BOX))],
    ]
    [pair] = agreement(samples)
    expected = {"annotators": ("a", "b"), "samples": 2, "quality_agreement": 0.5, "phrases": 2, "label_agreement": 0.5}
    assert pair | expected | {"located": 1, "located_by_one": 1, "mean_iou": pytest.approx(0.75)} == pair
