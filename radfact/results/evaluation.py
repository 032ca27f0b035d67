"""The result of an evaluation: scores of a set of pairs by one or more metrics."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal

from radfact.errors import list_some
from radfact.machine import PROJECT
from radfact.metrics.protocol import Metric, MetricResult, units_of
from radfact.metrics.radfact.scores import PARTS, Side
from radfact.metrics.registry import MetricSelection
from radfact.records import CHEST_XRAY, Pairs, Report, Sentence, digest, narratives
from radfact.results.schema import RADFACT, RemovedRow, SentenceRow, compares_findings
from radfact.statistics.bootstrap import Direction, Summary
from radfact.statistics.clusters import Clusters, Resampling, clusters_of

if TYPE_CHECKING:
    from radfact.findings.details import FindingTable
    from radfact.results.paper import PaperTable


@dataclass(frozen=True, slots=True)
class MetricRun:
    """The result of one metric: directions and dataset-level values of the selected scores, all sample-level values."""

    metric: Metric
    selection: MetricSelection
    directions: Mapping[str, Direction]
    result: MetricResult
    summaries: Mapping[str, Summary]
    seconds: float = 0.0
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SampleScore:
    """The scores of one sample, numbers of sentences, why it is excluded, and the digest of both reports."""

    sample_id: str
    scores: Mapping[str, float]
    counts: Mapping[str, int]
    failure: str | None = None
    failures: Mapping[str, str] = field(default_factory=dict)
    reports: str | None = None
    cluster: str | None = None

    def row(self) -> dict[str, Any]:
        """Return the row of `samples.jsonl`."""
        return {
            "sample_id": self.sample_id,
            "cluster": self.cluster,
            **{name: json_number(value) for name, value in self.scores.items()},
            **self.counts,
            "failure": self.failure,
            "failures": self.failures,
            "reports": self.reports,
        }


def json_number(value: float) -> float | None:
    """Return a number for JSON, which has no NaN."""
    return None if math.isnan(value) else float(value)


@dataclass(frozen=True)
class EvaluationResult:
    """Scores of a set of pairs, in input order.

    Attributes:
        pairs: the scored pairs.
        runs: result of each metric by name.
        selections: the selected metrics.
        unavailable: metrics that could not be computed, with the reason.
        draws: replicates and seed of the bootstrap.
        repeat: number of repeats of the queries to models.
    """

    pairs: Pairs
    runs: dict[str, MetricRun]
    selections: Sequence[MetricSelection]
    unavailable: dict[str, str]
    draws: Mapping[str, int]
    repeat: int = 1

    @property
    def without_candidate(self) -> Mapping[str, str]:
        """Reason by id of each reference without a candidate, which no metric scores."""
        return self.pairs.without_candidate

    @property
    def drawn_from(self) -> int | None:
        """Number of samples that the scored ones were drawn from; None if they are all."""
        return self.pairs.drawn_from

    @cached_property
    def clusters(self) -> Clusters:
        """Clusters of the pairs, which the bootstrap draws in the order of their ids."""
        # Positions are no ids: two lists in another order have other ones.
        ids = [digest(pair.candidate, pair.reference) if self.pairs.numbered else pair.sample_id for pair in self.pairs]
        return clusters_of(self.pairs.cluster_by, [pair.cluster for pair in self.pairs], ids)

    @property
    def resampling(self) -> Resampling:
        """Units that the bootstrap resamples."""
        return self.clusters.resampling()

    @property
    def scores(self) -> dict[str, float]:
        """Dataset-level scores by name; NaN = no value."""
        return {name: math.nan if score.point is None else score.point for name, score in self.summaries.items()}

    @property
    def summaries(self) -> dict[str, Summary]:
        """Dataset-level scores with their intervals, numbers of samples and directions, by name."""
        return {name: summary for run in self.runs.values() for name, summary in run.summaries.items()}

    def __repr__(self) -> str:
        """Return one line with the numbers of samples and the main scores."""
        from radfact.results.display import describe_result

        return describe_result(self)

    def _repr_html_(self) -> str:
        """Return the scores as a table, which notebooks show."""
        from radfact.results.display import scores_table

        return scores_table(self)

    @property
    def units(self) -> dict[str, str]:
        """Range or unit of each score whose range is not 0 to 1."""
        return {name: unit for run in self.runs.values() for name, unit in units_of(run.metric).items()}

    @property
    def repeat_sd(self) -> dict[str, float | None]:
        """Standard deviation over the repeats of the dataset-level scores that depend on a model."""
        return {
            name: run.result.repeats.repeat_sd[name]
            for run in self.runs.values()
            if run.result.repeats is not None
            for name in run.summaries
        }

    @property
    def repeat_notes(self) -> list[str]:
        """Sentences about the repeats of each metric; empty without repeats."""
        if self.repeat == 1:
            return []
        notes = []
        for name, run in self.runs.items():
            repeats = run.result.repeats
            if repeats is None:
                notes.append(f"{name}: computed once, because it does not query a model.")
                continue
            note = f"{name}: mean over {repeats.count} repeats for each sample"
            if repeats.partly_failed:
                note += f"; {repeats.partly_failed} samples have fewer, because queries failed"
            notes.append(f"{note}.")
        return notes

    @property
    def examination_notes(self) -> list[str]:
        """A warning if pairs declare another examination than metrics are made for; else empty."""
        examinations = [pair.context.examination for pair in self.pairs]
        # An "X-ray examination" may be one of the chest.
        kinds = [kind for kind in examinations if kind.removesuffix(" examination") not in CHEST_XRAY]
        names = [name for name, run in self.runs.items() if run.metric.for_chest_xrays]
        if not (kinds and names):
            return []
        listed = list_some([*dict.fromkeys(kinds)])
        made = f"the prompts, rules or models of {', '.join(names)} are made for chest X-rays, and are used as they are"
        return [f"{len(kinds)} of {len(self.pairs)} pairs declare another examination ({listed}): {made}."]

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
            {name: run.result.failures[index] for name, run in self.runs.items() if index in run.result.failures}
            for index in range(len(self.pairs))
        ]

    @cached_property
    def samples(self) -> list[SampleScore]:
        """Scores of every sample; references without a candidate come last."""
        return list(self.iter_samples())

    def iter_samples(self) -> Iterator[SampleScore]:
        """Yield the elements of `samples` one at a time."""
        values, has_radfact = self.values, RADFACT in self.runs
        for index, (pair, failures) in enumerate(zip(self.pairs, self.failures, strict=True)):
            yield SampleScore(
                pair.sample_id,
                {name: column[index] for name, column in values.items()},
                self._sentence_counts[index] if has_radfact else {},
                # Where RadFact was computed its failure counts alone, because `radfact export` selects samples by it.
                failures.get(RADFACT) if has_radfact else "; ".join(failures.values()) or None,
                failures,
                self.pairs.digest_of(pair),
                pair.cluster,
            )
        no_scores = dict.fromkeys(values, math.nan)
        no_counts = dict.fromkeys(_COUNTS if has_radfact else (), 0)
        for key, reason in self.without_candidate.items():
            yield SampleScore(key, no_scores, no_counts, reason, dict.fromkeys(self.runs, reason))

    @cached_property
    def sentences(self) -> list[SentenceRow]:
        """Sentences with the verdicts of RadFact; the sentences of the reports where it was not computed."""
        return [SentenceRow.model_validate(row) for row in self.sentence_rows()]

    def sentence_rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of `sentences.jsonl` in input order."""
        if RADFACT in self.runs:
            for detail in self.runs[RADFACT].result.details:
                yield from detail["sentences"]
            return
        for sample_id, side, report in self._reports():
            sentences = report if not isinstance(report, str) else [Sentence(text=report)] if report.strip() else []
            for index, sentence in enumerate(sentences):
                row = SentenceRow(sample_id=sample_id, side=side, index=index, **dict(sentence))
                yield row.model_dump(mode="json")

    def narrative_rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of `narratives.jsonl`."""
        for sample_id, side, report in self._reports() if RADFACT in self.runs else ():
            if isinstance(report, str) and report.strip():
                yield {"sample_id": sample_id, "side": side, "text": report}

    def _reports(self) -> Iterator[tuple[str, Side, Report]]:
        for pair in self.pairs:
            yield pair.sample_id, "candidate", pair.candidate
            yield pair.sample_id, "reference", pair.reference

    def removed_rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of `removed.jsonl`."""
        if RADFACT not in self.runs:
            return
        details = self.runs[RADFACT].result.details
        for index, (pair, counts) in enumerate(zip(self.pairs, self._sentence_counts, strict=True)):
            if any(counts[f"{side}_sentences_removed"] for side in PARTS):
                for side, texts in details[index]["removed"].items():
                    for text in texts:
                        row = RemovedRow(sample_id=pair.sample_id, side=side, **text)
                        yield row.model_dump(mode="json")

    @cached_property
    def counts(self) -> dict[str, int]:
        """Number of samples, of sentences of RadFact, and further counts of metrics, such as judgments."""
        excluded = sum(bool(failures) for failures in self.failures)
        missing = len(self.without_candidate)
        counts = {
            "samples": len(self.pairs) + missing,
            "scored": len(self.pairs) - excluded,
            "excluded": excluded + missing,
            "empty_candidates": len(self.pairs.empty_candidates),
        }
        if self.drawn_from is not None:
            counts["drawn_from"] = self.drawn_from
        if RADFACT in self.runs:
            result = self.runs[RADFACT].result
            counts |= {name: sum(row[name] for row in self._sentence_counts) for name in _COUNTS[:-1]}
            scored = [row for index, row in enumerate(self._sentence_counts) if index not in result.failures]
            for side in PARTS:
                counts[f"{side}s_without_sentences"] = sum(not row[f"{side}_sentences"] for row in scored)
            counts |= result.counts
        for run in self.runs.values():
            for name, number in run.result.counts.items():
                counts.setdefault(name, number)
        return counts

    @cached_property
    def _sentence_counts(self) -> list[dict[str, int]]:
        """Numbers of `_COUNTS` of each sample; kept, because each row of the details is decoded when it is read."""
        return [{name: row["counts"][name] for name in _COUNTS} for row in self.runs[RADFACT].result.details]

    @cached_property
    def findings(self) -> dict[str, FindingTable]:
        """Counts by finding over the set, by metric; only of metrics that compare findings."""
        names = [name for name, run in self.runs.items() if compares_findings(run.metric.describe())]
        if not names:
            return {}
        from radfact.findings.details import FindingTable

        return {name: FindingTable(self.runs[name].result.details) for name in names}

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
        """Scoring options of RadFact, and replicates, seed and order of the bootstrap."""
        order = {"numbered": True} if self.pairs.numbered else {}
        return {**self._radfact_settings.get("options", {}), **self.draws, **order}

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

    def to_latex(self, scores: str | Sequence[str] = ()) -> str:
        """Return a table of scores with intervals for a paper, in LaTeX with booktabs.

        Args:
            scores: names of scores, or of metrics for their main scores; by default all main scores.

        Raises:
            InputError: a name is unknown.
        """
        return self._paper_table(scores).to_latex()

    def to_markdown(self, scores: str | Sequence[str] = ()) -> str:
        """Return the same table in Markdown. See `to_latex` for arguments and errors."""
        return self._paper_table(scores).to_markdown()

    def _paper_table(self, scores: str | Sequence[str]) -> PaperTable:
        from radfact.results.paper import result_table
        from radfact.results.writer import scores_file

        return result_table(scores_file(self), scores, version(PROJECT))

    def to_dataframe(self, rows: Literal["samples", "scores", "sentences", "findings"] = "samples") -> Any:
        """Return the samples, the dataset-level scores, the sentences or the counts by finding as a pandas DataFrame.

        Args:
            rows: `samples` gives one row per sample, indexed by `sample_id`, NaN where a score has no value; `scores`
                one row per dataset-level score, with its interval; `sentences` one row per sentence, with the columns
                of `SentenceRow`; `findings` one row per kind of finding, with the columns of `findings.csv`.

        Raises:
            ImportError: pandas is not installed.
        """
        pandas = importlib.import_module("pandas")
        if rows == "sentences":
            return pandas.DataFrame([dict(row) for row in self.sentences], columns=list(SentenceRow.model_fields))
        if rows == "scores":
            from radfact.results.paper import SCORE_COLUMNS, score_rows
            from radfact.results.writer import scores_file

            return pandas.DataFrame(score_rows(scores_file(self), list(self.summaries)), columns=SCORE_COLUMNS)
        if rows == "findings":
            from radfact.findings.details import FINDING_COLUMNS, finding_rows

            return pandas.DataFrame(finding_rows(self.findings), columns=FINDING_COLUMNS)
        records = [{**sample.scores, **sample.counts, "failure": sample.failure} for sample in self.samples]
        index = pandas.Index([sample.sample_id for sample in self.samples], name="sample_id")
        return pandas.DataFrame(records, index=index)


_COUNTS = (
    *(f"{side}_sentences{kind}" for side in PARTS for kind in ("", "_with_boxes", "_removed")),
    "failed_sentences",
)
