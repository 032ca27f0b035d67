"""ROUGE-L with the package rouge-score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
    source = "MAIRA-2, appendix D.1"

    def __init__(self) -> None:
        """Load the package.

        Raises:
            ModuleNotFoundError: rouge-score is not installed.
        """
        from rouge_score.rouge_scorer import RougeScorer

        self._scorer = RougeScorer(["rougeL"], use_stemmer=False)

    def score(self, pairs: Sequence[TextPair]) -> MetricResult:
        """Score pairs from 0 to 1."""
        texts = ((pair.reference, pair.candidate) for pair in pairs)
        return MetricResult({"rouge_l": [self._scorer.score(*pair_texts)["rougeL"].fmeasure for pair_texts in texts]})
