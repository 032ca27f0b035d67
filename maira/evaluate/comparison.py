"""Compare the scores of several experiments, as in MAIRA-2, tables D.7 to D.10, over the samples that they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from maira.evaluate.experiments import COMPARISON_MENTIONS, LATERAL_MENTIONS, Experiment
from radfact.html.comparison_page import difference_table, own_table, score_rows
from radfact.html.meta_page import Table, format_cell
from radfact.io.jsonl import open_atomic, read_json, write_json
from radfact.results.compare import Comparison as SystemComparison
from radfact.results.compare import compare_systems
from radfact.results.systems import Column, System, pooled_functions, read_system
from radfact.statistics.significance import mean_counts, mean_from_counts

_REFERENCE_SUFFIX = "_reference"
"""Suffix of scores of the reference reports themselves."""
COMPLETION = "completion_"
"""Prefix of the scores of box completion."""
_OVERLAPS = ("precision", "recall", "iou")


@dataclass(frozen=True)
class Comparison:
    """Scores of several experiments, and their differences to a base.

    Attributes:
        experiments: experiments; the base is the first one.
        base: experiment that the others are compared with; None if it has no scores.
        systems: scores and differences; its systems are the experiments.
        reference: scores of the reference reports themselves; None for those without a value.
        notes: remarks for the reader.
    """

    experiments: Sequence[Experiment]
    base: Experiment | None
    systems: SystemComparison
    reference: Mapping[str, float | None]
    notes: Sequence[str]

    def tables(self) -> dict[str, Table]:
        """Return the tables by title: each experiment next to the base, and each by itself."""
        others = [] if self.base is None else range(1, len(self.experiments))
        tables = {
            f"{self.systems.systems[index]} compared with {self.systems.systems[0]}": difference_table(
                self.systems, index
            )
            for index in others
        }
        # Without the verdict, which is for the page of `radfact compare`.
        tables = {title: table.select(table.headings[:-1]) for title, table in tables.items()}
        return tables | {"Each experiment by itself": own_table(self.systems)}


def compare(experiments: Sequence[Experiment], notes: Sequence[str] = (), base: Experiment | None = None) -> Comparison:
    """Compare scored experiments by all scores of their results folders and of box completion.

    Args:
        experiments: at least one.
        notes: remarks about the studies.
        base: experiment that the others are compared with, if any.
    """
    ordered = sorted(experiments, key=lambda experiment: base is not None and experiment.name != base.name)
    options = read_json(ordered[0].results / "run.json")["options"]
    functions = pooled_functions([name for name in options.get("metrics", "").split(",") if ":" in name])
    systems = compare_systems(
        [_without_references(read_system(item.results, item.name, functions)) for item in ordered],
        other_columns=[_completion_columns(item) for item in ordered],
        has_baseline=base is not None,
        replicates=int(options["bootstrap"]),
        seed=int(options["seed"]),
    )
    reference = {
        name.removesuffix(_REFERENCE_SUFFIX): record["point"]
        for name, record in ordered[0].scores["scores"].items()
        if name.endswith(_REFERENCE_SUFFIX)
    }
    return Comparison(ordered, base, systems, reference, [*notes, *_notes(ordered)])


def _without_references(system: System) -> System:
    """Return a system without the scores of reference reports, which are equal in all experiments."""
    names = [name for name in system.directions if not name.endswith(_REFERENCE_SUFFIX)]
    return replace(
        system,
        directions={name: system.directions[name] for name in names},
        columns={name: system.columns[name] for name in names if name in system.columns},
    )


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


def footnotes(comparison: Comparison) -> list[str]:
    """Return the remarks below the tables."""
    systems = comparison.systems
    replicates, rounds = systems.options["replicates"], systems.options["rounds"]
    notes = [*comparison.notes, *systems.notes]
    if comparison.base is not None and len(comparison.experiments) > 1:
        interval = f"its 95 % interval from {replicates} paired bootstrap replicates" if replicates else "no interval"
        notes.append(
            "Everything in a row of a comparison is computed over the same n samples, those that both experiments have "
            f"scored: both scores, their difference with {interval}, and p of approximate randomization with {rounds} "
            "rounds."
        )
    notes.append(
        "Each experiment by itself, with 95 % intervals: over its own n samples. Scores with different n are not "
        "comparable."
    )
    if any(name.startswith(COMPLETION) for name in systems.scores):
        notes.append(f"{COMPLETION}*: over sentences with completed boxes, which are resampled one by one.")
    mentions = {name: format_cell(comparison.reference.get(name)) for name in (LATERAL_MENTIONS, COMPARISON_MENTIONS)}
    notes.append(
        f"{LATERAL_MENTIONS}: share of reports that mention a lateral view, by the expression of MAIRA-2, listing 6; "
        f"reference reports: {mentions[LATERAL_MENTIONS]}."
    )
    if COMPARISON_MENTIONS in systems.scores:
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
    """Write STEM.json, STEM.csv (one row per score and experiment) and STEM.md, each atomically.

    Args:
        comparison: comparison to write.
        folder: folder to write.
        stem: name of the files.
        title: title of the page.
        settings: settings of all experiments, for the JSON file.
        details: settings by experiment, for the JSON file.
    """
    systems = comparison.systems
    experiments = {
        experiment.name: {
            **(details or {}).get(experiment.name, {}),
            "dropped": list(experiment.dropped),
            "scores": {name: asdict(contrasts[index]) for name, contrasts in systems.scores.items()},
        }
        for index, experiment in enumerate(comparison.experiments)
    }
    base = {"base": comparison.base.name if comparison.base else None}
    record = {**settings, **base, "experiments": experiments, "reference": dict(comparison.reference)}
    write_json(folder / f"{stem}.json", record | {"notes": footnotes(comparison)})
    score_rows(systems).write(folder / f"{stem}.csv")
    tables = [f"## {heading}\n\n{table.as_markdown()}" for heading, table in comparison.tables().items()]
    with open_atomic(folder / f"{stem}.md") as handle:
        handle.write("\n".join([f"# {title}\n", *tables, "\n\n".join(footnotes(comparison)) + "\n"]))
