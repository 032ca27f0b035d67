"""RadFact: how correct and how complete a radiology report is, sentence by sentence, and whether its boxes are right.

The public names below are imported when they are first used, so that `import radfact` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from radfact.errors import ExitCode, InputError, RunFailed
    from radfact.html.page import write_page
    from radfact.io.pairs import Pair, Pairs, read_candidates_and_references, read_pairs
    from radfact.judges import Failure, Judge, Question, Splitter, Verdict, load_judge, load_splitter, split_narrative
    from radfact.metrics.protocol import Metric, Pooled, Scored
    from radfact.pipeline import evaluate
    from radfact.records import Box, Mask, Report, Sentence
    from radfact.results.evaluation import Evaluation
    from radfact.results.radfact_writer import write_results
    from radfact.scoring.radfact import RadFact, Result
    from radfact.statistics.bootstrap import Summary

__all__ = [
    "Box",
    "Evaluation",
    "ExitCode",
    "Failure",
    "InputError",
    "Judge",
    "Mask",
    "Metric",
    "Pair",
    "Pairs",
    "Pooled",
    "Question",
    "RadFact",
    "Report",
    "Result",
    "RunFailed",
    "Scored",
    "Sentence",
    "Splitter",
    "Summary",
    "Verdict",
    "evaluate",
    "load_judge",
    "load_splitter",
    "read_candidates_and_references",
    "read_pairs",
    "split_narrative",
    "write_page",
    "write_results",
]

_HOMES = {
    "entailment": ("Failure", "Judge", "Question", "Verdict", "load_judge"),
    "errors": ("ExitCode", "InputError", "RunFailed"),
    "files": ("Pair", "Pairs", "read_candidates_and_references", "read_pairs"),
    "metrics.evaluate": ("evaluate",),
    "metrics.evaluation": ("Evaluation",),
    "metrics.metric": ("Metric", "Pooled", "Scored"),
    "page": ("write_page",),
    "report": ("Box", "Mask", "Report", "Sentence"),
    "results": ("write_results",),
    "score": ("RadFact", "Result"),
    "sentences": ("Splitter", "load_splitter", "split_narrative"),
    "stats": ("Summary",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'radfact' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"radfact.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
