"""The figures of several experiments side by side, as the paper's tables D.7 to D.10."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

from maira.evaluate.experiments import COMPARISON_MENTIONS, LATERAL_MENTIONS, Experiment
from radfact.io.jsonl import open_atomic, read_json, write_json
from radfact.results.systems import Column, pooled_functions, read_system
from radfact.statistics.bootstrap import CountsFunction, Summary, summarize
from radfact.statistics.significance import mean_counts, mean_from_counts, paired_difference

_OF_REFERENCES = "_reference"
"""What the names of figures end with that the reference reports have themselves."""
COMPLETION = "completion_"
"""What the names of the figures of box completion begin with."""
_BOXES = ("grounding_", "spatial_", COMPLETION)
"""What the names of figures begin with that are about boxes, which the paper sets apart from those of the text."""
_OVERLAPS = ("precision", "recall", "iou")


@dataclass(frozen=True)
class Comparison:
    """Figures by experiment, and by how much each differs from the one that they are compared with.

    Attributes:
        experiments: in the order of the rows.
        base: what the others are compared with; None where that has no figures.
        figures: by experiment and name; those that any experiment has a value for, in the same order in each.
        differences: by experiment, but for the base, and name; only for figures that both can be resampled for.
        reference: figures that the reference reports have themselves.
        replicates: of the bootstrap.
        notes: what a reader must know beside the figures.
    """

    experiments: Sequence[Experiment]
    base: Experiment | None
    figures: Mapping[str, Mapping[str, Summary]]
    differences: Mapping[str, Mapping[str, Summary]]
    reference: Mapping[str, Summary]
    replicates: int
    notes: Sequence[str]

    @property
    def names(self) -> list[str]:
        """The names of the figures."""
        return list(self.figures[self.experiments[0].name])


class _Draws(TypedDict):
    """What decides the bootstrap."""

    replicates: int
    seed: int


@dataclass(frozen=True)
class _Row:
    """One experiment: figures of the set by name, and what studies or phrases add to each."""

    experiment: Experiment
    figures: Mapping[str, Summary]
    columns: Mapping[str, Column]


def compare(experiments: Sequence[Experiment], notes: Sequence[str] = (), base: Experiment | None = None) -> Comparison:
    """The table of experiments that have been scored.

    Whatever figures the results folders hold are in it, and precision, recall and IoU of box completion where there is
    any.

    Args:
        experiments: one at least.
        notes: what is to be said of the studies.
        base: which of the experiments the others are compared with, if any.
    """
    options = read_json(experiments[0].results / "run.json")["options"]
    draws = _Draws(replicates=int(options["bootstrap"]), seed=int(options["seed"]))
    asked = read_json(experiments[0].metrics / "run.json")["options"].get("metrics", "")
    functions = pooled_functions([name for name in asked.split(",") if ":" in name])
    rows = {one.name: _row(one, functions, draws) for one in experiments}
    named = dict.fromkeys(n for row in rows.values() for n, one in row.figures.items() if one.point is not None)
    shown = [name for name in named if not name.endswith(_OF_REFERENCES)]
    others = [row for row in rows.values() if base is not None and row.experiment.name != base.name]
    return Comparison(
        experiments,
        base,
        {name: {figure: row.figures.get(figure, Summary(None)) for figure in shown} for name, row in rows.items()},
        {row.experiment.name: _differences(row, rows[base.name], draws) for row in others} if base else {},
        {
            name.removesuffix(_OF_REFERENCES): one
            for name, one in rows[experiments[0].name].figures.items()
            if name.endswith(_OF_REFERENCES)
        },
        draws["replicates"],
        [*notes, *_notes(experiments)],
    )


def _row(experiment: Experiment, functions: Mapping[str, Mapping[str, CountsFunction]], draws: _Draws) -> _Row:
    columns = {
        name: column
        for folder in (experiment.results, experiment.metrics)
        for name, column in read_system(folder, experiment.name, functions).columns.items()
    }
    found = {**experiment.scores["scores"], **experiment.measured["scores"]}
    phrases = experiment.completions
    completed = {COMPLETION + name: [float(row[name]) for row in phrases.values()] for name in _OVERLAPS}
    keys = [f"{sample_id} {index}" for sample_id, index in phrases]
    columns |= {
        name: Column(dict(zip(keys, mean_counts(values), strict=True)), mean_from_counts)
        for name, values in completed.items()
    }
    figures = {name: Summary(**one) for name, one in found.items()} | summarize(completed, **draws)
    return _Row(experiment, figures, columns)


def _differences(row: _Row, base: _Row, draws: _Draws) -> dict[str, Summary]:
    """Paired differences over the studies that both experiments have scored, and over the phrases of both."""
    found: dict[str, Summary] = {}
    for name, figure in base.figures.items():
        ours, theirs = row.columns.get(name), base.columns.get(name)
        shared = [key for key in ours.counts if key in theirs.counts] if ours and theirs else []
        if ours and theirs and shared and not name.endswith(_OF_REFERENCES):
            left, right, how = ours.of(shared), theirs.of(shared), {name: ours.value}
            gap = paired_difference(left, right, how, has_value=ours.has_value, pairing=ours.pairing, **draws)[name]
            if gap.point is not None:
                found[name] = replace(gap, direction=figure.direction)
    return found


def _notes(experiments: Sequence[Experiment]) -> list[str]:
    judges = [one.scores["judge"] for one in experiments]
    notes = [f"Judge: {', '.join(dict.fromkeys(str(judge.get('name')) for judge in judges))}."]
    notes += dict.fromkeys(str(judge["note"]) for judge in judges if judge.get("note"))
    notes += [
        f"{one.name}: {one.scores['counts']['excluded']} studies could not be scored."
        for one in experiments
        if one.scores["counts"]["excluded"]
    ]
    return notes


def cell(figure: Summary | None, *, signed: bool = False) -> str:
    """Median and 95 % interval as the paper writes them, or the point where nothing was resampled."""
    if figure is None or figure.point is None:
        return "-"
    form = "+.3f" if signed else ".3f"
    if figure.low is None or figure.high is None or figure.median is None:
        return format(figure.point, form)
    return f"{figure.median:{form}} [{figure.low:{form}}, {figure.high:{form}}]"


def lines_of(table: Comparison, experiment: Experiment) -> tuple[list[str], list[list[str]]]:
    """One experiment as texts for a terminal of 80 columns: headings, and a row a figure with its difference, if any.

    Args:
        table: with the experiment.
        experiment: one of its rows.
    """
    gaps = table.differences.get(experiment.name)
    rows = []
    for name, figure in table.figures[experiment.name].items():
        gap = [] if gaps is None else [cell(gaps.get(name), signed=True)]
        rows.append([_heading(name, figure), cell(figure), *gap, str(figure.n)])
    return ["figure", "value", *([] if gaps is None else ["difference"]), "n"], rows


def footnotes(table: Comparison) -> list[str]:
    """What is said below the table."""
    has_boxes = any(name.startswith(COMPLETION) for name in table.names)
    drawn = "studies, and over phrases for box completion" if has_boxes else "studies"
    interval = (
        f"Median and 95 % interval of {table.replicates} bootstrap replicates over {drawn}."
        if table.replicates
        else "Without bootstrap: plain figures."
    )
    paired = (
        f" Differences to {table.base.name} are paired: both are resampled alike, and only what has a value in both "
        "counts (n)."
        if table.base and table.differences
        else ""
    )
    said = {name: cell(table.reference.get(name)) for name in (LATERAL_MENTIONS, COMPARISON_MENTIONS)}
    asked = (
        [
            f"{COMPARISON_MENTIONS}: share of reports that speak of an earlier examination, as the judge's model reads "
            f"them by a prompt of our own; of the reference reports {said[COMPARISON_MENTIONS]}."
        ]
        if COMPARISON_MENTIONS in table.names
        else []
    )
    missing = {name: why for one in table.experiments for name, why in one.measured["unavailable"].items()}
    return [
        *table.notes,
        interval,
        f"A figure is over the studies for which the experiment has a value (n).{paired}",
        f"{LATERAL_MENTIONS}: share of reports that speak of a lateral view, by the paper's expression (listing 6); of "
        f"the reference reports {said[LATERAL_MENTIONS]}.",
        *asked,
        *(f"Not in the table: {name} ({why})." for name, why in missing.items()),
    ]


def write_comparison(
    table: Comparison,
    folder: Path,
    stem: str,
    title: str,
    settings: Mapping[str, Any],
    about: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Write STEM.json, STEM.csv (a line a figure, experiment and kind) and STEM.md, each whole or not at all.

    Args:
        table: to write.
        folder: to write to.
        stem: name of the files.
        title: of the page.
        settings: what decides all experiments, for the JSON file.
        about: what decides each, by name, for the same.
    """
    experiments = {
        one.name: {
            **(about or {}).get(one.name, {}),
            "dropped": list(one.dropped),
            "figures": _records(table.figures[one.name]),
            "differences": _records(table.differences.get(one.name, {})),
        }
        for one in table.experiments
    }
    base = {"base": table.base.name if table.base else None}
    record = {**settings, **base, "experiments": experiments, "reference": _records(table.reference)}
    write_json(folder / f"{stem}.json", record | {"notes": footnotes(table)})
    with open_atomic(folder / f"{stem}.csv") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(["figure", "experiment", "kind", "point", "median", "low", "high", "n"])
        for kind, found in (("value", table.figures), ("difference", table.differences)):
            for name, one in ((name, one) for name in table.names for one in table.experiments):
                if figure := found.get(one.name, {}).get(name):
                    ends = (figure.point, figure.median, figure.low, figure.high)
                    writer.writerow([name, one.name, kind, *("" if end is None else end for end in ends), figure.n])
    with open_atomic(folder / f"{stem}.md") as handle:
        handle.write("\n".join([f"# {title}\n", *_pages(table), "\n\n".join(footnotes(table)) + "\n"]))


