"""The scores in `paper` mode against a plain computation of their definition, and corner by corner."""

import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools import mask as coco

from radfact.api import RadFact
from radfact.io.pairs import read_pairs
from radfact.judges import Verdict
from radfact.metrics.radfact.scores import SCORES
from radfact.records import Box, Mask, Pair, Sentence
from radfact.results.evaluation import EvaluationResult

PUBLISHED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "radfact"
needs_published = pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published examples are not on this machine")

JudgeFunction = Callable[[Sequence[str], str], Verdict]
KINDS = ("logical", "grounding", "spatial")
NO = Verdict("not_entailment")


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
    canvas = np.zeros((224, 224), dtype=bool)
    for sentence in sentences:
        for box in sentence.boxes or ():
            x0, y0, x1, y1 = (np.array(box.as_tuple()) * 224).astype(int)
            canvas[y0:y1, x0:x1] = True
    return canvas


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
        located += hypothesis.boxes is not None
        entailed_located += is_entailed and hypothesis.boxes is not None
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


def assert_equal_to_the_definition(
    pairs: Sequence[Pair], judge: JudgeFunction, result: EvaluationResult, replicates: int
) -> None:
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
shares = st.integers(0, 8).map(lambda step: step / 8) | st.floats(0, 1)


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    (x0, x1), (y0, y1) = (sorted((draw(shares), draw(shares))) for _ in range(2))
    return Box(x_min=x0, y_min=y0, x_max=x1, y_max=y1)


sentences = st.builds(
    Sentence,
    text=st.sampled_from(["Nodule.", "nodule", "No-dule!", "Effusion", "Clear lungs.", "clear  lungs"]),
    boxes=st.none() | st.lists(boxes(), max_size=3).map(tuple),
)
reports = st.lists(sentences, max_size=4)


@settings(max_examples=60)
@given(reports=st.lists(st.tuples(reports, reports), min_size=1, max_size=5), seed=st.integers(0, 99))
def test_every_score_equals_the_definition(reports: list[tuple[list[Sentence], list[Sentence]]], seed: int) -> None:
    pairs = [Pair(str(index), *both) for index, both in enumerate(reports)]
    judge = dice(seed)
    assert_equal_to_the_definition(pairs, judge, RadFact(judge, bootstrap=12).score(pairs), 12)


@needs_published
def test_scores_of_the_published_examples_equal_the_definition() -> None:
    pairs, judge = read_pairs(PUBLISHED / "grounded_reporting_examples.json"), dice(0)
    assert_equal_to_the_definition(pairs, judge, RadFact(judge, bootstrap=100).score(pairs), 100)


CORNERS = yaml.safe_load(Path(__file__).with_name("corner_cases.yaml").read_text("utf-8"))["cases"]
MASKS = {
    "left half": np.pad(np.ones((224, 112), dtype=bool), ((0, 0), (0, 112))),
    "empty": np.zeros((4, 4), dtype=bool),
}


def table(evidence: Mapping[str, Sequence[int]]) -> JudgeFunction:
    """A judge with given verdicts."""
    return lambda _, hypothesis: Verdict("entailment", tuple(evidence[hypothesis])) if hypothesis in evidence else NO


def located(text: str, area: str | list[list[float]] | None) -> Sentence:
    """A sentence with boxes or with the mask of a name."""
    if isinstance(area, str):
        encoded = coco.encode(np.asfortranarray(MASKS[area], dtype=np.uint8))
        return Sentence(text=text, masks=(Mask(size=MASKS[area].shape, counts=encoded["counts"].decode()),))
    made = [Box(x_min=a, y_min=b, x_max=c, y_max=d) for a, b, c, d in area or ()]
    return Sentence(text=text, boxes=tuple(made) or None)


def scores_of(case: Mapping[str, Any], compat: Any) -> list[float | None]:
    """Precision and recall of each kind, None for no value."""
    candidate, reference = ([located(*row) for row in case[side].items()] for side in ("candidate", "reference"))
    (sample,) = RadFact(table(case["entailed"]), compat=compat, bootstrap=0).score([candidate], [reference]).samples
    values = [sample.scores[f"{kind}_{part}"] for kind in KINDS for part in ("precision", "recall")]
    return [None if math.isnan(value) else value for value in values]


@pytest.mark.parametrize("corner", CORNERS)
@pytest.mark.parametrize("compat", ["paper", "exact"])
def test_corner_cases(corner: str, compat: str) -> None:
    case = CORNERS[corner]
    assert scores_of(case, compat) == case.get(compat, case["paper"])


def test_f1_of_zero_precision_and_recall_is_zero() -> None:
    result = RadFact(table({}), bootstrap=10).score([[Sentence(text="a")]], [[Sentence(text="x")]])
    score = result.summaries["logical_f1"]
    assert [result.samples[0].scores["logical_f1"], score.point, score.median, score.high] == [0, 0, 0, 0]


def test_golden_scores_of_the_published_metric() -> None:
    # Origin: what the published implementation's own test of its metric expects of four sentences a side with these
    # boxes, the first three entailed by each other; the sentences here are ours.
    small, near, far = [0.1, 0.1, 0.2, 0.2], [0.3, 0.3, 0.4, 0.4], [0.5, 0.5, 0.6, 0.6]
    case = {
        "candidate": {"a": [small], "b": [near, far], "c": None, "d": None},
        "reference": {"p": [small], "q": [near], "r": [far], "s": None},
        "entailed": {"a": [0], "b": [1], "c": [2], "p": [0], "q": [1], "r": [2]},
    }
    assert scores_of(case, "paper") == pytest.approx([0.75, 0.75, 0.5, 2 / 3, 0.5, 2 / 3])
