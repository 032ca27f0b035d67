"""ROUGE-L with the package rouge-score, and as in RadEval and in COCO caption evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from radfact.languages import Language
from radfact.metrics.classical import ptb
from radfact.metrics.protocol import Metric, MetricResult, Requirements, Score
from radfact.records import TextPair


class RougeL(Metric):
    """F1 of the longest common subsequence of words, in lower case and without stemming."""

    name = "rouge_l"
    display_name = "ROUGE-L"
    measures = "longest common subsequence of words"
    scores: Mapping[str, Score] = {"rouge_l": Score("higher", "F1 of the longest common subsequence")}
    requirements = Requirements(packages=("rouge_score",))
    cost = "nothing"
    language = Language.ENGLISH
    source = "MAIRA-2, appendix D.1"

    def __init__(self) -> None:
        """Load the package.

        Raises:
            ModuleNotFoundError: rouge-score is not installed.
        """
        from rouge_score.rouge_scorer import RougeScorer

        self._scorer = RougeScorer(["rougeL"], **self._settings())

    def score(self, pairs: Sequence[TextPair]) -> MetricResult:
        """Score pairs from 0 to 1."""
        (name,) = self.scores
        results = (self._scorer.score(pair.reference, pair.candidate)["rougeL"] for pair in pairs)
        return MetricResult({name: [self._f_score(result) for result in results]})

    def _settings(self) -> dict[str, Any]:
        return {"use_stemmer": False}

    def _f_score(self, result: Any) -> float:
        return float(result.fmeasure)


class RadEvalRougeL(RougeL):
    """ROUGE-L as in RadEval: of Porter stems."""

    variant = "radeval"
    difference = "Porter stems of words with more than three letters"
    source = "RadEval 2.2"
    scores: Mapping[str, Score] = {"rouge_l.radeval": Score("higher", "F1 of the longest common subsequence of stems")}

    def _settings(self) -> dict[str, Any]:
        return {"use_stemmer": True}


class CocoRougeL(RougeL):
    """ROUGE-L as in COCO caption evaluation: Penn Treebank tokens without punctuation, recall weighted more."""

    variant = "coco"
    difference = "Penn Treebank tokens in lower case without punctuation; F score with beta 1.2"
    source = "COCO caption evaluation (pycocoevalcap 1.2)"
    requirements = Requirements(packages=("rouge_score", "nltk"))
    scores: Mapping[str, Score] = {"rouge_l.coco": Score("higher", "F1.2 of the longest common subsequence")}

    def _settings(self) -> dict[str, Any]:
        return {"tokenizer": ptb}

    def _f_score(self, result: Any) -> float:
        weight = 1.2**2
        total = result.recall + weight * result.precision
        return float((1 + weight) * result.precision * result.recall / total) if total else 0.0


RougeL.variants = {metric.variant: metric for metric in (RadEvalRougeL, CocoRougeL)}
