"""RadFact's scores in `paper` mode against a plain computation of their definition, corner by corner, and regions."""

import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools import mask as coco

from radfact.api import RadFact
from radfact.errors import InputError
from radfact.io.coco import decode_mask
from radfact.io.pairs import read_pairs
from radfact.judges import Verdict
from radfact.metrics.radfact.options import Compat
from radfact.metrics.radfact.regions import covered_share, spatially_entailed
from radfact.metrics.radfact.scores import SCORES
from radfact.records import Box, Mask, Pair, Sentence
from radfact.results.evaluation import EvaluationResult

PUBLISHED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "radfact"
needs_published = pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published examples are not on this machine")

JudgeFunction = Callable[[Sequence[str], str], Verdict]
KINDS = ("logical", "grounding", "spatial")
NO = Verdict("not_entailment")


Corners = tuple[float, float, float, float]
FREE = st.floats(0, 1)
CASES = yaml.safe_load(Path(__file__).with_name("corner_cases.yaml").read_text("utf-8"))
MASKS = {
    "left half": np.pad(np.ones((224, 112), dtype=bool), ((0, 0), (0, 112))),
    "empty": np.zeros((4, 4), dtype=bool),
}


def sentence(*boxes: Sequence[float], masks: Sequence[Mask] = (), text: str = "Finding.") -> Sentence:
    made = tuple(Box(x_min=a, y_min=b, x_max=c, y_max=d) for a, b, c, d in boxes)
    return Sentence(text=text, boxes=made or None, masks=tuple(masks) or None)


def mask(pixels: np.ndarray) -> Mask:
    encoded = coco.encode(np.asfortranarray(pixels, dtype=np.uint8))
    return Mask(size=pixels.shape, counts=encoded["counts"].decode())


def grid(steps: int) -> st.SearchStrategy[float]:
    return st.integers(0, steps).map(lambda step: step / steps)


@st.composite
def corners(draw: st.DrawFn, share: st.SearchStrategy[float] = FREE) -> Corners:
    (x0, x1), (y0, y1) = (sorted((draw(share), draw(share))) for _ in range(2))
    return x0, y0, x1, y1


def several(share: st.SearchStrategy[float] = FREE) -> st.SearchStrategy[list[Corners]]:
    return st.lists(corners(share), min_size=1, max_size=5)


def paint(boxes: Sequence[Corners], size: int) -> np.ndarray:
    canvas = np.zeros((size, size), dtype=bool)
    for box in boxes:
        x0, y0, x1, y1 = (int(corner * size) for corner in box)
        canvas[y0:y1, x0:x1] = True
    return canvas


def dice(seed: int) -> JudgeFunction:
    """A judge with arbitrary valid verdicts, equal for equal queries."""

    def judge(premises: Sequence[str], hypothesis: str) -> Verdict:
        draw = random.Random(f"{seed} {tuple(premises)} {hypothesis}")
        if draw.random() < 0.4:
            return NO
        return Verdict("entailment", tuple(draw.choices(range(len(premises)), k=draw.randint(1, 3))))

    return judge


# The definition, computed plainly: no code of the package, every mask painted, every replicate on its own.


def plain_text(text: str) -> str:
    return re.sub(r"[.:!?]$", "", re.sub("[-–—]", "", re.sub(r"\s+", " ", text.strip().lower())))


def painted(sentences: Sequence[Sentence]) -> np.ndarray:
    return paint([box.as_tuple() for sentence in sentences for box in sentence.boxes or ()], 224)


