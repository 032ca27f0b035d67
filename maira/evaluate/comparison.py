"""Compare the scores of several experiments, as in MAIRA-2, tables D.7 to D.10, over the samples that they share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from maira.evaluate.experiments import COMPARISON_MENTIONS, LATERAL_MENTIONS, Experiment
from radfact.errors import InputError
from radfact.io.csv_tables import write_csv
from radfact.io.jsonl import open_atomic, read_json, read_jsonl, write_json
from radfact.pages import plots
from radfact.pages.comparison_page import difference_table, with_interval
from radfact.pages.meta_page import Table, format_cell
from radfact.results.compare import SCORE_COLUMNS, Comparison, compare_systems
from radfact.results.display import score_label, words
from radfact.results.reader import iter_samples, read_scores
from radfact.results.schema import SampleRow
from radfact.results.systems import REFERENCE_SUFFIX, Column, System, pooled_functions, read_system
from radfact.statistics.correlation import Estimate
from radfact.statistics.significance import mean_counts, mean_from_counts

COMPLETION = "completion_"
"""Prefix of the scores of box completion."""
_OVERLAPS = ("precision", "recall", "iou")
MENTIONS = {
    LATERAL_MENTIONS: "a lateral view, by the expression of MAIRA-2, listing 6",
    COMPARISON_MENTIONS: "an earlier examination, as read by the judge's model with our own prompt",
}


def compare(
    experiments: Sequence[Experiment], baseline: Experiment | None = None, notes: Sequence[str] = ()
) -> Comparison:
    """Compare scored experiments by all scores of their results folders and of box completion, the baseline first."""
    ordered = sorted(experiments, key=lambda experiment: experiment != baseline)
    options = read_json(ordered[0].results / "run.json")["options"]
    functions = pooled_functions([name for name in options.get("metrics", "").split(",") if ":" in name])
    systems = [read_system(item.results, item.name, functions) for item in ordered]
    comparison = compare_systems(
        systems,
        other_columns=[_completion_columns(item) for item in ordered],
        has_baseline=baseline in experiments,
        replicates=int(options["bootstrap"]),
        seed=int(options["seed"]),
    )
    return replace(comparison, notes=[*notes, *_notes(ordered, systems, comparison)])


def tables_of(comparison: Comparison) -> dict[str, Table]:
    """Return the tables by title: each experiment next to the baseline, or all next to each other without one."""
    tables = {}
    for index in range(1, len(comparison.systems)) if _has_differences(comparison) else ():
        table = difference_table(comparison, index)
        # Without the verdict, which is for the page of `radfact compare`.
        title = f"{comparison.systems[index]} compared with {comparison.systems[0]}"
        tables[title] = table.select(table.headings[:-1])
    return tables or {"Each experiment by itself": _own_table(comparison)}


def _own_table(comparison: Comparison) -> Table:
    rows = []
    for name, contrasts in comparison.scores.items():
        label = score_label(name, contrasts[0].summary.direction, comparison.units.get(name))
        summaries = [contrast.summary for contrast in contrasts]
        rows.append([label, *((value := with_interval(own)) and f"{value} (n {own.n})" for own in summaries)])
    return Table(["Score", *comparison.systems], rows)


def write_comparison(
    comparison: Comparison, experiments: Sequence[Experiment], file: Path, title: str, settings: Mapping[str, Any]
) -> None:
    """Write FILE.json, with the settings, FILE.csv (one row per score and experiment), FILE.md and the plot."""
    by_name = {}
    for index, experiment in enumerate(experiments):
        scores = {name: asdict(contrasts[index]) for name, contrasts in comparison.scores.items()}
        by_name[experiment.name] = experiment.record() | {"scores": scores}
    references, notes = reference_scores(experiments[0]), [*comparison.notes]
    chart = ["## Values with 95% intervals", f"![One row per score]({file.name}.png)"]
    try:
        _draw(comparison, references, file)
    except InputError as error:
        chart, notes = [], [*notes, f"Without plots: {error}"]
    record = {**settings, "experiments": by_name, "reference": references}
    write_json(file.with_suffix(".json"), {**record, "notes": notes})
    write_csv(file.with_suffix(".csv"), SCORE_COLUMNS, comparison.score_rows())
    tables = [f"## {heading}\n\n{table.as_markdown()}" for heading, table in tables_of(comparison).items()]
    with open_atomic(file.with_suffix(".md")) as handle:
        handle.write("\n".join([f"# {title}\n", *tables, "\n\n".join([*chart, *notes]) + "\n"]))


def _draw(comparison: Comparison, references: Mapping[str, float | None], file: Path) -> None:
    """Plot main scores, precision and recall of RadFact, mentions and box completion (MAIRA-2, figures 3 and 5)."""
    shown = {*comparison.main_scores, *MENTIONS, f"{COMPLETION}iou"}
    shown |= {f"{part}_{side}" for part in ("logical", "grounding", "spatial") for side in ("precision", "recall")}
    panels: dict[str, list[tuple[str, str, Estimate]]] = defaultdict(list)
    for name in (name for name in comparison.scores if name in shown):
        summaries = [contrast.summary for contrast in comparison.scores[name]]
        label = score_label(words(name), summaries[0].direction, None)
        panel = panels[comparison.units.get(name, "score")]
        for system, own in zip(comparison.systems, summaries, strict=True):
            panel.append((label, system, Estimate(own.point, own.low, own.high, own.n)))
        if name in references:
            panel.append((label, "reference reports", Estimate(references[name])))
    plots.forest(panels, file)


def reference_scores(experiment: Experiment) -> dict[str, float | None]:
    """Return the scores of the reference reports themselves; None for those without a value."""
    scores, suffix = read_scores(experiment.results).scores, REFERENCE_SUFFIX
    return {name.removesuffix(suffix): record.point for name, record in scores.items() if name.endswith(suffix)}


def _has_differences(comparison: Comparison) -> bool:
    return any(contrast.difference for contrasts in comparison.scores.values() for contrast in contrasts)


def _completion_columns(experiment: Experiment) -> dict[str, Column]:
    """Return the overlaps of completed boxes by sentence."""
    rows = [row for _, row in read_jsonl(experiment.boxes)] if experiment.boxes.is_file() else []
    compared = {f"{row['sample_id']} {row['index']}": row for row in rows if row["iou"] is not None}
    columns = {name: mean_counts([float(row[name]) for row in compared.values()]) for name in _OVERLAPS}
    return {
        COMPLETION + name: Column(dict(zip(compared, counts, strict=True)), mean_from_counts)
        for name, counts in columns.items()
    }


def _notes(experiments: Sequence[Experiment], systems: Sequence[System], comparison: Comparison) -> Iterator[str]:
    judges: list[Any] = [system.scores.judge for system in systems]
    yield f"Judge: {', '.join(dict.fromkeys(str(judge.get('name')) for judge in judges))}."
    yield from dict.fromkeys(str(judge["note"]) for judge in judges if judge.get("note"))
    for experiment in experiments:
        if count := sum(row.failure is not None for row in iter_samples(experiment.results, SampleRow)):
            yield f"{experiment.name}: {count} studies could not be scored."
    yield from comparison.notes
    yield "Values with 95% intervals: over all n samples of an experiment. Values with different n are not comparable."
    replicates, rounds = comparison.options["replicates"], comparison.options["rounds"]
    if _has_differences(comparison):
        interval = f"a 95% interval from {replicates} paired bootstrap replicates" if replicates else "no interval"
        statistics = f"{interval} and p of approximate randomization with {rounds} rounds"
        yield f"A difference has {statistics}, over the n samples that both experiments have scored."
    reference = reference_scores(experiments[0])
    if any(name.startswith(COMPLETION) for name in comparison.scores):
        yield f"{COMPLETION}*: over sentences with completed boxes, which are resampled one by one."
    for name, mentioned in MENTIONS.items():
        if name in comparison.scores:
            known = format_cell(reference.get(name))
            yield f"{name}: share of reports that mention {mentioned}; reference reports: {known}."
    unavailable = {name: reason for system in systems for name, reason in system.scores.unavailable.items()}
    yield from (f"Not in the table: {name} ({reason})." for name, reason in unavailable.items())
