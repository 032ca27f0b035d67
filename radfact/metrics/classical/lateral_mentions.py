"""Mentions of a lateral view, which the model may not have seen."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from radfact.languages import Language
from radfact.metrics.protocol import Metric, MetricResult, Score
from radfact.metrics.radfact.scores import PARTS
from radfact.records import Pair, Report

_LATERAL = re.compile(
    r"(pa|ap|frontal) and lateral|\blateral and (pa|ap|frontal)|\blateral (projection|view)|(two|2) views",
    re.IGNORECASE,
)


def mentions_lateral(report: Report) -> bool:
    """Return whether a report mentions a lateral view; a mention never spans two sentences of a list."""
    texts = [report] if isinstance(report, str) else [sentence.text for sentence in report]
    return any(_LATERAL.search(text) for text in texts)


class LateralMentions(Metric):
    """Shares of candidates and of references that mention a lateral view, to compare in studies without one."""

    name = "lateral_mentions"
    measures = "fraction of reports that mention a lateral view"
    scores: Mapping[str, Score] = {
        "lateral_mentions": Score("neutral", "fraction of the candidates"),
        "lateral_mentions_reference": Score("neutral", "fraction of the references"),
    }
    # No mention spans two sentences.
    reads = "sentences"
    cost = "nothing"
    language = Language.ENGLISH
    source = "MAIRA-2, appendix D.6.1 and listing 6"

    def score(self, pairs: Sequence[Pair]) -> MetricResult:
        columns = ([float(mentions_lateral(getattr(pair, side))) for pair in pairs] for side in PARTS)
        return MetricResult(dict(zip(self.scores, columns, strict=True)))
