"""BLEU with the package sacrebleu."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from radfact.metrics.protocol import Counts, Metric, MetricResult, PooledScore, Requirements, Score
from radfact.records import TextPair

ORDERS = 4


def corpus_bleu(counts: Counts, order: int, *, sentence: bool = False) -> float:
    """Compute BLEU from 0 to 100 from summed counts, with sacrebleu's default smoothing.

    Args:
        counts: (10,), words of the candidates, words of the references, matching n-grams of orders 1 to 4, all n-grams
            of the candidates of orders 1 to 4.
        order: longest n-gram.
        sentence: whether to skip orders without any n-gram (effective order), as for a single report.
    """
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


class Bleu(Metric):
    """BLEU-1 to BLEU-4 with tokenizer 13a in lower case: corpus BLEU, and sentence BLEU with effective order."""

    name = "bleu"
    display_name = "BLEU"
    measures = "common n-grams of one to four words"
    scores: Mapping[str, Score] = {
        f"bleu_{order}": Score("higher", f"corpus BLEU up to {order}-grams, 0 to 100") for order in range(1, ORDERS + 1)
    }
    main_scores = ("bleu_2",)
    requirements = Requirements(packages=("sacrebleu",))
    cost = "nothing"
    source = "MAIRA-2, appendix D.1"
    pooled: Mapping[str, Callable[[Counts], float]] = {
        f"bleu_{order}": partial(corpus_bleu, order=order) for order in range(1, ORDERS + 1)
    }

    def __init__(self) -> None:
        """Load the package.

        Raises:
            ModuleNotFoundError: sacrebleu is not installed.
        """
        from sacrebleu.metrics.bleu import BLEU

        self._scorer = BLEU(lowercase=True, tokenize="13a", max_ngram_order=ORDERS, effective_order=True)

    def score(self, pairs: Sequence[TextPair]) -> MetricResult:
        """Score pairs from 0 to 100."""
        rows = np.array([self._count(pair) for pair in pairs], dtype=np.float64).reshape(len(pairs), 2 + 2 * ORDERS)
        values = {
            name: [corpus_bleu(row, order, sentence=True) for row in rows]
            for order, name in enumerate(self.scores, start=1)
        }
        return MetricResult(values, pooled={name: PooledScore(rows, value) for name, value in self.pooled.items()})

    def _count(self, pair: TextPair) -> list[int]:
        bleu = self._scorer.sentence_score(pair.candidate, [pair.reference])
        return [bleu.sys_len, bleu.ref_len, *bleu.counts, *bleu.totals]
