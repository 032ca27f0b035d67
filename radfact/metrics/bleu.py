"""BLEU by the library sacrebleu."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from radfact.io.pairs import Pair
from radfact.metrics.protocol import Counts, Pooled, Scored
from radfact.records import narrative
from radfact.statistics.bootstrap import Direction

ORDERS = 4


def corpus_bleu(counts: Counts, order: int, *, sentence: bool = False) -> float:
    """BLEU of summed counts, from 0 to 100, smoothed as sacrebleu does by default.

    Args:
        counts: words of the candidates, words of the references, matching n-grams of orders 1 to 4, all n-grams of the
            candidates of orders 1 to 4.
        order: longest n-gram.
        sentence: of a single report, whose orders without any n-gram are left out (effective order).
    """
    from sacrebleu.metrics.bleu import BLEU

    whole = [int(count) for count in counts]
    matching, total = whole[2 : 2 + order], whole[2 + ORDERS : 2 + ORDERS + order]
    found = BLEU.compute_bleu(
        matching, total, whole[0], whole[1], smooth_method="exp", effective_order=sentence, max_ngram_order=order
    )
    # By logarithms the library has 100.00000000000004 for equal texts.
    return min(float(found.score), 100.0)


class Bleu:
    """BLEU-1 to BLEU-4: tokenizer 13a, lower case; of the set by its summed counts, of a sample with effective order.

    Source: paper 004, D.1.
    """

    name = "bleu"
    figures: Mapping[str, Direction] = {f"bleu_{order}": "higher" for order in range(1, ORDERS + 1)}
    headline = ("bleu_2",)
    pooled: Mapping[str, Callable[[Counts], float]] = {
        f"bleu_{order}": partial(corpus_bleu, order=order) for order in range(1, ORDERS + 1)
    }

    def __init__(self) -> None:
        """Load the library.

        Raises:
            ModuleNotFoundError: it is not installed.
        """
        from sacrebleu.metrics.bleu import BLEU

        self._scorer = BLEU(lowercase=True, tokenize="13a", max_ngram_order=ORDERS, effective_order=True)

    def score(self, pairs: Sequence[Pair]) -> Scored:
        """Four values a pair, from 0 to 100; the figures of the set are corpus BLEU."""
        rows = np.array([self._count(pair) for pair in pairs], dtype=np.float64).reshape(len(pairs), 2 + 2 * ORDERS)
        values = {
            name: [corpus_bleu(row, order, sentence=True) for row in rows]
            for order, name in enumerate(self.figures, start=1)
        }
        return Scored(values, pooled={name: Pooled(rows, value) for name, value in self.pooled.items()})

    def _count(self, pair: Pair) -> list[int]:
        found = self._scorer.sentence_score(narrative(pair.candidate), [narrative(pair.reference)])
        return [found.sys_len, found.ref_len, *found.counts, *found.totals]
