"""ROUGE-L with the package rouge-score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from radfact.metrics.protocol import Scored
from radfact.records import Pair, narrative
from radfact.statistics.bootstrap import Direction


class RougeL:
    """F1 of the longest common subsequence of words, in lower case and without stemming.

    Source: MAIRA-2, appendix D.1.
    """

    name = "rouge_l"
    figures: Mapping[str, Direction] = {"rouge_l": "higher"}

    def __init__(self) -> None:
        """Load the package.

        Raises:
            ModuleNotFoundError: if rouge-score is not installed.
        """
        from rouge_score.rouge_scorer import RougeScorer

        self._scorer = RougeScorer(["rougeL"], use_stemmer=False)

    def score(self, pairs: Sequence[Pair]) -> Scored:
        """Score pairs from 0 to 1."""
        texts = ((narrative(pair.reference), narrative(pair.candidate)) for pair in pairs)
        return Scored({"rouge_l": [self._scorer.score(*pair_texts)["rougeL"].fmeasure for pair_texts in texts]})
