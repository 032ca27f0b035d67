"""Compare the scores of several experiments, as in MAIRA-2, tables D.7 to D.10, over the samples that they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from maira.evaluate.experiments import COMPARISON_MENTIONS, LATERAL_MENTIONS, Experiment
from radfact.io.jsonl import open_atomic, read_json, write_json
from radfact.pages.comparison_page import difference_table, own_table, score_rows
from radfact.pages.meta_page import Table, format_cell
from radfact.results.compare import Comparison, compare_systems
from radfact.results.systems import REFERENCE_SUFFIX, Column, pooled_functions, read_system
from radfact.statistics.significance import mean_counts, mean_from_counts

COMPLETION = "completion_"
"""Prefix of the scores of box completion."""
_OVERLAPS = ("precision", "recall", "iou")


@dataclass(frozen=True)
class ExperimentComparison:
    """Scores of several experiments, and their differences to a baseline.

    Attributes:
        experiments: experiments; the baseline is the first one.
        baseline: experiment that the others are compared with; None if it has no scores.
        comparison: scores and differences; its systems are the experiments.
        reference: scores of the reference reports themselves; None for those without a value.
        notes: remarks for the reader.
    """

    experiments: Sequence[Experiment]
    baseline: Experiment | None
    comparison: Comparison
    reference: Mapping[str, float | None]
    notes: Sequence[str]

    def tables(self) -> dict[str, Table]:
        """Return the tables by title: each experiment next to the baseline, and each by itself."""
        others = [] if self.baseline is None else range(1, len(self.experiments))
        tables = {
            f"{self.comparison.systems[index]} compared with {self.comparison.systems[0]}": difference_table(
                self.comparison, index
            )
            for index in others
        }
        # Without the verdict, which is for the page of `radfact compare`.
        tables = {title: table.select(table.headings[:-1]) for title, table in tables.items()}
        return tables | {"Each experiment by itself": own_table(self.comparison)}


def compare(
    experiments: Sequence[Experiment], notes: Sequence[str] = (), baseline: Experiment | None = None
) -> ExperimentComparison:
    """Compare scored experiments by all scores of their results folders and of box completion."""
    ordered = sorted(experiments, key=lambda experiment: baseline is not None and experiment.name != baseline.name)
    options = read_json(ordered[0].results / "run.json")["options"]
    functions = pooled_functions([name for name in options.get("metrics", "").split(",") if ":" in name])
    comparison = compare_systems(
        [read_system(item.results, item.name, functions) for item in ordered],
        other_columns=[_completion_columns(item) for item in ordered],
        has_baseline=baseline is not None,
        replicates=int(options["bootstrap"]),
        seed=int(options["seed"]),
    )
    reference = {
        name.removesuffix(REFERENCE_SUFFIX): record["point"]
        for name, record in ordered[0].scores["scores"].items()
        if name.endswith(REFERENCE_SUFFIX)
    }
    return ExperimentComparison(ordered, baseline, comparison, reference, [*notes, *_notes(ordered)])


def _completion_columns(experiment: Experiment) -> dict[str, Column]:
    """Return the overlaps of completed boxes by sentence."""
    rows = experiment.completions
    keys = [f"{sample_id} {index}" for sample_id, index in rows]
    return {
        COMPLETION + name: Column(
            dict(zip(keys, mean_counts([float(row[name]) for row in rows.values()]), strict=True)), mean_from_counts
        )
        for name in _OVERLAPS
    }


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


def footnotes(experiments: ExperimentComparison) -> list[str]:
    """Return the remarks below the tables."""
    comparison = experiments.comparison
    replicates, rounds = comparison.options["replicates"], comparison.options["rounds"]
    notes = [*experiments.notes, *comparison.notes]
    if experiments.baseline is not None and len(experiments.experiments) > 1:
        interval = f"its 95% interval from {replicates} paired bootstrap replicates" if replicates else "no interval"
        notes.append(
            "Everything in a row of a comparison is computed over the same n samples, those that both experiments have "
            f"scored: both scores, their difference with {interval}, and p of approximate randomization with {rounds} "
            "rounds."
        )
    notes.append(
        "Each experiment by itself, with 95% intervals: over its own n samples. Scores with different n are not "
        "comparable."
    )
    if any(name.startswith(COMPLETION) for name in comparison.scores):
        notes.append(f"{COMPLETION}*: over sentences with completed boxes, which are resampled one by one.")
    mentions = {name: format_cell(experiments.reference.get(name)) for name in (LATERAL_MENTIONS, COMPARISON_MENTIONS)}
    notes.append(
        f"{LATERAL_MENTIONS}: share of reports that mention a lateral view, by the expression of MAIRA-2, listing 6; "
        f"reference reports: {mentions[LATERAL_MENTIONS]}."
    )
    if COMPARISON_MENTIONS in comparison.scores:
        notes.append(
            f"{COMPARISON_MENTIONS}: share of reports that mention an earlier examination, as read by the judge's "
            f"model with our own prompt; reference reports: {mentions[COMPARISON_MENTIONS]}."
        )
    unavailable = {
        name: reason
        for experiment in experiments.experiments
        for name, reason in experiment.scores["unavailable"].items()
    }
    return [*notes, *(f"Not in the table: {name} ({reason})." for name, reason in unavailable.items())]


def write_comparison(
    experiments: ExperimentComparison,
    folder: Path,
    stem: str,
    title: str,
    settings: Mapping[str, Any],
    details: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Write STEM.json, STEM.csv (one row per score and experiment) and STEM.md, each atomically."""
    comparison = experiments.comparison
    by_name = {
        experiment.name: {
            **(details or {}).get(experiment.name, {}),
            "dropped": list(experiment.dropped),
            "scores": {name: asdict(contrasts[index]) for name, contrasts in comparison.scores.items()},
        }
        for index, experiment in enumerate(experiments.experiments)
    }
    baseline = {"base": experiments.baseline.name if experiments.baseline else None}
    record = {**settings, **baseline, "experiments": by_name, "reference": dict(experiments.reference)}
    write_json(folder / f"{stem}.json", record | {"notes": footnotes(experiments)})
    score_rows(comparison).write(folder / f"{stem}.csv")
    tables = [f"## {heading}\n\n{table.as_markdown()}" for heading, table in experiments.tables().items()]
    with open_atomic(folder / f"{stem}.md") as handle:
        handle.write("\n".join([f"# {title}\n", *tables, "\n\n".join(footnotes(experiments)) + "\n"]))
