"""Compare the scores of several experiments, as in MAIRA-2, tables D.7 to D.10, over the samples that they share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from maira.evaluate.experiments import Experiment
from maira.evaluate.scoring import COMPARISON_MENTIONS, LATERAL_MENTIONS
from radfact.io.jsonl import open_atomic, read_json, read_jsonl, write_json
from radfact.pages.comparison_page import difference_table, own_table, score_rows
from radfact.pages.meta_page import Table, format_cell
from radfact.results.compare import Comparison, compare_systems
from radfact.results.reader import iter_samples
from radfact.results.schema import SampleRow
from radfact.results.systems import REFERENCE_SUFFIX, Column, System, pooled_functions, read_system
from radfact.statistics.significance import mean_counts, mean_from_counts

COMPLETION = "completion_"
"""Prefix of the scores of box completion."""
_OVERLAPS = ("precision", "recall", "iou")


@dataclass(frozen=True)
class ExperimentComparison:
    """Scores of several experiments, and their differences to a baseline.

    Attributes:
        experiments: experiments; the baseline is the first one.
        has_baseline: whether the others are compared with the first one.
        comparison: scores and differences; its systems are the experiments.
        reference: scores of the reference reports themselves; None for those without a value.
        notes: remarks below the tables.
    """

    experiments: Sequence[Experiment]
    has_baseline: bool
    comparison: Comparison
    reference: Mapping[str, float | None]
    notes: Sequence[str]

    def tables(self) -> dict[str, Table]:
        """Return the tables by title: each experiment next to the baseline, and each by itself."""
        tables = {}
        baseline, *others = self.comparison.systems
        for index, name in enumerate(others if self.has_baseline else (), start=1):
            table = difference_table(self.comparison, index)
            # Without the verdict, which is for the page of `radfact compare`.
            tables[f"{name} compared with {baseline}"] = table.select(table.headings[:-1])
        return tables | {"Each experiment by itself": own_table(self.comparison)}

    def write(
        self, folder: Path, stem: str, title: str, settings: Mapping[str, Any], details: Mapping[str, Any]
    ) -> None:
        """Write STEM.json, STEM.csv (one row per score and experiment) and STEM.md.

        `settings` are further fields of the file, `details` those of each experiment.
        """
        by_name = {
            experiment.name: {
                **details.get(experiment.name, {}),
                "dropped": list(experiment.dropped),
                "scores": {name: asdict(contrasts[index]) for name, contrasts in self.comparison.scores.items()},
            }
            for index, experiment in enumerate(self.experiments)
        }
        baseline = self.experiments[0].name if self.has_baseline else None
        record = {**settings, "base": baseline, "experiments": by_name, "reference": dict(self.reference)}
        write_json(folder / f"{stem}.json", record | {"notes": self.notes})
        score_rows(self.comparison).write(folder / f"{stem}.csv")
        tables = [f"## {heading}\n\n{table.as_markdown()}" for heading, table in self.tables().items()]
        with open_atomic(folder / f"{stem}.md") as handle:
            handle.write("\n".join([f"# {title}\n", *tables, "\n\n".join(self.notes) + "\n"]))


def compare(
    experiments: Sequence[Experiment], baseline: Experiment | None = None, notes: Sequence[str] = ()
) -> ExperimentComparison:
    """Compare scored experiments by all scores of their results folders and of box completion.

    Without the baseline among them, there are no differences.
    """
    ordered = sorted(experiments, key=lambda experiment: experiment != baseline)
    has_baseline = baseline in experiments
    options = read_json(ordered[0].results / "run.json")["options"]
    functions = pooled_functions([name for name in options.get("metrics", "").split(",") if ":" in name])
    systems = [read_system(item.results, item.name, functions) for item in ordered]
    comparison = compare_systems(
        systems,
        other_columns=[_completion_columns(item) for item in ordered],
        has_baseline=has_baseline,
        replicates=int(options["bootstrap"]),
        seed=int(options["seed"]),
    )
    reference = {
        name.removesuffix(REFERENCE_SUFFIX): record.point
        for name, record in systems[0].scores.scores.items()
        if name.endswith(REFERENCE_SUFFIX)
    }
    has_differences = has_baseline and len(ordered) > 1
    excluded = {
        item.name: sum(row.failure is not None for row in iter_samples(item.results, SampleRow)) for item in ordered
    }
    all_notes = [*notes, *_notes(systems, excluded, comparison, reference, has_differences=has_differences)]
    return ExperimentComparison(ordered, has_baseline, comparison, reference, all_notes)


def _completion_columns(experiment: Experiment) -> dict[str, Column]:
    """Return the overlaps of completed boxes by sentence."""
    rows = [row for _, row in read_jsonl(experiment.boxes)] if experiment.boxes.is_file() else []
    compared = {f"{row['sample_id']} {row['index']}": row for row in rows if row["iou"] is not None}
    columns = {name: mean_counts([float(row[name]) for row in compared.values()]) for name in _OVERLAPS}
    return {
        COMPLETION + name: Column(dict(zip(compared, counts, strict=True)), mean_from_counts)
        for name, counts in columns.items()
    }


def _notes(
    systems: Sequence[System],
    excluded: Mapping[str, int],
    comparison: Comparison,
    reference: Mapping[str, float | None],
    *,
    has_differences: bool,
) -> Iterator[str]:
    judges: list[Any] = [system.scores.judge for system in systems]
    yield f"Judge: {', '.join(dict.fromkeys(str(judge.get('name')) for judge in judges))}."
    yield from dict.fromkeys(str(judge["note"]) for judge in judges if judge.get("note"))
    yield from (f"{name}: {count} studies could not be scored." for name, count in excluded.items() if count)
    yield from comparison.notes
    replicates, rounds = comparison.options["replicates"], comparison.options["rounds"]
    if has_differences:
        interval = f"its 95% interval from {replicates} paired bootstrap replicates" if replicates else "no interval"
        yield (
            "Everything in a row of a comparison is computed over the same n samples, those that both experiments have "
            f"scored: both scores, their difference with {interval}, and p of approximate randomization with {rounds} "
            "rounds."
        )
    yield (
        "Each experiment by itself, with 95% intervals: over its own n samples. Scores with different n are not "
        "comparable."
    )
    if any(name.startswith(COMPLETION) for name in comparison.scores):
        yield f"{COMPLETION}*: over sentences with completed boxes, which are resampled one by one."
    yield (
        f"{LATERAL_MENTIONS}: share of reports that mention a lateral view, by the expression of MAIRA-2, listing 6; "
        f"reference reports: {format_cell(reference.get(LATERAL_MENTIONS))}."
    )
    if COMPARISON_MENTIONS in comparison.scores:
        yield (
            f"{COMPARISON_MENTIONS}: share of reports that mention an earlier examination, as read by the judge's "
            f"model with our own prompt; reference reports: {format_cell(reference.get(COMPARISON_MENTIONS))}."
        )
    unavailable = {name: reason for system in systems for name, reason in system.scores.unavailable.items()}
    yield from (f"Not in the table: {name} ({reason})." for name, reason in unavailable.items())
