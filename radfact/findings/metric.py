"""Findings: which findings of a report are right, wrong, missing and invented, weighted by clinical significance."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from radfact.errors import Failure
from radfact.findings import FindingExtractor, LLMFindingExtractor, OfflineFindingExtractor, Significance, Tier
from radfact.findings.comparison import FindingComparison, compare_findings
from radfact.findings.records import ErrorKind
from radfact.io.jsonl import CompressedRows
from radfact.languages import Language
from radfact.llm import ChatClient
from radfact.llm.plan import RequestPlan
from radfact.metrics.protocol import Metric, MetricResult, PooledScore, Requirements, Score
from radfact.metrics.radfact.scores import PARTS
from radfact.reader.ontology_file import default_ontology, load_ontology
from radfact.records import Pair, PatientContext, Report, narrative
from radfact.statistics.bootstrap import CountsFunction

VERSION = "2"
"""Version of the matching and the formula."""

_TIERS: tuple[Tier, ...] = ("urgent", "actionable", "minor")
_UNMATCHED: tuple[ErrorKind, ...] = ("omitted", "unsupported", "contradicted")
NO_REFERENCE = "the reference is empty"
T = TypeVar("T")


def ratio_from_counts(totals: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """Return the first of two sums divided by the second; NaN if that is 0."""
    return float(totals[0] / totals[1]) if totals[1] > 0 else math.nan


_WORST = {"precision": 0.0, "attribute_accuracy": 0.0}
_POOLED = dict.fromkeys(("urgent_recall", "attribute_accuracy"), ratio_from_counts)
_SCORES: Mapping[str, Score] = {
    "": Score("higher", "1 / (1 + weighted sum of errors)"),
    "precision": Score("higher", "fraction of the weight of the candidate's findings that the reference confirms"),
    "recall": Score("higher", "fraction of the weight of the reference's findings that the candidate states"),
    "f1": Score("higher", "fraction of the weight of both reports that the other one confirms"),
    "errors": Score("lower", "weighted sum of errors", "weighted errors"),
    **{f"{tier}_errors": Score("lower", f"number of {tier} errors", "errors") for tier in _TIERS},
    "omitted": Score(
        "lower", "number of findings of the reference that the candidate neither states nor denies", "findings"
    ),
    "unsupported": Score(
        "lower", "number of findings of the candidate that the reference neither states nor denies", "findings"
    ),
    "contradicted": Score("lower", "number of findings of one report that the other one denies", "findings"),
    "attribute_errors": Score("lower", "number of wrong attributes, and of unconfirmed statements of change", "errors"),
    "side_errors": Score("lower", "number of matched findings on another side", "errors"),
    "attribute_accuracy": Score("higher", "fraction of the attributes of matched findings that agree"),
    "urgent_recall": Score("higher", "fraction of urgent findings that the candidate states"),
    "error_free": Score("higher", "fraction of reports without an urgent or actionable error"),
}
"""Scores of a metric of findings without its name."""


def _named(prefix: str, values: Mapping[str, T]) -> dict[str, T]:
    """Return values by the names of scores."""
    return {f"{prefix}_{key}" if key else prefix: value for key, value in values.items()}


class FindingsBase(Metric):
    """Findings of two reports, matched with the least total cost, with a verdict on each and errors by significance.

    `findings` is 1 / (1 + E), where E sums the costs of all errors: the weight of each omitted, unsupported
    or contradicted finding, and a part of the weight for each attribute that differs. See `docs/findings.md`.
    """

    name = "findings"
    measures = "findings right, wrong, missing and invented, weighted by clinical significance"
    scores: Mapping[str, Score] = _named("findings", _SCORES)
    main_scores: Sequence[str] = ("findings", "findings_f1")
    reads = "sentences"
    requirements = Requirements(packages=("scipy",))
    source = "maira-radfact"
    pooled: Mapping[str, CountsFunction] = _named("findings", _POOLED)
    worst_values: Mapping[str, float] = _named("findings", _WORST)

    def __init__(
        self, extractor: FindingExtractor, *, ontology: Path | str | None = None, significance: Path | str | None = None
    ) -> None:
        self.extractor = extractor
        nodes = default_ontology() if ontology is None else load_ontology(ontology)
        self.significance = Significance(nodes, significance)

    def describe(self) -> dict[str, Any]:
        extractor, significance = self.extractor.describe(), self.significance.describe()
        return {"version": VERSION, "extractor": extractor, "significance": significance}

    def score(self, pairs: Sequence[Pair]) -> MetricResult:
        """Extract the findings of all reports and compare those of each pair (details: docs/findings.md)."""
        before = self.extractor.usage()
        reports = _distinct_reports(pairs)
        found = self.extractor.extract(list(reports.values()), [context for _, context in reports])
        extractions = dict(zip(reports, found, strict=True))
        usage = {name: count - before.get(name, 0) for name, count in self.extractor.usage().items()}
        tables = {name: np.full((len(pairs), 2), math.nan) for name in _POOLED}
        rows, details, failures = list[dict[str, float]](), CompressedRows(), dict[int, str]()
        for place, pair in enumerate(pairs):
            candidate, reference = (extractions[repr(item), pair.context] for item in (pair.candidate, pair.reference))
            rows.append({})
            detail: dict[str, Any] = {}
            if not narrative(pair.reference).strip():
                failures[place] = NO_REFERENCE
            elif isinstance(reference, Failure):
                failures[place] = f"findings of the reference: {reference.reason}"
            elif isinstance(candidate, Failure):
                failures[place] = f"findings of the candidate: {candidate.reason}"
            else:
                comparison = compare_findings(candidate, reference, self.significance, pair.context)
                for name, counts in _counts(comparison).items():
                    if counts[1] > 0:
                        tables[name][place] = counts
                rows[-1] = _scores(comparison, is_empty=not narrative(pair.candidate).strip())
                detail = comparison.as_record()
            details.append(detail)
        values = _named(self.name, {key: [row.get(key, math.nan) for row in rows] for key in _SCORES})
        pooled = _named(self.name, {name: PooledScore(table, ratio_from_counts) for name, table in tables.items()})
        return MetricResult(values, pooled=pooled, details=details, failures=failures, usage=usage)


class Findings(FindingsBase):
    """Findings by the offline reader, without a model. See `FindingsBase`."""

    cost = "none"
    for_chest_xrays = True
    language = Language.ENGLISH

    def __init__(self, *, ontology: Path | str | None = None, significance: Path | str | None = None) -> None:
        super().__init__(OfflineFindingExtractor(ontology), ontology=ontology, significance=significance)


class FindingsLLM(FindingsBase):
    """Findings by a language model, which also assigns the tiers; each report of a patient is one request."""

    name = "findings_llm"
    measures = "as findings, read by a language model"
    scores: Mapping[str, Score] = _named("findings_llm", _SCORES)
    main_scores = ("findings_llm", "findings_llm_f1")
    requirements = Requirements(packages=("scipy",), judge="model")
    cost = "a response per report"
    is_variant = True
    pooled: Mapping[str, CountsFunction] = _named("findings_llm", _POOLED)
    worst_values: Mapping[str, float] = _named("findings_llm", _WORST)
    parameters: Mapping[str, Any] = {"temperature": 0, "max_tokens": 4096}

    def __init__(
        self, client: ChatClient, *, ontology: Path | str | None = None, significance: Path | str | None = None
    ) -> None:
        self._llm = LLMFindingExtractor(client, ontology=ontology)
        super().__init__(self._llm, ontology=ontology, significance=significance)
        self.client = client

    def plan(self, pairs: Sequence[Pair]) -> dict[str, RequestPlan]:
        reports = _distinct_reports(pairs)
        return {self.name: self._llm.plan(list(reports.values()), [context for _, context in reports])}


def _distinct_reports(pairs: Sequence[Pair]) -> dict[tuple[str, PatientContext], Report]:
    """Return the reports by text and patient."""
    return {(repr(report), pair.context): report for pair in pairs for report in (pair.candidate, pair.reference)}


def _counts(comparison: FindingComparison) -> dict[str, tuple[float, float]]:
    """Return numerators and denominators of the pooled scores."""
    matched = {index for match in comparison.matches for index in match.reference}
    urgent = [unit.indices[0] in matched for unit in comparison.units["reference"] if unit.tier == "urgent"]
    agree = [item.cost == 0 for match in comparison.matches for item in match.attributes if item.attribute != "finding"]
    counted = {"urgent_recall": urgent, "attribute_accuracy": agree}
    return {name: (float(sum(found)), float(len(found))) for name, found in counted.items()}


def _scores(comparison: FindingComparison, *, is_empty: bool) -> dict[str, float]:
    """Return the scores of a pair, without the name of the metric; NaN where there is nothing to count."""
    confirmed, weights = zip(*(comparison.credit(side) for side in PARTS), strict=True)
    parts = zip(confirmed, weights, strict=True)
    precision, recall = (part / weight if weight > 0 else math.nan for part, weight in parts)
    tiers = Counter(error.tier for error in comparison.errors)
    kinds = Counter(error.kind for error in comparison.errors)
    return {
        "": 0.0 if is_empty else 1.0 / (1.0 + comparison.error_sum),
        "precision": precision,
        "recall": recall,
        "f1": 0.0 if is_empty else sum(confirmed) / sum(weights) if sum(weights) > 0 else 1.0,
        "errors": comparison.error_sum,
        **{f"{tier}_errors": float(tiers[tier]) for tier in _TIERS},
        **{kind: float(kinds[kind]) for kind in _UNMATCHED},
        "attribute_errors": float(kinds["attribute_error"]),
        "side_errors": float(sum(error.attribute == "side" for error in comparison.errors)),
        **{name: ratio_from_counts(np.array(counts)) for name, counts in _counts(comparison).items()},
        "error_free": 0.0 if is_empty or tiers["urgent"] or tiers["actionable"] else 1.0,
    }
