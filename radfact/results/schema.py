"""Schema of a results folder: one model per file, used by the writer and by every reader.

| file | model |
|---|---|
| `scores.json` | `ScoresFile` |
| `samples.jsonl` | `SampleRow` per line |
| `sentences.jsonl` | `SentenceRow` per line |
| `narratives.jsonl` | `NarrativeRow` per line |
| `removed.jsonl` | `RemovedRow` per line |
| `run.json` | `RunFile` |
| `metrics/NAME.json` | `MetricFile` |
| `metrics/NAME.jsonl` | `MetricRow` per line |
| `green_summary.json` | `GreenSummaryFile` |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, NonNegativeInt, model_validator

from radfact.metrics.protocol import Repeats
from radfact.metrics.radfact.scores import SentenceScore, Side
from radfact.results.options import ImagePlace
from radfact.statistics.bootstrap import Direction, Summary
from radfact.statistics.clusters import Resampling

VERSION = 3  # Earlier ones, of version 0.1 of this package, are refused.


SummaryT = TypeVar("SummaryT", bound=Summary)
RADFACT = "radfact"
GREEN_SUMMARY_FILE = "green_summary.json"
METRICS_FOLDER = "metrics"

SentenceRow = SentenceScore


class Row(BaseModel):
    """A record that may hold more fields than its model, as later versions write them."""

    model_config = ConfigDict(extra="ignore", coerce_numbers_to_str=True, defer_build=True)


@dataclass(frozen=True)
class ScoreRecord(Summary):
    """A dataset-level score; None means no value, and an unknown number of samples."""

    point: FiniteFloat | None = None
    low: FiniteFloat | None = None
    q25: FiniteFloat | None = None
    median: FiniteFloat | None = None
    q75: FiniteFloat | None = None
    high: FiniteFloat | None = None
    n: NonNegativeInt | None = None  # type: ignore[assignment]
    repeat_sd: FiniteFloat | None = None
    unit: str | None = None


class MetricRecord(Row):
    """A metric in `scores.json`: its scores, failed samples, repeats, and how it was computed."""

    scores: tuple[str, ...]
    source: str | None = None
    variant: str | None = None
    failed: NonNegativeInt = 0
    repeats: NonNegativeInt | None = None
    partly_failed: NonNegativeInt = 0
    model: dict[str, Any] | None = None
    settings: dict[str, Any] | None = None
    arguments: dict[str, Any] | None = None


class ScoresFile(Row):
    """`scores.json`."""

    version: int
    scores: dict[str, ScoreRecord]
    judge: str | dict[str, Any] | None = None
    splitter: dict[str, Any] | None = None
    counts: dict[str, Any] = Field(default_factory=dict)
    metrics: dict[str, MetricRecord] = Field(default_factory=dict)
    unavailable: dict[str, str] = Field(default_factory=dict)
    resampling: Resampling | None = None


class NarrativeRow(Row):
    """A row of `narratives.jsonl`: the original text of a report that was split into sentences."""

    sample_id: str
    side: Side
    text: str


class RemovedRow(NarrativeRow):
    """A row of `removed.jsonl`: a part of a narrative that the splitter removed."""

    reason: str | None = None
    start: NonNegativeInt | None = None
    end: NonNegativeInt | None = None

    @model_validator(mode="after")
    def _check_positions(self) -> RemovedRow:
        is_located = self.start is not None and self.end is not None and self.start < self.end
        if not is_located and (self.start, self.end) != (None, None):
            raise ValueError("expected a start before the end, or null for both")
        return self


class SampleRow(Row):
    """A row of `samples.jsonl`; its scores and counts of sentences are further columns."""

    model_config = ConfigDict(extra="allow")

    sample_id: str
    cluster: str | None = None
    failure: str | None = None
    failures: dict[str, str] = Field(default_factory=dict)
    reports: str | None = None

    @property
    def reason(self) -> str | None:
        """Why the sample was not scored, by metric."""
        return "; ".join(f"{metric}: {why}" for metric, why in self.failures.items()) or self.failure


class RadFactSampleRow(SampleRow):
    """A row of `samples.jsonl` with the columns of RadFact."""

    logical_precision: float | None
    logical_recall: float | None
    spatial_precision: float | None
    spatial_recall: float | None
    grounding_precision: float | None
    grounding_recall: float | None
    candidate_sentences: NonNegativeInt
    reference_sentences: NonNegativeInt
    candidate_sentences_with_boxes: NonNegativeInt
    reference_sentences_with_boxes: NonNegativeInt
    failed_sentences: NonNegativeInt

    @property
    def is_judged(self) -> bool:
        """Whether there were two reports to judge."""
        return self.failure is None or self.failed_sentences > 0


class PageRecord(Row):
    """What `report.html` shows in addition to the results; paths are relative to the folder."""

    manifest: str | None = None
    unscored: str | None = None
    drafts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    images: ImagePlace | None = None


class InputRecord(Row):
    """Input files of a run, counts of their records, and the models that wrote the candidates, if they name them."""

    files: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    read: int | None = None
    skipped: int | None = None
    empty_candidates: int | None = None
    without_reference: int | None = None


class RunFile(Row):
    """`run.json`: how the results were computed. Other fields hold totals such as `calls` and `tokens_in`."""

    model_config = ConfigDict(extra="allow")

    version: int | str = 1
    versions: dict[str, str] = Field(default_factory=dict)
    input: InputRecord = InputRecord()
    options: dict[str, Any] = Field(default_factory=dict)
    judge: dict[str, Any] | str | None = None
    splitter: dict[str, Any] | None = None
    page: PageRecord | None = None


class MetricFile(Row):
    """`metrics/NAME.json`: scores, totals and repeats of a metric."""

    scores: dict[str, Direction]
    pooled: list[list[str]]
    usage: dict[str, int]
    usage_by_role: dict[str, dict[str, int]] = Field(default_factory=dict)
    counts: dict[str, int] = Field(default_factory=dict)
    has_details: bool
    repeats: Repeats | None = None


class MetricRow(Row):
    """A row of `metrics/NAME.jsonl`: scores, counts of pooled scores, failure and details of one sample."""

    sample_id: str
    scores: dict[str, float | None] = Field(default_factory=dict)
    counts: list[list[float | None]] = Field(default_factory=list)
    failure: str | None = None
    details: dict[str, Any] = Field(default_factory=dict)


def scores_with_value(scores: Mapping[str, SummaryT]) -> dict[str, SummaryT]:
    """Return the scores that have a value, or all scores if none has one."""
    return {name: score for name, score in scores.items() if score.point is not None} or dict(scores)


def describe_models(scores: ScoresFile) -> dict[str, str]:
    """Return what reads the reports for each metric, in words: a judge, an extractor or a language model."""
    models = {
        name: str(metric.model["model"])
        for name, metric in scores.metrics.items()
        if metric.model and metric.model.get("model")
    }
    readers = {name: str(reader.get("name", "not named")) for name, reader in _readers(scores).items()}
    if scores.splitter and RADFACT in readers:
        readers[RADFACT] += f", narratives split by {scores.splitter.get('name')}"
    return {**readers, **models}


def finding_metrics(scores: ScoresFile) -> list[str]:
    """Return the metrics that compare findings."""
    return [name for name, metric in scores.metrics.items() if compares_findings(metric.settings)]


def compares_findings(settings: Mapping[str, Any] | None) -> bool:
    """Return whether a metric compares findings, by what it says of itself (`Metric.describe`)."""
    return settings is not None and {"extractor", "significance"} <= settings.keys()


def rule_based_metrics(scores: ScoresFile) -> list[str]:
    """Return the metrics for which the offline rules of this project read the reports."""
    return [name for name, reader in _readers(scores).items() if reader.get("name") == "offline"]


def _readers(scores: ScoresFile) -> dict[str, Mapping[str, Any]]:
    """Return the record of the judge of RadFact, and of the extractor of each metric that has one."""
    extractors = {name: (metric.settings or {}).get("extractor") for name, metric in scores.metrics.items()}
    readers = {name: record for name, record in extractors.items() if isinstance(record, Mapping)}
    if RADFACT in scores.metrics:
        judge = scores.judge
        readers[RADFACT] = {"name": judge} if isinstance(judge, str) else judge or {}
    return readers


def metric_of_scores(scores: ScoresFile) -> Mapping[str, str]:
    """Map each score of `scores.json` to its metric."""
    return {score: name for name, metric in scores.metrics.items() for score in metric.scores}


class GreenCategory(Row):
    """One category of significant errors in the GREEN summary."""

    name: str
    without: FiniteFloat
    errors: NonNegativeInt = 0
    clusters: NonNegativeInt = 0
    largest: NonNegativeInt = 0
    typical: tuple[str, ...] = ()


class GreenSummaryFile(Row):
    """`green_summary.json`: mean and population standard deviation of GREEN over `n` reports, categories by letter."""

    mean: FiniteFloat
    std: FiniteFloat
    n: NonNegativeInt
    categories: dict[str, GreenCategory]
