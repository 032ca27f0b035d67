"""BLEU with the package sacrebleu, and as in RadEval, in COCO caption evaluation and in ReXrank."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from radfact.languages import Language
from radfact.metrics.classical import ptb
from radfact.metrics.protocol import Counts, Metric, MetricResult, PooledScore, Requirements, Score
from radfact.records import TextPair
from radfact.statistics.bootstrap import CountsFunction

ORDERS = 4


def corpus_bleu(counts: Counts, order: int, *, sentence: bool = False) -> float:
    """Compute BLEU from 0 to 100 from summed counts, with sacrebleu's default smoothing."""
    from sacrebleu.metrics.bleu import BLEU

    candidate_length, reference_length, *ngrams = (int(count) for count in counts)
    bleu = BLEU.compute_bleu(
        ngrams[:order],
        ngrams[ORDERS : ORDERS + order],
        candidate_length,
        reference_length,
        smooth_method="exp",
        effective_order=sentence,
        max_ngram_order=order,
    )
    # Rounding errors give equal texts 100.00000000000004.
    return min(float(bleu.score), 100.0)


def caption_bleu(counts: Counts, order: int) -> float:
    """Compute BLEU from 0 to 1 as in COCO caption evaluation: constants instead of smoothing avoid division by zero."""
    small, tiny = 1e-9, 1e-15
    precisions = (counts[2 : 2 + order] + tiny) / (counts[2 + ORDERS : 2 + ORDERS + order] + small)
    ratio = (counts[0] + tiny) / (counts[1] + small)
    penalty = math.exp(1 - 1 / ratio) if ratio < 1 else 1.0
    return float(penalty * precisions.prod() ** (1 / order))


def bleu_2(candidate: str, reference: str) -> float:
    """Compute BLEU-2 of a report, 0 to 1, as in RadCliQ: lower case, separate periods, smoothing method 1."""
    from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu

    candidate_words, reference_words = (
        [word for word in text.lower().replace(".", " .").split(" ") if word] for text in (candidate, reference)
    )
    if not candidate_words:
        return 0.0
    smoothing = SmoothingFunction().method1
    return float(sentence_bleu([reference_words], candidate_words, weights=(0.5, 0.5), smoothing_function=smoothing))


def _scores(suffix: str, scale: str, unit: str = "") -> dict[str, Score]:
    orders = range(1, ORDERS + 1)
    return {f"bleu_{n}{suffix}": Score("higher", f"corpus BLEU up to {n}-grams{scale}", unit) for n in orders}


def _pooled(suffix: str, value: Callable[..., float]) -> dict[str, CountsFunction]:
    return {f"bleu_{order}{suffix}": partial(value, order=order) for order in range(1, ORDERS + 1)}


class Bleu(Metric):
    """BLEU-1 to BLEU-4 with tokenizer 13a in lower case: corpus BLEU, and sentence BLEU with effective order."""

    name = "bleu"
    measures = "common n-grams of words"
    scores: Mapping[str, Score] = _scores("", "", "0 to 100")
    main_scores = ("bleu_2",)
    requirements = Requirements(packages=("sacrebleu",))
    cost = "nothing"
    language = Language.SPACED
    source = "MAIRA-2, appendix D.1"
    pooled: Mapping[str, CountsFunction] = _pooled("", corpus_bleu)

    def __init__(self) -> None:
        from sacrebleu.metrics.bleu import BLEU

        settings = {"lowercase": True, "tokenize": "13a"} if not self.variant else {"tokenize": "none", "force": True}
        self._scorer = BLEU(max_ngram_order=ORDERS, effective_order=True, **settings)

    def score(self, pairs: Sequence[TextPair]) -> MetricResult:
        rows = np.array([self._count(pair) for pair in pairs], dtype=np.float64).reshape(len(pairs), 2 + 2 * ORDERS)
        values = {name: [self._of_sample(row, order) for row in rows] for order, name in enumerate(self.scores, 1)}
        return MetricResult(values, pooled={name: PooledScore(rows, value) for name, value in self.pooled.items()})

    def _count(self, pair: TextPair) -> list[int]:
        bleu = self._scorer.sentence_score(self._prepare(pair.candidate), [self._prepare(pair.reference)])
        return [bleu.sys_len, bleu.ref_len, *bleu.counts, *bleu.totals]

    def _prepare(self, text: str) -> str:
        return text

    def _of_sample(self, counts: Counts, order: int) -> float:
        return corpus_bleu(counts, order, sentence=True)


class RadEvalBleu(Bleu):
    """BLEU-1 to BLEU-4 as in RadEval: words between spaces, with case."""

    variant = "radeval"
    difference = "split on spaces, case kept, no smoothing; 0 to 1"
    source = "RadEval 2.2"
    scores: Mapping[str, Score] = _scores(".radeval", ", 0 to 1")
    main_scores = ("bleu_4.radeval",)
    pooled: Mapping[str, CountsFunction] = _pooled(".radeval", caption_bleu)

    def _of_sample(self, counts: Counts, order: int) -> float:
        return caption_bleu(counts, order)


class CocoBleu(RadEvalBleu):
    """BLEU-1 to BLEU-4 as in COCO caption evaluation: Penn Treebank tokens without punctuation."""

    variant = "coco"
    difference = "Penn Treebank tokens in lower case without punctuation, no smoothing; 0 to 1"
    source = "COCO caption evaluation (pycocoevalcap 1.2)"
    requirements = Requirements(packages=("sacrebleu", "nltk"))
    scores: Mapping[str, Score] = _scores(".coco", ", 0 to 1")
    main_scores = ("bleu_4.coco",)
    pooled: Mapping[str, CountsFunction] = _pooled(".coco", caption_bleu)

    def _prepare(self, text: str) -> str:
        return " ".join(ptb.tokenize(text))


class RexrankBleu(Bleu):
    """BLEU-2 as in RadCliQ and ReXrank: the mean of the BLEU-2 of each report, with smoothing."""

    variant = "rexrank"
    difference = "BLEU-2 only: mean of the sample-level scores, split on spaces, smoothing method 1; 0 to 1"
    source = "ReXrank; code of RadCliQ"
    requirements = Requirements(packages=("nltk",))
    scores: Mapping[str, Score] = {"bleu_2.rexrank": Score("higher", "mean of the BLEU-2 of each report, 0 to 1")}
    main_scores = ("bleu_2.rexrank",)
    pooled: Mapping[str, CountsFunction] = {}

    def __init__(self) -> None:
        import nltk.translate.bleu_score  # noqa: F401

    def score(self, pairs: Sequence[TextPair]) -> MetricResult:
        return MetricResult({"bleu_2.rexrank": [bleu_2(pair.candidate, pair.reference) for pair in pairs]})
