"""Judges decide whether a sentence follows from a report; splitters turn a narrative into sentences."""

from __future__ import annotations

from radfact.errors import Failure
from radfact.judges.callable_judge import CallableJudge
from radfact.judges.loading import load_judge, load_splitter, splitter_of
from radfact.judges.offline.splitter import split_narrative
from radfact.judges.protocol import EntailmentQuery, Judge, Status, Verdict
from radfact.judges.splitter import ExplainingSplitter, SplitSentence, Splitter

__all__ = [
    "CallableJudge",
    "EntailmentQuery",
    "ExplainingSplitter",
    "Failure",
    "Judge",
    "SplitSentence",
    "Splitter",
    "Status",
    "Verdict",
    "load_judge",
    "load_splitter",
    "split_narrative",
    "splitter_of",
]