def _records(figures: Mapping[str, Summary]) -> dict[str, dict[str, Any]]:
    return {name: asdict(one) for name, one in figures.items()}


def _pages(table: Comparison) -> Iterator[str]:
    """The tables of figures, of differences and of counts, a row an experiment, those of boxes apart."""
    yield from _tables(table.figures, table.names, cell)
    if table.base and table.differences:
        yield f"## Differences to {table.base.name}\n"
        yield from _tables(table.differences, table.names, _signed)
    yield "## n\n"
    yield from _tables(table.figures, table.names, _count)


def _tables(
    found: Mapping[str, Mapping[str, Summary]], names: Sequence[str], show: Callable[[Summary | None], str]
) -> Iterator[str]:
    """Tables in Markdown; figures that no experiment has are left out."""
    had = {name: next((of[name] for of in found.values() if name in of), None) for name in names}
    for is_boxes in (False, True):
        kept = {n: one for n, one in had.items() if one is not None and n.startswith(_BOXES) == is_boxes}
        if kept:
            lines = [["experiment", *(_heading(name, one) for name, one in kept.items())]]
            lines += [["---", *["---:"] * len(kept)]]
            lines += [[name, *(show(of.get(figure)) for figure in kept)] for name, of in found.items()]
            yield "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _heading(name: str, figure: Summary) -> str:
    return f"{name} (↓)" if figure.direction == "lower" else name


def _signed(figure: Summary | None) -> str:
    return cell(figure, signed=True)


def _count(figure: Summary | None) -> str:
    return str(figure.n if figure else 0)
