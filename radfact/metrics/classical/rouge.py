"""ROUGE-L as the package rouge-score computes it, and as in RadEval and in COCO caption evaluation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from radfact.languages import Language
from radfact.metrics.classical import ptb
from radfact.metrics.protocol import Metric, MetricResult, Requirements, Score
from radfact.records import TextPair


class RougeL(Metric):
    """F1 of the longest common subsequence of words, in lower case and without stemming."""

    name = "rouge_l"
    measures = "longest common subsequence of words"
    scores: Mapping[str, Score] = {"rouge_l": Score("higher", "F1 of the longest common subsequence")}
    cost = "nothing"
    language = Language.ENGLISH
    source = "MAIRA-2, appendix D.1"

    def score(self, pairs: Sequence[TextPair]) -> MetricResult:
        (name,) = self.scores
        words = ((self._tokenize(pair.candidate), self._tokenize(pair.reference)) for pair in pairs)
        return MetricResult({name: [self._score(*pair) for pair in words]})

    def _score(self, candidate: Sequence[str], reference: Sequence[str]) -> float:
        common = common_subsequence(candidate, reference)
        return self._f_score(common / len(candidate), common / len(reference)) if common else 0.0

    def _tokenize(self, text: str) -> list[str]:
        return re.findall(r"[a-z0-9]+", text.lower())

    def _f_score(self, precision: float, recall: float) -> float:
        return 2 * precision * recall / (precision + recall)


def common_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the length of the longest common subsequence."""
    lengths = [0] * (len(second) + 1)  # of the words of `first` so far and of each beginning of `second`
    for word in first:
        diagonal = 0
        for index, other in enumerate(second, start=1):
            above = lengths[index]
            lengths[index] = diagonal + 1 if word == other else max(above, lengths[index - 1])
            diagonal = above
    return lengths[-1]


class RadEvalRougeL(RougeL):
    """ROUGE-L as in RadEval: of Porter stems."""

    variant = "radeval"
    difference = "Porter stems of words with more than three letters"
    source = "RadEval 2.2"
    requirements = Requirements(packages=("nltk",))
    scores: Mapping[str, Score] = {"rouge_l.radeval": Score("higher", "F1 of the longest common subsequence of stems")}

    def _tokenize(self, text: str) -> list[str]:
        from nltk.stem.porter import PorterStemmer

        stem = PorterStemmer().stem
        return [stem(word) if len(word) > 3 else word for word in super()._tokenize(text)]


class CocoRougeL(RougeL):
    """ROUGE-L as in COCO caption evaluation: Penn Treebank tokens without punctuation, recall weighted more."""

    variant = "coco"
    difference = "Penn Treebank tokens in lower case without punctuation; F score with beta 1.2"
    source = "COCO caption evaluation (pycocoevalcap 1.2)"
    requirements = Requirements(packages=("nltk",))
    scores: Mapping[str, Score] = {"rouge_l.coco": Score("higher", "F1.2 of the longest common subsequence")}

    def _tokenize(self, text: str) -> list[str]:
        return ptb.tokenize(text)

    def _f_score(self, precision: float, recall: float) -> float:
        weight = 1.2**2
        return (1 + weight) * precision * recall / (recall + weight * precision)
