"""ROUGE-L by the library rouge-score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from radfact.io.pairs import Pair
from radfact.metrics.protocol import Scored
from radfact.records import narrative
from radfact.statistics.bootstrap import Direction


class RougeL:
    """F1 of the longest common subsequence of words, lower case, without stemming (paper 004, D.1)."""

    name = "rouge_l"
    figures: Mapping[str, Direction] = {"rouge_l": "higher"}

    def __init__(self) -> None:
        """Load the library.

        Raises:
            ModuleNotFoundError: it is not installed.
        """
        from rouge_score.rouge_scorer import RougeScorer

        self._scorer = RougeScorer(["rougeL"], use_stemmer=False)

    def score(self, pairs: Sequence[Pair]) -> Scored:
        """One value a pair, from 0 to 1; the figure of the set is their mean."""
        texts = ((narrative(pair.reference), narrative(pair.candidate)) for pair in pairs)
        return Scored({"rouge_l": [self._scorer.score(*both)["rougeL"].fmeasure for both in texts]})
