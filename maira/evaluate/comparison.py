"""Compare the scores of several experiments, as in MAIRA-2, tables D.7 to D.10."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

from maira.evaluate.experiments import COMPARISON_MENTIONS, LATERAL_MENTIONS, Experiment
from radfact.io.jsonl import open_atomic, read_json, write_json
from radfact.results.systems import Column, pooled_functions, read_system
from radfact.statistics.bootstrap import CountsFunction, Summary, summarize
from radfact.statistics.clusters import clusters_of
from radfact.statistics.significance import mean_counts, mean_from_counts, paired_difference

_REFERENCE_SUFFIX = "_reference"
"""Suffix of scores of the reference reports themselves."""
COMPLETION = "completion_"
"""Prefix of the scores of box completion."""
_BOX_PREFIXES = ("grounding_", "spatial_", COMPLETION)
"""Prefixes of scores about boxes, which have separate tables, as in the paper."""
_OVERLAPS = ("precision", "recall", "iou")


@dataclass(frozen=True)
class Comparison:
    """Scores of several experiments, and their differences to a base.

    Attributes:
        experiments: experiments in the order of the rows.
        base: experiment that the others are compared with; None if it has no scores.
        scores: by experiment and name; scores with a value in any experiment, in the same order for each.
        differences: by experiment (except the base) and name, for scores that can be resampled in both.
        reference: scores of the reference reports themselves.
        replicates: number of bootstrap replicates.
        notes: remarks for the reader.
    """

    experiments: Sequence[Experiment]
    base: Experiment | None
    scores: Mapping[str, Mapping[str, Summary]]
    differences: Mapping[str, Mapping[str, Summary]]
    reference: Mapping[str, Summary]
    replicates: int
    notes: Sequence[str]

    @property
    def names(self) -> list[str]:
        """Names of the scores."""
        return list(self.scores[self.experiments[0].name])


class _Draws(TypedDict):
    """Arguments of the bootstrap."""

    replicates: int
    seed: int


@dataclass(frozen=True)
class _Row:
    """An experiment: dataset-level scores by name, contributions of studies or phrases to each, clusters of studies."""

    experiment: Experiment
    scores: Mapping[str, Summary]
    columns: Mapping[str, Column]
    clusters: Mapping[str, str | None]
    cluster_by: str | None


def compare(experiments: Sequence[Experiment], notes: Sequence[str] = (), base: Experiment | None = None) -> Comparison:
    """Compare scored experiments by all scores of their results folders and of box completion.

    Args:
        experiments: at least one.
        notes: remarks about the studies.
        base: experiment that the others are compared with, if any.
    """
    options = read_json(experiments[0].results / "run.json")["options"]
    draws = _Draws(replicates=int(options["bootstrap"]), seed=int(options["seed"]))
    functions = pooled_functions([name for name in options.get("metrics", "").split(",") if ":" in name])
    rows = {experiment.name: _row(experiment, functions, draws) for experiment in experiments}
    names = dict.fromkeys(
        name for row in rows.values() for name, score in row.scores.items() if score.point is not None
    )
    shown = [name for name in names if not name.endswith(_REFERENCE_SUFFIX)]
    others = [row for row in rows.values() if base is not None and row.experiment.name != base.name]
    return Comparison(
        experiments,
        base,
        scores={key: {name: row.scores.get(name, Summary(None)) for name in shown} for key, row in rows.items()},
        differences={row.experiment.name: _differences(row, rows[base.name], draws) for row in others} if base else {},
        reference={
            name.removesuffix(_REFERENCE_SUFFIX): score
            for name, score in rows[experiments[0].name].scores.items()
            if name.endswith(_REFERENCE_SUFFIX)
        },
        replicates=draws["replicates"],
        notes=[*notes, *_notes(experiments)],
    )


def _row(experiment: Experiment, functions: Mapping[str, Mapping[str, CountsFunction]], draws: _Draws) -> _Row:
    system = read_system(experiment.results, experiment.name, functions)
    columns = dict(system.columns)
    phrases = experiment.completions
    completions = {COMPLETION + name: [float(row[name]) for row in phrases.values()] for name in _OVERLAPS}
    keys = [f"{sample_id} {index}" for sample_id, index in phrases]
    columns |= {
        name: Column(dict(zip(keys, mean_counts(values), strict=True)), mean_from_counts)
        for name, values in completions.items()
    }
    names = [field.name for field in fields(Summary)]
    scores = {
        score: Summary(**{name: record[name] for name in names})
        for score, record in experiment.scores["scores"].items()
    }
    return _Row(experiment, scores | summarize(completions, **draws), columns, system.clusters, system.cluster_by)


def _differences(row: _Row, base: _Row, draws: _Draws) -> dict[str, Summary]:
    """Return paired differences over the studies, or phrases, scored in both experiments."""
    differences: dict[str, Summary] = {}
    for name, score in base.scores.items():
        column, base_column = row.columns.get(name), base.columns.get(name)
        if not column or not base_column or name.endswith(_REFERENCE_SUFFIX):
            continue
        shared = [key for key in column.counts if key in base_column.counts]
        if not shared:
            continue
        difference = paired_difference(
            column.of(shared),
            base_column.of(shared),
            {name: column.value},
            has_value=column.has_value,
            pairing=column.pairing,
            # A phrase of box completion is no sample, and is drawn by itself.
            clusters=clusters_of(base.cluster_by, [base.clusters.get(key) for key in shared]),
            **draws,
        )[name]
        if difference.point is not None:
            differences[name] = replace(difference, direction=score.direction)
    return differences


def _notes(experiments: Sequence[Experiment]) -> list[str]:
    judges = [experiment.scores["judge"] for experiment in experiments]
    notes = [f"Judge: {', '.join(dict.fromkeys(str(judge.get('name')) for judge in judges))}."]
    notes += dict.fromkeys(str(judge["note"]) for judge in judges if judge.get("note"))
    notes += [
        f"{experiment.name}: {experiment.excluded} studies could not be scored."
        for experiment in experiments
        if experiment.excluded
    ]
    return notes


def cell(score: Summary | None, *, signed: bool = False) -> str:
    """Return median and 95 % interval as in the paper, or the point without bootstrap.

    Args:
        score: with or without interval.
        signed: whether to print the sign, as for differences.
    """
    if score is None or score.point is None:
        return "-"
    form = "+.3f" if signed else ".3f"
    if score.low is None or score.high is None or score.median is None:
        return format(score.point, form)
    return f"{score.median:{form}} [{score.low:{form}}, {score.high:{form}}]"


def table_rows(comparison: Comparison, experiment: Experiment) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows of one experiment for a terminal of 80 columns, one row per score.

    Args:
        comparison: comparison with the experiment.
        experiment: one of its experiments.
    """
    differences = comparison.differences.get(experiment.name)
    rows = []
    for name, score in comparison.scores[experiment.name].items():
        difference = [] if differences is None else [cell(differences.get(name), signed=True)]
        rows.append([_heading(name, score), cell(score), *difference, str(score.n)])
    return ["score", "value", *([] if differences is None else ["difference"]), "n"], rows


