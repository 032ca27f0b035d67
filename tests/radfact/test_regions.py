import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pycocotools import mask as coco

from radfact.errors import InputError
from radfact.io.coco import decode_mask
from radfact.metrics.radfact.options import Compat
from radfact.metrics.radfact.regions import covered_share, spatially_entailed
from radfact.records import Box, Mask, Sentence

Corners = tuple[float, float, float, float]


def sentence(*boxes: Corners, masks: Sequence[Mask] = ()) -> Sentence:
    made = tuple(Box(x_min=a, y_min=b, x_max=c, y_max=d) for a, b, c, d in boxes)
    return Sentence(text="Finding.", boxes=made or None, masks=tuple(masks) or None)


def mask(pixels: np.ndarray) -> Mask:
    encoded = coco.encode(np.asfortranarray(pixels, dtype=np.uint8))
    return Mask(size=pixels.shape, counts=encoded["counts"].decode())


@st.composite
def corners(draw: st.DrawFn, steps: int | None = None) -> Corners:
    share = st.floats(0, 1) if steps is None else st.integers(0, steps).map(lambda step: step / steps)
    (x0, x1), (y0, y1) = (sorted((draw(share), draw(share))) for _ in range(2))
    return x0, y0, x1, y1


def several(steps: int | None = None) -> st.SearchStrategy[list[Corners]]:
    return st.lists(corners(steps), min_size=1, max_size=5)


def paint(boxes: Sequence[Corners], size: int) -> np.ndarray:
    canvas = np.zeros((size, size), dtype=bool)
    for box in boxes:
        x0, y0, x1, y1 = (int(corner * size) for corner in box)
        canvas[y0:y1, x0:x1] = True
    return canvas


@given(own=several(), evidence=several())
def test_paper_mode_counts_the_pixels_of_a_224_mask(own: list[Corners], evidence: list[Corners]) -> None:
    mine, theirs = paint(own, 224), paint(evidence, 224)
    expected = (mine & theirs).sum() / mine.sum() if mine.any() else math.nan
    assert covered_share(sentence(*own), [sentence(*evidence)]) == pytest.approx(expected, nan_ok=True, rel=0, abs=0)


@given(own=several(steps=16), evidence=several(steps=16))
def test_exact_mode_measures_the_area_of_unions(own: list[Corners], evidence: list[Corners]) -> None:
    # Corners on sixteenths are binary fractions, so a 16 x 16 painting is exact.
    mine, theirs = paint(own, 16), paint(evidence, 16)
    expected = (mine & theirs).sum() / mine.sum() if mine.any() else math.nan
    share = covered_share(sentence(*own), [sentence(*evidence)], compat="exact")
    assert share == pytest.approx(expected, nan_ok=True, abs=1e-12)


@given(own=several(), evidence=several(), more=corners(), compat=st.sampled_from(["paper", "exact"]))
def test_more_evidence_never_covers_less_and_a_region_covers_itself(
    own: list[Corners], evidence: list[Corners], more: Corners, compat: Compat
) -> None:
    before, after, itself = (
        covered_share(sentence(*own), sentences, compat=compat)
        for sentences in ([sentence(*evidence)], [sentence(*evidence), sentence(more)], [sentence(*own)])
    )
    if math.isnan(before):
        assert math.isnan(after)
        assert math.isnan(itself)
    else:
        assert after >= before - 1e-12
        assert itself == pytest.approx(1)


def test_exactly_half_is_not_enough_in_paper_mode_and_enough_in_exact_mode() -> None:
    own, evidence = sentence((0.0, 0.0, 0.5, 0.5)), [sentence((0.0, 0.0, 0.25, 0.5))]
    assert covered_share(own, evidence) == 0.5
    assert not spatially_entailed(own, evidence)
    assert spatially_entailed(own, evidence, compat="exact")


