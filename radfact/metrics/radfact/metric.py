"""RadFact: which sentences of each report follow from the other one, and where they lie."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Self

import numpy as np

from radfact.errors import ErrorCode, Failure, RunError
from radfact.io.jsonl import CompressedRows
from radfact.judges import Judge, Splitter, default_splitter, load_splitter
from radfact.judges.callables import JudgeFunction, as_judge, as_splitter
from radfact.judges.offline import OfflineJudge, count_unread
from radfact.judges.protocol import EntailmentQuery, ExplainingSplitter, flatten_split, locate_removed, query_judge
from radfact.llm.plan import RequestPlan
from radfact.metrics.protocol import Metric, MetricResult, PooledScore, Requirements, Score, add_up_counts
from radfact.metrics.radfact.options import ScoringOptions
from radfact.metrics.radfact.scores import F1_PARTS, MEASURES, PARTS, SCORES, PairScores, Side, SplitPair
from radfact.metrics.resources import MetricResources
from radfact.reader.segmentation import lacks_sentence_marks
from radfact.records import Pair, Report, Sentence, narratives
from radfact.statistics.bootstrap import CountsFunction, Summary, summarize
from radfact.statistics.clusters import Clusters
from radfact.statistics.significance import f1_counts, f1_from_counts

_Removed = dict[str, list[dict[str, Any]]]
SplitReports = Mapping[str, Sequence[str] | Failure]
"""Sentences of each distinct narrative."""


class RadFactMetric(Metric):
    """RadFact: logical, grounding and spatial precision, recall and F1 of sentences, by the verdicts of a judge."""

    name = "radfact"
    measures = "fraction of sentences entailed by the other report, and correctly grounded"
    scores: Mapping[str, Score] = {name: Score("higher", measures) for name, measures in MEASURES.items()}
    main_scores = ("logical_f1",)
    reads = "sentences"
    requirements = Requirements(judge="any")
    for_chest_xrays = True
    cost = "one query per sentence, and two splits of a narrative"
    source = "MAIRA-2, appendix C"
    pooled: Mapping[str, CountsFunction] = dict.fromkeys(F1_PARTS, f1_from_counts)
    box_scores = frozenset(name for name in SCORES if not name.startswith("logical"))
    worst_values: Mapping[str, float] = {
        name: 0.0 for name in MEASURES if name.startswith(("logical_precision", "logical_f1"))
    }

    def __init__(
        self,
        judge: Judge | JudgeFunction,
        splitter: Splitter | Callable[[str], Sequence[str]] | None = None,
        **options: Any,
    ) -> None:
        self.judge = as_judge(judge)
        self.splitter = None if splitter is None else as_splitter(splitter)
        self.options = ScoringOptions(**options)
        self._lock = threading.Lock()

    @classmethod
    def create(cls, resources: MetricResources, **options: Any) -> Self:
        variant = {"compat": cls.variant} if cls.variant else {}
        return cls(*resources.entailment(), **{**resources.radfact, **options, **variant})

    def describe(self) -> dict[str, Any]:
        splitter = None if self.splitter is None else self.splitter.describe()
        return {"judge": self.judge.describe(), "splitter": splitter, "options": self.options.model_dump()}

    def plan(self, pairs: Sequence[Pair]) -> dict[str, RequestPlan]:
        """Count the requests to splitter and judge; the offline rules split narratives without a cached response."""
        from radfact.judges.llm_judge import LLMJudge
        from radfact.judges.llm_splitter import LLMSplitter

        plans: dict[str, RequestPlan] = {}
        unsplit, offline = narratives(pairs), load_splitter("offline")
        splits = dict(zip(unsplit, offline.split(unsplit), strict=True))
        splitter = (self.splitter or default_splitter(self.judge)) if unsplit else offline
        is_exact = splitter.name == offline.name
        if isinstance(splitter, LLMSplitter):
            plans["splitting"], cached = splitter.plan(unsplit)
            is_exact = None not in cached
            splits |= {report: split for report, split in zip(unsplit, cached, strict=True) if split is not None}
        elif not is_exact:
            plans["splitting"] = RequestPlan(splitter.name, len(unsplit))
        queries = _collect_queries([_split_pair(pair, splits) for pair in pairs])
        if isinstance(self.judge, LLMJudge):
            plans["judging"] = replace(self.judge.plan(queries), is_exact=is_exact)
        elif self.judge.name != OfflineJudge.name:
            plans["judging"] = RequestPlan(self.judge.name, len(queries), is_exact=is_exact)
        return plans

    def score(self, pairs: Sequence[Pair]) -> MetricResult:
        """Split narratives, query the judge and score the pairs, with their counts and sentences as details."""
        roles: dict[str, Judge | Splitter] = {"judge": self.judge}
        if unsplit := narratives(pairs):
            with self._lock:
                self.splitter = self.splitter or default_splitter(self.judge)
            roles["splitter"] = self.splitter
        usage_before = {role: model.usage() for role, model in roles.items()}

        removed: _Removed = {}
        reports = self._split(unsplit, self.splitter, removed) if unsplit and self.splitter is not None else {}
        split_pairs = [_split_pair(pair, reports) for pair in pairs]
        queries = _collect_queries(split_pairs)
        responses = query_judge(self.judge, queries) if queries else []
        self._stop_at_failures(responses, "judgments")
        verdicts = dict(zip(queries, responses, strict=True))
        rows, details, failures, unread = list[Mapping[str, float]](), CompressedRows(), dict[int, str](), 0
        for place, (pair, split_pair) in enumerate(zip(pairs, split_pairs, strict=True)):
            scored = split_pair.score(verdicts, self.options)
            rows.append(scored.scores)
            if scored.failure is not None:
                failures[place] = scored.failure
            unread += count_unread(row.why for row in scored.sentences)
            details.append(_details(pair, scored, removed))

        counts = {
            "judgments": len(verdicts),
            "failed_judgments": sum(isinstance(verdict, Failure) for verdict in verdicts.values()),
            "narratives": len(reports),
            "failed_narratives": sum(isinstance(sentences, Failure) for sentences in reports.values()),
        }
        unsupported = [item for item in responses if not isinstance(item, Failure) and item.status != "entailment"]
        if count := sum(verdict.relation is None for verdict in unsupported):
            counts["judgments_without_relation"] = count
        if self.judge.name == OfflineJudge.name:
            counts["unread_sentences"] = unread
            counts["narratives_without_marks"] = sum(map(lacks_sentence_marks, reports))
        usages = {
            role: {name: count - usage_before[role].get(name, 0) for name, count in model.usage().items()}
            for role, model in roles.items()
        }
        values = {name: [row[name] for row in rows] for name in self.scores}
        f1_tables = {name: np.array([values[p], values[r]], dtype=np.float64).T for name, (p, r) in F1_PARTS.items()}
        return MetricResult(
            values,
            pooled={name: PooledScore(f1_counts(table), f1_from_counts) for name, table in f1_tables.items()},
            details=details,
            failures=failures,
            counts=counts,
            usage=add_up_counts([*usages.values()]),
            usage_by_role=usages,
        )

    def aggregate(
        self,
        result: MetricResult,
        names: Sequence[str],
        *,
        replicates: int,
        seed: int,
        clusters: Clusters | None = None,
    ) -> dict[str, Summary]:
        """Compute dataset-level scores; the bootstrap draws from samples with two reports to judge."""
        judged = [
            place
            for place in range(len(result.details))
            if place not in result.failures or result.details[place]["counts"]["failed_sentences"] > 0
        ]
        values = {
            name: [column[place] for place in judged] for name, column in result.values.items() if name not in F1_PARTS
        }
        clusters = None if clusters is None else clusters.select(judged)
        summaries = summarize(values, f1=F1_PARTS, replicates=replicates, seed=seed, clusters=clusters)
        return {name: summaries[name] for name in names}

    def _split(self, unsplit: Sequence[str], splitter: Splitter, removed: _Removed) -> SplitReports:
        """Return the sentences of narratives, and add what was removed from each."""
        reports: list[list[str] | Failure]
        if isinstance(splitter, ExplainingSplitter):
            splits = splitter.explain(unsplit)
            reports = [split if isinstance(split, Failure) else flatten_split(split) for split in splits]
            for narrative, split in zip(unsplit, splits, strict=False):
                if not isinstance(split, Failure):
                    removed[narrative] = [asdict(text) for text in locate_removed(narrative, split)]
        else:
            reports = splitter.split(unsplit)
        if len(reports) != len(unsplit):
            message = f"splitter '{splitter.name}' gave {len(reports)} answers to {len(unsplit)} narratives"
            raise RunError(message, code=ErrorCode.INVALID_PLUGIN)
        self._stop_at_failures(reports, "narratives")
        return dict(zip(unsplit, reports, strict=True))

    def _stop_at_failures(self, responses: Sequence[object], noun: str) -> None:
        failures = [response for response in responses if isinstance(response, Failure)]
        if failures and self.options.on_failure == "stop":
            first = failures[0].reason
            message = f"{len(failures)} of {len(responses)} {noun} have no valid answer (first: {first})"
            raise RunError(message, code=ErrorCode.JUDGE_FAILED)


class ExactRadFact(RadFactMetric):
    """RadFact with exact regions. Its scores keep their names; the settings of the run state the variant."""

    variant = "exact"
    difference = "regions compared without the 224-pixel grid; the scores keep their names"
    source = "maira-radfact"


def _details(pair: Pair, scored: PairScores, removed: _Removed) -> dict[str, Any]:
    """Return the counts and rows of a pair, and what the splitter removed from its narratives."""
    sides = {"candidate": pair.candidate, "reference": pair.reference}
    texts = {side: removed.get(text, []) for side, text in sides.items() if isinstance(text, str)}
    counts = {f"{side}_sentences_removed": len(texts.get(side, ())) for side in sides}
    return {
        "counts": {**scored.counts, **counts},
        "sentences": [row.model_dump(mode="json") for row in scored.sentences],
        "removed": {side: items for side, items in texts.items() if items},
    }


def _collect_queries(pairs: Sequence[SplitPair]) -> list[EntailmentQuery]:
    """Return the queries of the whole set, those with the same premises adjacent and without duplicates."""
    by_premises: dict[tuple[str, ...], dict[EntailmentQuery, None]] = {}
    for pair in pairs:
        for side in PARTS:
            for query in pair.queries(side):
                by_premises.setdefault(query.premises, {})[query] = None
    return [query for group in by_premises.values() for query in group]


def _split_pair(pair: Pair, reports: SplitReports) -> SplitPair:
    """Return the sentences of both reports; with a narrative on either side there are no regions to compare."""
    sides: dict[Side, Report] = {"candidate": pair.candidate, "reference": pair.reference}
    has_narrative = any(isinstance(report, str) for report in sides.values())
    sentences: dict[Side, Sequence[Sentence]] = {}
    failure = None
    for side, report in sides.items():
        if isinstance(report, str):
            split = reports[report] if report.strip() else ()
            if isinstance(split, Failure):
                failure = failure or f"the {side} report could not be split: {split.reason}"
                split = ()
            sentences[side] = [Sentence(text=text) for text in split if text.strip()]
        else:
            sentences[side] = [Sentence(text=sentence.text) for sentence in report] if has_narrative else report
    return SplitPair(pair.sample_id, sentences, failure)
