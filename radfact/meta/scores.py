"""Scores of the samples of a set: computed by metrics or read from results folders."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from radfact.errors import ErrorCode, InputError, list_some
from radfact.records import Pair, digest
from radfact.results.reader import SampleScores, read_digests, read_sample_scores, read_scores
from radfact.results.schema import describe_models, rule_based_metrics
from radfact.statistics.bootstrap import Direction

if TYPE_CHECKING:
    from radfact.api import MetricSet


@dataclass(frozen=True, slots=True)
class SampleMatch:
    """Ids that a results folder lacks, has in addition to a set, or has with another candidate or reference."""

    folder: str
    missing: Sequence[str]
    unknown: Sequence[str]
    other_texts: Sequence[str]

    def notes(self) -> list[str]:
        kinds = (
            (self.missing, "missing samples of the set"),
            (self.unknown, "samples that are not in the set"),
            (self.other_texts, "samples with other texts than in the set (other reports, or another splitter)"),
        )
        return [f"{self.folder}: {kind}: {len(ids)} ({list_some(ids)})." for ids, kind in kinds if ids]


@dataclass(frozen=True, slots=True)
class ScoreColumns:
    """Scores of a sequence of samples by name, NaN = not scored, and which values are better.

    Neutral scores are not compared with experts. `unavailable` has the reason for each metric without a result, and
    `matches` the comparison with each results folder that was read. `models` are the judges and language models by
    metric, or by FOLDER/METRIC where folders differ; `rule_based` are the metrics that read reports with the ontology
    of this project; `units` are those of the scores that are not from 0 to 1. `notes` are of the evaluation.
    """

    values: Mapping[str, Sequence[float]]
    directions: Mapping[str, Direction]
    unavailable: Mapping[str, str] = field(default_factory=dict)
    matches: Sequence[SampleMatch] = ()
    models: Mapping[str, str] = field(default_factory=dict)
    rule_based: Sequence[str] = ()
    units: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()

    def model_notes(self) -> list[str]:
        """Return a sentence with the judge or model of each metric that has one, and the notes of the evaluation."""
        models = "; ".join(f"{name}: {model}" for name, model in self.models.items())
        return [*([f"Judges and models: {models}."] if models else []), *self.notes]

    def circular_notes(self, *, by_rules: bool) -> list[str]:
        """Return a warning if reports that rules have changed are judged by the same ontology."""
        if not (self.rule_based and by_rules):
            return []
        return [
            f"Circular result for {', '.join(self.rule_based)}: rules changed the reports with the same ontology that "
            "judges them, so that what the one writes the other can read. These scores do not carry over to errors "
            "that others make, nor to another judge."
        ]

    @property
    def oriented(self) -> dict[str, list[float]]:
        """Values of the scores by name, oriented as by `orient`, without neutral scores."""
        directions = {name: self.directions.get(name, "higher") for name in self.values}
        return {name: orient(self.values[name], better) for name, better in directions.items() if better != "neutral"}


ScoreFunction = Callable[[Sequence[Pair], Path], ScoreColumns]
"""Scores pairs and writes the results into a folder."""


def orient(values: Sequence[float], direction: Direction) -> list[float]:
    """Return values with the sign that makes higher worse, as for counts of errors (ReXamine-Global, section 2.4)."""
    return [-value if direction == "higher" else value for value in values]


def match_samples(folder: Path, digests: Mapping[str, str | None]) -> SampleMatch:
    """Compare the samples of a results folder with others by id and text."""
    in_folder = read_digests(folder)
    shared = [(key, value, in_folder[key]) for key, value in digests.items() if key in in_folder]
    return SampleMatch(
        folder.name,
        [key for key in digests if key not in in_folder],
        [key for key in in_folder if key not in digests],
        [key for key, ours, theirs in shared if None not in (ours, theirs) and ours != theirs],
    )


def pair_digests(pairs: Iterable[Pair]) -> dict[str, str | None]:
    return {pair.sample_id: digest(pair.candidate, pair.reference) for pair in pairs}


def load_scores(folders: Sequence[Path], pairs: Sequence[Pair]) -> ScoreColumns:
    """Read scores of samples from results folders; those of the same name are named FOLDER/SCORE."""
    digests = pair_digests(pairs)
    tables = {folder: _load_folder(folder, list(digests)) for folder in dict.fromkeys(folders)}
    names = [name for scores in tables.values() for name in scores.values]
    values: dict[str, Sequence[float]] = {}
    directions: dict[str, Direction] = {}
    models: dict[str, str] = {}
    rule_based: list[str] = []
    units: dict[str, str] = {}
    for folder, scores in tables.items():
        prefix = f"{folder.name}/"
        for name, column in scores.values.items():
            label = name if names.count(name) == 1 else prefix + name
            values[label], directions[label] = column, scores.directions[name]
            units |= {label: scores.units[name]} if name in scores.units else {}
        prefix = prefix if len(tables) > 1 else ""
        models |= {prefix + metric: model for metric, model in scores.models.items()}
        rule_based += [prefix + metric for metric in scores.rule_based]
    matches = [match_samples(folder, digests) for folder in tables]
    return ScoreColumns(values, directions, {}, matches, models, rule_based, units)


def _load_folder(folder: Path, sample_ids: Sequence[str]) -> ScoreColumns:
    table, file = read_sample_scores(folder), read_scores(folder)
    if not any(key in table.rows for key in sample_ids):
        message = "expected samples of the set, found none of them"
        raise InputError(message, code=ErrorCode.MISMATCH, file=folder / "samples.jsonl", field="sample_id")
    columns = select_scores(table, sample_ids)
    units = {name: record.unit for name, record in file.scores.items() if record.unit}
    return replace(columns, models=describe_models(file), rule_based=rule_based_metrics(file), units=units)


def select_scores(table: SampleScores, sample_ids: Sequence[str]) -> ScoreColumns:
    """Return the scores of some samples, without those that have no value: they must not count as tests."""
    values = {name: [table.rows.get(key, {}).get(name, math.nan) for key in sample_ids] for name in table.directions}
    present = {name: column for name, column in values.items() if not all(map(math.isnan, column))}
    return ScoreColumns(present, {name: table.directions[name] for name in present})


def compute_scores(pairs: Sequence[Pair], metrics: MetricSet, folder: Path, *, main_only: bool = False) -> ScoreColumns:
    from radfact.api import evaluate

    evaluation = evaluate(pairs, metrics, bootstrap=0, seed=0, out=folder)
    columns = _load_folder(folder, [pair.sample_id for pair in pairs])
    main = {name for run in evaluation.runs.values() for name in run.selection.main_scores(run.metric)}
    values = {name: evaluation.values[name] for name in columns.values if not main_only or name in main}
    notes = evaluation.examination_notes
    return replace(columns, values=values, unavailable=dict(evaluation.unavailable), notes=notes)