@pytest.mark.parametrize("start", [0.1, 0.2, 0.3, 0.5, 0.7])
def test_decimal_fractions_are_compared_exactly_with_one_half(start: float) -> None:
    own = sentence((start, 0.1, round(start + 0.2, 1), 0.3))
    assert spatially_entailed(own, [sentence((round(start + 0.1, 1), 0.0, 1.0, 1.0))], compat="exact")


def test_a_box_below_the_resolution_has_an_area_in_exact_mode_only() -> None:
    own, evidence = sentence((0.5, 0.5, 0.501, 0.501)), [sentence((0.0, 0.0, 1.0, 1.0))]
    assert math.isnan(covered_share(own, evidence))
    assert not spatially_entailed(own, evidence, threshold=0.0)
    assert spatially_entailed(own, evidence, compat="exact")


def test_evidence_is_combined() -> None:
    own = sentence((0.0, 0.0, 0.8, 1.0))
    halves = [sentence((0.0, 0.0, 0.3, 1.0)), sentence((0.5, 0.0, 0.8, 1.0))]
    assert [spatially_entailed(own, [half]) for half in halves] == [False, False]
    assert spatially_entailed(own, halves)


@pytest.mark.parametrize("compat", ["paper", "exact"])
def test_evidence_without_a_region_entails_nothing_at_any_threshold(compat: Compat) -> None:
    own = sentence((0.0, 0.0, 1.0, 1.0))
    assert not spatially_entailed(own, [sentence()], compat=compat, threshold=0.0)


@given(pixels=st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=4))
def test_masks_are_decoded_from_both_encodings(pixels: list[list[bool]]) -> None:
    expected = np.array(pixels)
    flat = expected.ravel(order="F")
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flat])))
    runs = np.diff([0, *edges.tolist(), flat.size]).tolist()
    assert (decode_mask(mask(expected)) == expected).all()
    assert (decode_mask(Mask(size=expected.shape, counts=runs)) == expected).all()


@given(own=several(steps=64), evidence=several(steps=64), compat=st.sampled_from(["paper", "exact"]))
def test_a_mask_of_boxes_equals_the_boxes_on_an_aligned_grid(
    own: list[Corners], evidence: list[Corners], compat: Compat
) -> None:
    size = 224 if compat == "paper" else 64
    own_mask, evidence_mask = (sentence(masks=[mask(paint(boxes, size))]) for boxes in (own, evidence))
    boxed = covered_share(sentence(*own), [sentence(*evidence)], compat=compat)
    for other in (evidence_mask, sentence(*evidence)):
        assert covered_share(own_mask, [other], compat=compat) == pytest.approx(boxed, nan_ok=True, abs=1e-12)


def test_masks_of_different_grids_are_compared_on_the_finer_one() -> None:
    coarse, fine = np.zeros((2, 2), dtype=bool), np.zeros((8, 8), dtype=bool)
    coarse[0, 0] = fine[:4, :2] = True
    assert covered_share(sentence(masks=[mask(coarse)]), [sentence(masks=[mask(fine)])], compat="exact") == 0.5


def test_paper_mode_resizes_masks_to_224_by_nearest_neighbor() -> None:
    left = np.zeros((448, 448), dtype=bool)
    left[:, :112] = True
    assert covered_share(sentence((0.0, 0.0, 0.5, 1.0)), [sentence(masks=[mask(left)])]) == 0.5


@pytest.mark.parametrize("counts", [[3], [5, -1], "", "5", "00000", "P", "~~~", "é"])
def test_runs_that_do_not_fit_the_size_are_refused(counts: list[int] | str) -> None:
    with pytest.raises(InputError, match=r"counts: (the runs must .* 2 x 2 = 4|no run-length encoding)"):
        decode_mask(Mask(size=(2, 2), counts=counts))
    with pytest.raises(InputError, match=r"size: .*at most 100000000 pixels"):
        decode_mask(Mask(size=(10**6, 10**6), counts=[10**12]))