def plain_direction(hypotheses: Sequence[Sentence], premises: Sequence[Sentence], judge: JudgeFunction) -> list[float]:
    """Logical, grounding and spatial fraction of one direction."""
    entailed = located = entailed_located = both = 0
    texts = tuple(sentence.text for sentence in premises)
    for hypothesis in hypotheses:
        same = next(other for other in hypotheses if plain_text(other.text) == plain_text(hypothesis.text))
        verdict = judge(texts, same.text) if premises else NO
        evidence = []
        for named in verdict.evidence:
            evidence.append(next(other for other in premises if plain_text(other.text) == plain_text(texts[named])))
        is_entailed = verdict.status == "entailment"
        entailed += is_entailed
        sides = (hypothesis.boxes or (), [box for other in evidence for box in other.boxes or ()])
        is_flat = all(box.x_min == box.x_max or box.y_min == box.y_max for side in sides for box in side)
        is_located = hypothesis.boxes is not None and not (is_entailed and all(sides) and is_flat)
        located += is_located
        entailed_located += is_entailed and is_located
        if is_entailed and hypothesis.boxes and any(other.boxes for other in evidence):
            mine, theirs = painted([hypothesis]), painted(evidence)
            both += bool(mine.any() and (mine & theirs).sum() / mine.sum() > 0.5)
    pairs = [(entailed, len(hypotheses)), (both, entailed_located), (both, located)]
    return [above / below if below else math.nan for above, below in pairs]


def plain_f1(precision: float, recall: float) -> float:
    if math.isnan(precision) or math.isnan(recall):
        return math.nan
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def plain_figures(rows: np.ndarray) -> list[float]:
    """The nine scores of a set of (precisions, recalls) rows, in the order of `SCORES`."""
    means = []
    for column in rows.T:
        known = column[~np.isnan(column)]
        means.append(known.mean() if known.size else math.nan)
    return [value for p, r in zip(means[:3], means[3:], strict=True) for value in (p, r, plain_f1(p, r))]


def check_definition(pairs: Sequence[Pair], judge: JudgeFunction, result: EvaluationResult, replicates: int) -> None:
    rows = np.array(
        [
            [*plain_direction(p.candidate, p.reference, judge), *plain_direction(p.reference, p.candidate, judge)]
            for p in pairs
        ]
    )
    for sample, row in zip(result.samples, rows, strict=True):
        values = [sample.scores[name] for name in SCORES]
        assert values == pytest.approx(plain_figures(row[None]), abs=1e-9, nan_ok=True)
    generator = np.random.default_rng(42)
    drawn = [plain_figures(rows[generator.choice(len(rows), len(rows), replace=True)]) for _ in range(replicates)]
    for name, point, column in zip(SCORES, plain_figures(rows), np.array(drawn).T, strict=True):
        score, known = result.summaries[name], column[~np.isnan(column)]
        expected = [point, *np.quantile(known, [0.025, 0.25, 0.5, 0.75, 0.975])] if known.size else [point] + [None] * 5
        if math.isnan(point):
            expected = [None] * 6
        values = [score.point, score.low, score.q25, score.median, score.q75, score.high]
        assert values == pytest.approx(expected, abs=1e-9)


# Corners on the grid make shares of exactly one half likely, free ones make boxes thinner than a pixel.
sentences = st.builds(
    lambda text, boxes: sentence(*boxes or (), text=text),
    st.sampled_from(["Nodule.", "nodule", "No-dule!", "Effusion", "Clear lungs.", "clear  lungs"]),
    st.none() | st.lists(corners(grid(8) | FREE), max_size=3),
)
reports = st.lists(sentences, max_size=4)


@settings(max_examples=60)
@given(reports=st.lists(st.tuples(reports, reports), min_size=1, max_size=5), seed=st.integers(0, 99))
def test_every_score_equals_the_definition(reports: list[tuple[list[Sentence], list[Sentence]]], seed: int) -> None:
    pairs = [Pair(str(index), *both) for index, both in enumerate(reports)]
    judge = dice(seed)
    check_definition(pairs, judge, RadFact(judge, bootstrap=12).score(pairs), 12)


@needs_published
def test_scores_of_the_published_examples_equal_the_definition() -> None:
    pairs, judge = read_pairs(PUBLISHED / "grounded_reporting_examples.json"), dice(0)
    check_definition(pairs, judge, RadFact(judge, bootstrap=100).score(pairs), 100)


