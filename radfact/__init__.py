"""RadFact: how correct and how complete a radiology report is, sentence by sentence, and whether its boxes are right.

The public names below are imported when they are first used, so that `import radfact` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from radfact.lazy import lazy_names

if TYPE_CHECKING:
    from radfact.api import RadFact, compare, evaluate
    from radfact.errors import ExitCode, InputError, RunError
    from radfact.io.pairs import read_candidates_and_references, read_pairs
    from radfact.judges import (
        EntailmentQuery,
        Failure,
        Judge,
        Splitter,
        Verdict,
        load_judge,
        load_splitter,
        split_narrative,
    )
    from radfact.judges.options import JudgeOptions
    from radfact.metrics.protocol import Metric, MetricResult, PooledScore, Requirements, Score
    from radfact.pages.page import write_page
    from radfact.records import Box, Mask, Pair, Pairs, PatientContext, Report, Sentence, TextPair
    from radfact.results.compare import Comparison
    from radfact.results.evaluation import EvaluationResult
    from radfact.results.writer import write_results
    from radfact.statistics.bootstrap import Summary

__all__ = [
    "Box",
    "Comparison",
    "EntailmentQuery",
    "EvaluationResult",
    "ExitCode",
    "Failure",
    "InputError",
    "Judge",
    "JudgeOptions",
    "Mask",
    "Metric",
    "MetricResult",
    "Pair",
    "Pairs",
    "PatientContext",
    "PooledScore",
    "RadFact",
    "Report",
    "Requirements",
    "RunError",
    "Score",
    "Sentence",
    "Splitter",
    "Summary",
    "TextPair",
    "Verdict",
    "compare",
    "evaluate",
    "load_judge",
    "load_splitter",
    "read_candidates_and_references",
    "read_pairs",
    "split_narrative",
    "write_page",
    "write_results",
]

__getattr__ = lazy_names(__name__)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
