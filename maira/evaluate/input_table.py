"""The figures of runs with and without some inputs side by side, as the paper's tables D.9 and D.10."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import isclose, isnan, nan
from pathlib import Path
from typing import Any, TypedDict

from maira.evaluate.inputs import InputRun
from radfact.files import read_drafts
from radfact.jsonl import open_atomic, read_json, write_json
from radfact.metrics.mentions import mentions_lateral
from radfact.report import Report
from radfact.sample import F1_PARTS
from radfact.stats import Summary, differences, summarise

LATERAL_MENTIONS = "lateral_mentions"


@dataclass(frozen=True)
class InputTable:
    """Figures by run, and by how much each run differs from the one with all inputs.

    Attributes:
        runs: in the order of the columns, the one with all inputs first.
        figures: by run and name; those that any run has a value for, in the same order in each.
        differences: by run, but for the first, and name; only for figures that are means over studies, or an F1.
        reference: figures that the reference reports have themselves.
        replicates: of the bootstrap.
        notes: what a reader must know beside the figures.
    """

    runs: Sequence[InputRun]
    figures: Mapping[str, Mapping[str, Summary]]
    differences: Mapping[str, Mapping[str, Summary]]
    reference: Mapping[str, Summary]
    replicates: int
    notes: Sequence[str]

    @property
    def rows(self) -> list[str]:
        """The names of the figures."""
        return list(self.figures[self.runs[0].name])


class _Draws(TypedDict):
    """What decides the bootstrap."""

    replicates: int
    seed: int


@dataclass(frozen=True)
class _Column:
    """One run: figures of the set by name, and values by name and `sample_id`, NaN where a study has none."""

    run: InputRun
    figures: Mapping[str, Summary]
    values: Mapping[str, Mapping[str, float]]


def compare_runs(runs: Sequence[InputRun], references: Mapping[str, Report], notes: Sequence[str] = ()) -> InputTable:
    """The table of runs that have been scored.

    Whatever figures the results folders hold are in it, and the share of the scored reports that mention a lateral
    view.

    Args:
        runs: the one with all inputs first.
        references: the reference reports by `sample_id`.
        notes: what is to be said of the studies.
    """
    options = read_json(runs[0].results / "run.json")["options"]
    draws = _Draws(replicates=int(options["bootstrap"]), seed=int(options["seed"]))
    columns = [_column(run, draws) for run in runs]
    named = dict.fromkeys(name for column in columns for name, one in column.figures.items() if one.point is not None)
    said = {LATERAL_MENTIONS: [float(mentions_lateral(references[key])) for key in runs[0].samples]}
    return InputTable(
        runs,
        {column.run.name: {name: column.figures.get(name, Summary(None)) for name in named} for column in columns},
        {column.run.name: _differences(column, columns[0], draws) for column in columns[1:]},
        summarise(said, **draws),
        draws["replicates"],
        [*notes, *_notes(runs)],
    )


def _column(run: InputRun, draws: _Draws) -> _Column:
    values = {
        name: {key: nan if row[name] is None else float(row[name]) for key, row in run.samples.items()}
        for name in run.scores["figures"]
        if name not in F1_PARTS and all(name in row for row in run.samples.values())
    }
    drafts = read_drafts(run.drafts)
    values[LATERAL_MENTIONS] = {key: float(mentions_lateral(drafts[key])) for key in run.samples}
    said = summarise({LATERAL_MENTIONS: list(values[LATERAL_MENTIONS].values())}, **draws)
    return _Column(run, {name: Summary(**one) for name, one in run.scores["figures"].items()} | said, values)


def _differences(column: _Column, base: _Column, draws: _Draws) -> dict[str, Summary]:
    """Paired differences over the studies that both runs have scored."""
    names = [
        name
        for name in column.values
        if name in base.values and all(_is_mean(one.figures[name], one.values[name]) for one in (column, base))
    ]
    shared = [key for key in column.run.samples if key in base.run.samples]
    ours, theirs = ({name: [one.values[name][key] for key in shared] for name in names} for one in (column, base))
    parts = {name: pair for name, pair in F1_PARTS.items() if set(pair) <= set(names)}
    found = differences(ours, theirs, f1=parts, **draws)
    return {
        name: replace(found[name], direction=figure.direction)
        for name, figure in base.figures.items()
        if name in found and found[name].point is not None
    }


def _is_mean(figure: Summary, values: Mapping[str, float]) -> bool:
    """Whether a set's figure is the mean of its samples', so that resampling these tells how sure it is."""
    known = [value for value in values.values() if not isnan(value)]
    if figure.point is None or not known:
        return figure.point is None and not known
    return isclose(figure.point, sum(known) / len(known), rel_tol=1e-9, abs_tol=1e-9)


def _notes(runs: Sequence[InputRun]) -> list[str]:
    judges = dict.fromkeys(str(run.scores["judge"].get("name")) for run in runs)
    notes = [f"Judge: {', '.join(judges)}."]
    notes += dict.fromkeys(str(run.scores["judge"]["note"]) for run in runs if run.scores["judge"].get("note"))
    notes += [
        f"{run.name}: {run.scores['counts']['left_out']} studies could not be scored."
        for run in runs
        if run.scores["counts"]["left_out"]
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


def lines_of(table: InputTable) -> tuple[list[str], list[list[str]], list[list[str]]]:
    """The table as texts: headings, rows of figures, and rows of differences (none for a figure without any).

    A row ends with the number of studies that have a value, one for all runs or one each.
    """
    names = [run.name for run in table.runs]
    values, gaps = [], []
    for row in table.rows:
        found = [table.figures[name][row] for name in names]
        lead = f"{row} (↓)" if found[0].direction == "lower" else row
        values.append([lead, *map(cell, found), _counts(found)])
        against = [table.differences[name].get(row) for name in names[1:]]
        if any(against):
            shown = [cell(one, signed=True) for one in against]
            gaps.append([lead, *shown, _counts([one for one in against if one is not None])])
    return ["figure", *names, "n"], values, gaps


def lines_of_run(table: InputTable, run: InputRun) -> tuple[list[str], list[list[str]]]:
    """One run as texts for a terminal of 80 columns: headings, and rows of figures with their differences.

    Args:
        table: with the run.
        run: the first has no differences.
    """
    gaps = table.differences.get(run.name)
    rows = []
    for name, figure in table.figures[run.name].items():
        lead = f"{name} (↓)" if figure.direction == "lower" else name
        gap = [] if gaps is None else [cell(gaps.get(name), signed=True)]
        rows.append([lead, cell(figure), *gap, str(figure.n)])
    return ["figure", "value", *([] if gaps is None else ["difference"]), "n"], rows


def _counts(figures: Sequence[Summary]) -> str:
    counts = [figure.n for figure in figures]
    return str(counts[0]) if len(set(counts)) == 1 else " / ".join(map(str, counts))


def footnotes(table: InputTable) -> list[str]:
    """What is said below the table."""
    interval = (
        f"Median and 95 % interval of {table.replicates} bootstrap replicates over studies."
        if table.replicates
        else "Without bootstrap: plain figures."
    )
    said = cell(table.reference.get(LATERAL_MENTIONS))
    return [
        *table.notes,
        interval,
        "A figure is over the studies for which the run has a value (n). Differences to the run with all inputs are "
        "paired: those of the figures on the same studies and the same resamples; their n have a value in both runs.",
        f"{LATERAL_MENTIONS}: share of reports that speak of a lateral view, by the paper's expression (listing 6); of "
        f"the reference reports {said}.",
        "Mentions of a comparison are not counted: the paper has a language model detect them, and no rule stands in.",
    ]


def write_table(table: InputTable, folder: Path, settings: Mapping[str, Any]) -> None:
    """Write `table.json`, `table.csv` (a line a figure, run and kind) and `table.md`, each whole or not at all.

    Args:
        table: to write.
        folder: to write to.
        settings: what decides the runs, for `table.json`.
    """
    runs = {
        run.name: {
            "dropped": list(run.dropped),
            "figures": _records(table.figures[run.name]),
            "differences": _records(table.differences.get(run.name, {})),
        }
        for run in table.runs
    }
    record = {**settings, "runs": runs, "reference": _records(table.reference), "notes": footnotes(table)}
    write_json(folder / "table.json", record)
    with open_atomic(folder / "table.csv") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(["figure", "run", "kind", "point", "median", "low", "high", "n"])
        for kind, found in (("value", table.figures), ("difference", table.differences)):
            for name, one in ((name, one) for name in table.rows for one in table.runs):
                if figure := found.get(one.name, {}).get(name):
                    ends = (figure.point, figure.median, figure.low, figure.high)
                    writer.writerow([name, one.name, kind, *("" if end is None else end for end in ends), figure.n])
    heads, values, gaps = lines_of(table)
    with open_atomic(folder / "table.md") as handle:
        handle.write(f"# Reports without some inputs\n\n{_markdown(heads, values)}\n")
        handle.write(f"## Differences to {heads[1]}\n\n{_markdown([heads[0], *heads[2:]], gaps)}\n")
        handle.write("\n\n".join(footnotes(table)) + "\n")


def _records(figures: Mapping[str, Summary]) -> dict[str, dict[str, Any]]:
    # That a report mentions a lateral view is neither good nor bad.
    neutral = {LATERAL_MENTIONS: {"direction": None}}
    return {name: asdict(one) | neutral.get(name, {}) for name, one in figures.items()}


def _markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