def table(evidence: Mapping[str, Sequence[int]]) -> JudgeFunction:
    return lambda _, hypothesis: Verdict("entailment", tuple(evidence[hypothesis])) if hypothesis in evidence else NO


def located(text: str, area: str | list[list[float]] | None) -> Sentence:
    return sentence(masks=[mask(MASKS[area])], text=text) if isinstance(area, str) else sentence(*area or (), text=text)


def scores_of(case: Mapping[str, Any], compat: Any) -> list[float | None]:
    """Precision and recall of each kind, None for no value."""
    candidate, reference = ([located(*row) for row in case[side].items()] for side in ("candidate", "reference"))
    (sample,) = RadFact(table(case["entailed"]), compat=compat, bootstrap=0).score([candidate], [reference]).samples
    values = [sample.scores[f"{kind}_{part}"] for kind in KINDS for part in ("precision", "recall")]
    return [None if math.isnan(value) else value for value in values]


@pytest.mark.parametrize("corner", CASES["cases"])
@pytest.mark.parametrize("compat", ["paper", "exact"])
def test_corner_cases(corner: str, compat: str) -> None:
    case = CASES["cases"][corner]
    assert scores_of(case, compat) == case.get(compat, case["paper"])


@given(own=several(), evidence=several())
def test_paper_mode_counts_the_pixels_of_a_224_mask(own: list[Corners], evidence: list[Corners]) -> None:
    mine, theirs = paint(own, 224), paint(evidence, 224)
    expected = (mine & theirs).sum() / mine.sum() if mine.any() else math.nan
    assert covered_share(sentence(*own), [sentence(*evidence)]) == pytest.approx(expected, nan_ok=True, rel=0, abs=0)


@given(own=several(grid(16)), evidence=several(grid(16)))
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


@pytest.mark.parametrize(("own", "evidence", "options", "share", "entailed"), CASES["regions"])
def test_a_region_is_entailed_if_the_evidence_covers_enough_of_it(
    own: Corners, evidence: list[list[Corners]], options: dict[str, Any], share: float, entailed: bool
) -> None:
    region, located_evidence = sentence(own), [sentence(*boxes) for boxes in evidence]
    compat = options.get("compat", "paper")
    assert covered_share(region, located_evidence, compat=compat) == pytest.approx(share, nan_ok=True)
    assert spatially_entailed(region, located_evidence, **options) is entailed


@given(pixels=st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=4))
def test_masks_are_decoded_from_both_encodings(pixels: list[list[bool]]) -> None:
    expected = np.array(pixels)
    flat = expected.ravel(order="F")
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flat])))
    runs = np.diff([0, *edges.tolist(), flat.size]).tolist()
    assert (decode_mask(mask(expected)) == expected).all()
    assert (decode_mask(Mask(size=expected.shape, counts=runs)) == expected).all()


@given(own=several(grid(64)), evidence=several(grid(64)), compat=st.sampled_from(["paper", "exact"]))
def test_aligned_masks_equal_their_boxes(own: list[Corners], evidence: list[Corners], compat: Compat) -> None:
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


def test_several_threads_score_as_one_does() -> None:
    texts = ["The heart is large.", "Recommend CT.", "No effusion.", "Nodule, suspicious for cancer.", "Clear lungs."]
    reports = [" ".join(texts[i:] + texts[: i % 3]) for i in range(5)]

    def score(metric: RadFact, number: int) -> list[Any]:
        result = metric.score(reports, reports[number:] + reports[:number])
        return [result.summaries, [*result.runs["radfact"].result.details]]

    alone, shared = [score(RadFact("offline"), number) for number in range(5)], RadFact("offline")
    with ThreadPoolExecutor(5) as pool:
        together = [list(pool.map(lambda number: score(shared, number), range(5))) for _ in range(3)]
    assert together == [alone] * 3
