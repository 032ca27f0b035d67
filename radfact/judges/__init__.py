"""Judges decide whether a sentence follows from a report; splitters turn a narrative into sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radfact.errors import Failure
from radfact.lazy import lazy_names

if TYPE_CHECKING:
    from radfact.judges.callables import CallableJudge, CallableSplitter, MockJudge
    from radfact.judges.loading import default_splitter, load_judge, load_splitter
    from radfact.judges.offline_splitter import split_narrative
    from radfact.judges.protocol import (
        EntailmentQuery,
        ExplainingSplitter,
        Judge,
        SplitSentence,
        Splitter,
        Status,
        Verdict,
        query_judge,
    )

__all__ = [
    "CallableJudge",
    "CallableSplitter",
    "EntailmentQuery",
    "ExplainingSplitter",
    "Failure",
    "Judge",
    "MockJudge",
    "SplitSentence",
    "Splitter",
    "Status",
    "Verdict",
    "default_splitter",
    "load_judge",
    "load_splitter",
    "query_judge",
    "split_narrative",
]

__getattr__ = lazy_names(__name__)
