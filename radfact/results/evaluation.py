"""The result of an evaluation: scores of a set of pairs by one or more metrics."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from radfact.metrics.protocol import Metric, MetricResult
from radfact.metrics.registry import MetricSelection
from radfact.records import Pair, digest, narratives
from radfact.results.schema import RADFACT, SentenceRow
from radfact.scoring.radfact import PARTS
from radfact.statistics.bootstrap import Direction, Summary


@dataclass(frozen=True, slots=True)
class MetricRun:
    """The result of one metric.

    Attributes:
        metric: the metric.
        selection: how it was selected.
        directions: selected scores and their directions.
        result: sample-level result, including scores that were not selected.
        scores: dataset-level values of the selected scores.
        seconds: time of the computation.
        arguments: arguments that the metric was created with.
        reused: whether the result comes from an earlier run in the same results folder.
    """

    metric: Metric
    selection: MetricSelection
    directions: Mapping[str, Direction]
    result: MetricResult
    scores: Mapping[str, Summary]
    seconds: float = 0.0
    arguments: Mapping[str, Any] = field(default_factory=dict)
    reused: bool = False

    @classmethod
    def of(
        cls,
        metric: Metric,
        selection: MetricSelection,
        result: MetricResult,
        draws: Mapping[str, int],
        *,
        seconds: float = 0.0,
        arguments: Mapping[str, Any] | None = None,
        reused: bool = False,
    ) -> MetricRun:
        """Aggregate the result of a metric.

        Args:
            metric: the metric.
            selection: how it was selected.
            result: sample-level result.
            draws: replicates (`bootstrap`) and `seed` of the bootstrap.
            seconds: time of the computation.
            arguments: arguments that the metric was created with.
            reused: whether the result comes from an earlier run.
        """
        directions = selection.select(metric)
        summaries = metric.aggregate(result, list(directions), replicates=draws["bootstrap"], seed=draws["seed"])
        scores = {name: replace(summaries[name], direction=direction) for name, direction in directions.items()}
        return cls(metric, selection, directions, result, scores, seconds, arguments or {}, reused)


@dataclass(frozen=True, slots=True)
class SampleScore:
    """The scores of one sample.

    Attributes:
        scores: by name; NaN = no value.
        counts: numbers of sentences, where RadFact was computed.
        failure: why the sample is excluded, or None.
        failures: the same by metric.
        reports: digest of both reports; None if there is no candidate.
    """

    sample_id: str
    scores: Mapping[str, float]
    counts: Mapping[str, int]
    failure: str | None = None
    failures: Mapping[str, str] = field(default_factory=dict)
    reports: str | None = None


@dataclass(frozen=True)
class EvaluationResult:
    """Scores of a set of pairs, in input order.

    Attributes:
        pairs: the scored pairs.
        runs: result of each metric by name.
        selections: the selected metrics.
        unavailable: metrics that could not be computed, with the reason.
        without_candidate: references without a candidate, which no metric scores.
        draws: replicates and seed of the bootstrap.
        report_digests: digest of the reports by sample, where these are not the texts of the pairs.
    """

    pairs: Sequence[Pair]
    runs: Mapping[str, MetricRun]
    selections: Sequence[MetricSelection] = ()
    unavailable: Mapping[str, str] = field(default_factory=dict)
    without_candidate: Sequence[str] = ()
    draws: Mapping[str, int] = field(default_factory=dict)
    report_digests: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def scores(self) -> dict[str, Summary]:
        """Dataset-level scores by name."""
        return {name: summary for run in self.runs.values() for name, summary in run.scores.items()}

    @property
    def values(self) -> dict[str, Sequence[float]]:
        """Sample-level scores by name, one value per pair; NaN = no value."""
        return {
            name: run.result.values[name]
            for run in self.runs.values()
            for name in run.directions
            if name in run.result.values
        }

    @cached_property
    def failures(self) -> list[dict[str, str]]:
        """Why metrics could not score each pair, by metric."""
        return [
            {name: run.result.failures[place] for name, run in self.runs.items() if place in run.result.failures}
            for place in range(len(self.pairs))
        ]

    @cached_property
    def samples(self) -> list[SampleScore]:
        """Scores of every sample; references without a candidate come last."""
        values = self.values
        details = self.runs[RADFACT].result.details if RADFACT in self.runs else ()
        samples = []
        for place, (pair, failures) in enumerate(zip(self.pairs, self.failures, strict=True)):
            # Where RadFact was computed its failure counts alone, because `radfact export` selects samples by it.
            failure = failures.get(RADFACT) if RADFACT in self.runs else "; ".join(failures.values()) or None
            if pair.sample_id in self.report_digests:
                reports = self.report_digests[pair.sample_id]
            else:
                reports = digest(pair.candidate, pair.reference)
            samples.append(
                SampleScore(
                    pair.sample_id,
                    {name: column[place] for name, column in values.items()},
                    details[place]["counts"] if details else {},
                    failure,
                    failures,
                    reports,
                )
            )
        reason = "no candidate report"
        no_scores = dict.fromkeys(values, math.nan)
        no_counts = dict.fromkeys(_COUNTS, 0) if RADFACT in self.runs else {}
        samples += [
            SampleScore(key, no_scores, no_counts, reason, dict.fromkeys(self.runs, reason))
            for key in self.without_candidate
        ]
        return samples

    @cached_property
    def sentences(self) -> list[SentenceRow]:
        """Sentences with the verdicts of RadFact; the sentences of the reports where it was not computed."""
        if RADFACT in self.runs:
            details = self.runs[RADFACT].result.details
            return [SentenceRow.model_validate(row) for detail in details for row in detail["sentences"]]
        rows = []
        for pair in self.pairs:
            for side in PARTS:
                report = pair.candidate if side == "candidate" else pair.reference
                if isinstance(report, str):
                    fields: list[dict[str, Any]] = [{"text": report}] if report.strip() else []
                else:
                    fields = [dict(sentence) for sentence in report]
                rows += [
                    SentenceRow(sample_id=pair.sample_id, side=side, index=index, **sentence)
                    for index, sentence in enumerate(fields)
                ]
        return rows

    @cached_property
    def counts(self) -> dict[str, int]:
        """Numbers of samples, and of the sentences and judgments of RadFact."""
        excluded = sum(bool(failures) for failures in self.failures)
        missing = len(self.without_candidate)
        counts = {
            "samples": len(self.pairs) + missing,
            "scored": len(self.pairs) - excluded,
            "excluded": excluded + missing,
        }
        if RADFACT in self.runs:
            result = self.runs[RADFACT].result
            for name in _COUNTS[:-1]:
                counts[name] = sum(detail["counts"][name] for detail in result.details)
            counts |= result.counts
        return counts

    @property
    def judge(self) -> Mapping[str, Any] | None:
        """The judge of RadFact."""
        return self._radfact_settings.get("judge")

    @property
    def splitter(self) -> Mapping[str, Any] | None:
        """The splitter of RadFact; None where no report was split."""
        return self._radfact_settings.get("splitter")

    @property
    def options(self) -> dict[str, Any]:
        """Scoring options of RadFact, and replicates and seed of the bootstrap."""
        return {**self._radfact_settings.get("options", {}), **self.draws}

    @property
    def usage(self) -> dict[str, Mapping[str, int]]:
        """Calls, tokens and failures of each model: judge and splitter of RadFact, others by the name of the metric."""
        return {
            role: {name: count for name, count in usage.items() if name not in ("planned", "done")}
            for run in self.runs.values()
            for role, usage in (run.result.usage_by_role or {run.metric.name: run.result.usage}).items()
        }

    @cached_property
    def _radfact_settings(self) -> dict[str, Any]:
        run = self.runs.get(RADFACT)
        settings = None if run is None else run.metric.describe()
        return {**(settings or {}), **({} if narratives(self.pairs) else {"splitter": None})}

    def to_dataframe(self, rows: Literal["samples", "sentences"] = "samples") -> Any:
        """Return the samples or the sentences as a pandas DataFrame.

        Args:
            rows: `samples` gives one row per sample, indexed by `sample_id`, NaN where a score has no value;
                `sentences` one row per sentence, with the columns of `SentenceRow`.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            pandas = importlib.import_module("pandas")
        except ImportError:
            raise ImportError("a DataFrame needs pandas: pip install pandas") from None
        if rows == "sentences":
            return pandas.DataFrame([dict(row) for row in self.sentences], columns=list(SentenceRow.model_fields))
        records = [{**sample.scores, **sample.counts, "failure": sample.failure} for sample in self.samples]
        index = pandas.Index([sample.sample_id for sample in self.samples], name="sample_id")
        return pandas.DataFrame(records, index=index)


_COUNTS = (
    *(f"{side}_sentences{kind}" for side in PARTS for kind in ("", "_with_boxes")),
    "failed_sentences",
)