def footnotes(comparison: Comparison) -> list[str]:
    """Return the remarks below the tables."""
    has_boxes = any(name.startswith(COMPLETION) for name in comparison.names)
    units = "studies, and over phrases for box completion" if has_boxes else "studies"
    interval = (
        f"Median and 95 % interval of {comparison.replicates} bootstrap replicates over {units}."
        if comparison.replicates
        else "Without bootstrap: point values."
    )
    paired = (
        f" Differences to {comparison.base.name} are paired: both are resampled alike, over the studies with a value "
        "in both (n)."
        if comparison.base and comparison.differences
        else ""
    )
    mentions = {name: cell(comparison.reference.get(name)) for name in (LATERAL_MENTIONS, COMPARISON_MENTIONS)}
    notes = [
        *comparison.notes,
        interval,
        f"A score is over the studies with a value in the experiment (n).{paired}",
        f"{LATERAL_MENTIONS}: share of reports that mention a lateral view, by the expression of MAIRA-2, listing 6; "
        f"reference reports: {mentions[LATERAL_MENTIONS]}.",
    ]
    if COMPARISON_MENTIONS in comparison.names:
        notes.append(
            f"{COMPARISON_MENTIONS}: share of reports that mention an earlier examination, as read by the judge's "
            f"model with our own prompt; reference reports: {mentions[COMPARISON_MENTIONS]}."
        )
    unavailable = {
        name: reason
        for experiment in comparison.experiments
        for name, reason in experiment.scores["unavailable"].items()
    }
    return [*notes, *(f"Not in the table: {name} ({reason})." for name, reason in unavailable.items())]


