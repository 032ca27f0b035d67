from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tiny_runs import CASES

from maira.data.images import CropMap
from maira.model import task_examples
from maira.model.parser import parse_report, render_report
from maira.model.prompts import Task
from maira.model.task_examples import BOX_CLIPPED, BOX_OUTSIDE, MASK_UNUSED, PRIOR_REPORT_UNUSED, make_example
from radfact.errors import InputError
from radfact.records import Box, Mask, Sentence


def box(x_min: float, y_min: float, x_max: float, y_max: float) -> Box:
    return Box(x_min=x_min, y_min=y_min, x_max=x_max, y_max=y_max)


NODULE = Sentence(text="Left nodule.", boxes=(box(0.5, 0.2, 0.625, 0.4),))
OUTSIDE = Sentence(text="Device.", boxes=(box(0.5, 0.2, 0.625, 0.4), box(0, 0, 0.2, 1)))


@pytest.mark.parametrize(("task", "images", "target"), CASES["answers"])
def test_images_are_ordered_and_an_answer_has_its_boxes_in_the_crop(
    make_study: Any, task: Task, images: list[str], target: str
) -> None:
    reports = {"findings": "Clear lungs.", "grounded_findings": [Sentence(text="Clear lungs."), NODULE]}
    example = make_example(make_study("prior_frontal", "lateral", **reports), task, phrase=NODULE)
    assert [image.stem for image in example.images] == images
    assert example.text.count("<image>") == len(images)
    assert example.target == target
    if task != "phrase":
        assert make_example(make_study(), task).target is None


@pytest.mark.parametrize("task", ["findings", "grounded"])
def test_a_prior_report_needs_its_image(make_study: Any, task: Task) -> None:
    example = make_example(make_study("lateral", prior_report="Clear lungs."), task)
    assert example.notes == (PRIOR_REPORT_UNUSED,)
    assert "Clear lungs." not in example.text
    example = make_example(make_study("prior_frontal", prior_report="Clear lungs."), task)
    assert example.notes == ()
    assert "PRIOR_REPORT: Clear lungs. " in example.text


@pytest.mark.parametrize(
    ("sentence", "notes", "target"),
    [
        (OUTSIDE, (BOX_OUTSIDE,), "Device.<box><x50><y20><x75><y40></box>"),
        (Sentence(text="Device.", boxes=(box(0, 0, 0.2, 1), box(0.8, 0, 1, 1))), (BOX_OUTSIDE,) * 2, "Device."),
        (Sentence(text="Fluid.", masks=(Mask(size=(2, 2), counts=[1, 3]),)), (MASK_UNUSED,), "Fluid."),
    ],
)
def test_boxes_outside_the_crop_and_masks_are_dropped_and_noted(
    make_study: Any, sentence: Sentence, notes: tuple[str, ...], target: str
) -> None:
    example = make_example(make_study(grounded_findings=[sentence]), "grounded")
    assert (example.notes, example.target) == (notes, f" <obj>{target}</obj>")


@pytest.mark.parametrize("task", ["grounded", "phrase"])
def test_boxes_partly_outside_the_crop_are_clipped_and_noted(make_study: Any, task: Task) -> None:
    cut = Sentence(text="Left lung.", boxes=(box(0.5, 0.2, 0.9, 0.4),))
    example = make_example(make_study(grounded_findings=[cut]), task, phrase=cut)
    assert (example.notes, example.target) == ((BOX_CLIPPED,), " <obj>Left lung.<box><x50><y20><x99><y40></box></obj>")


@pytest.mark.parametrize(("values", "token"), CASES["control tokens"])
def test_texts_with_a_control_token_are_refused_by_sample(make_study: Any, values: dict[str, Any], token: str) -> None:
    with pytest.raises(InputError, match=f"'s1'.*{token}"):
        make_example(make_study(**values), "grounded" if "grounded_findings" in values else "findings")


shares = st.floats(0, 1)
sides = st.integers(1, 5000)


@given(shares, shares, shares, shares, sides, sides)
def test_box_round_trip_error_is_within_half_a_bin(
    x: float, y: float, other_x: float, other_y: float, width: int, height: int
) -> None:
    crop = CropMap(width, height)
    region = box(min(x, other_x), min(y, other_y), max(x, other_x), max(y, other_y))
    sentences, lost = task_examples.to_crop_coordinates([Sentence(text="Nodule.", boxes=(region,))], crop)
    visible = sentences[0].boxes
    assume(visible is not None)
    assert visible is not None
    read = parse_report(render_report(sentences))
    (answered,) = read.sentences[0].boxes or ()
    assert read.irregularities == []
    # What the crop hides cannot come back: the part that it shows is what returns.
    original = (region if not lost else crop.to_original(visible[0])).as_tuple()
    back = crop.to_original(answered).as_tuple()
    shorter = min(width, height)
    for i, side in enumerate((width, height, width, height)):
        assert abs(back[i] - original[i]) <= 0.005 * shorter / side + 1e-6


@given(st.lists(st.tuples(shares, shares, shares, shares), max_size=5), sides, sides)
def test_all_sentences_remain_and_box_changes_are_marked(
    corners: list[tuple[float, float, float, float]], width: int, height: int
) -> None:
    crop = CropMap(width, height)
    regions = [box(min(a, c), min(b, d), max(a, c), max(b, d)) for a, b, c, d in corners]
    sentences = [Sentence(text=f"Finding {i}.", boxes=(region,)) for i, region in enumerate(regions)]
    inside, lost = task_examples.to_crop_coordinates(sentences, crop)
    assert [sentence.text for sentence in inside] == [sentence.text for sentence in sentences]
    marks = dict(lost)
    for i, (sentence, region) in enumerate(zip(inside, regions, strict=True)):
        if sentence.boxes is None:
            assert marks[i] == BOX_OUTSIDE
        elif i in marks:
            assert marks[i] == BOX_CLIPPED
        else:
            assert crop.to_original(sentence.boxes[0]).as_tuple() == pytest.approx(region.as_tuple(), abs=1e-6)