def write_comparison(
    comparison: Comparison,
    folder: Path,
    stem: str,
    title: str,
    settings: Mapping[str, Any],
    details: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Write STEM.json, STEM.csv (one row per score, experiment and kind) and STEM.md, each atomically.

    Args:
        comparison: comparison to write.
        folder: folder to write.
        stem: name of the files.
        title: title of the page.
        settings: settings of all experiments, for the JSON file.
        details: settings by experiment, for the JSON file.
    """
    experiments = {
        experiment.name: {
            **(details or {}).get(experiment.name, {}),
            "dropped": list(experiment.dropped),
            "scores": _records(comparison.scores[experiment.name]),
            "differences": _records(comparison.differences.get(experiment.name, {})),
        }
        for experiment in comparison.experiments
    }
    base = {"base": comparison.base.name if comparison.base else None}
    record = {**settings, **base, "experiments": experiments, "reference": _records(comparison.reference)}
    write_json(folder / f"{stem}.json", record | {"notes": footnotes(comparison)})
    with open_atomic(folder / f"{stem}.csv") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(["score", "experiment", "kind", "point", "median", "low", "high", "n"])
        for kind, values in (("value", comparison.scores), ("difference", comparison.differences)):
            for name in comparison.names:
                for experiment in comparison.experiments:
                    if score := values.get(experiment.name, {}).get(name):
                        cells = (score.point, score.median, score.low, score.high)
                        numbers = ["" if value is None else value for value in cells]
                        writer.writerow([name, experiment.name, kind, *numbers, score.n])
    with open_atomic(folder / f"{stem}.md") as handle:
        handle.write("\n".join([f"# {title}\n", *_sections(comparison), "\n\n".join(footnotes(comparison)) + "\n"]))


def _records(scores: Mapping[str, Summary]) -> dict[str, dict[str, Any]]:
    return {name: asdict(score) for name, score in scores.items()}


def _sections(comparison: Comparison) -> Iterator[str]:
    """Yield tables of scores, differences and counts, one row per experiment."""
    yield from _tables(comparison.scores, comparison.names, cell)
    if comparison.base and comparison.differences:
        yield f"## Differences to {comparison.base.name}\n"
        yield from _tables(comparison.differences, comparison.names, partial(cell, signed=True))
    yield "## n\n"
    yield from _tables(comparison.scores, comparison.names, lambda score: str(score.n if score else 0))


def _tables(
    values: Mapping[str, Mapping[str, Summary]], names: Sequence[str], show: Callable[[Summary | None], str]
) -> Iterator[str]:
    """Yield a Markdown table of text scores and one of box scores, without scores that no experiment has."""
    examples = {name: next((scores[name] for scores in values.values() if name in scores), None) for name in names}
    for is_box_table in (False, True):
        columns = {
            name: score
            for name, score in examples.items()
            if score is not None and name.startswith(_BOX_PREFIXES) == is_box_table
        }
        if columns:
            lines = [["experiment", *(_heading(name, score) for name, score in columns.items())]]
            lines += [["---", *["---:"] * len(columns)]]
            lines += [[key, *(show(scores.get(name)) for name in columns)] for key, scores in values.items()]
            yield "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _heading(name: str, score: Summary) -> str:
    return f"{name} (↓)" if score.direction == "lower" else name
