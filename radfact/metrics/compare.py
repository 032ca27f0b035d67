"""Systems side by side: the figures of several results folders on the samples that they share, and what differs."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from radfact.errors import InputError
from radfact.jsonl import open_atomic, read_jsonl, write_json
from radfact.metrics.folder import read_kept
from radfact.metrics.metric import Counts
from radfact.metrics.registry import entries
from radfact.page_markup import STATIC, assemble, words
from radfact.report import normalised_text
from radfact.results import read_sample_figures, read_scores
from radfact.sample import F1_PARTS
from radfact.significance import (
    as_counts,
    difference_of_counts,
    f1_counts,
    mean_of,
    randomisation_test,
    set_f1,
)
from radfact.stats import Direction, Summary, summarise_counts


@dataclass(frozen=True, slots=True)
class Column:
    """One figure of one system: counts by `sample_id`, and the function of their sum."""

    counts: Mapping[str, Counts]
    value: Callable[[Counts], float]

    def of(self, sample_ids: Sequence[str]) -> Counts:
        """(samples, k)."""
        return np.array([self.counts[key] for key in sample_ids], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class System:
    """What a results folder holds.

    Attributes:
        name: of the folder.
        sample_ids: in its order.
        directions: of its figures.
        columns: by figure; one whose metric is not known here has none.
        references: the text of each reference, normalised.
    """

    name: str
    sample_ids: Sequence[str]
    directions: Mapping[str, Direction]
    columns: Mapping[str, Column]
    references: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Contrast:
    """One figure of a system beside that of the first.

    Attributes:
        summary: of the system's own samples among the shared ones.
        difference: to the first system, paired, over samples that both have scored; None for the first itself.
        p: of the randomisation test of that difference.
    """

    summary: Summary
    difference: Summary | None = None
    p: float | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Systems side by side.

    Attributes:
        systems: their names, the one that the others are compared with first.
        shared: number of samples that all have; the only ones that count here.
        own: number of samples of each.
        figures: by name, a contrast a system.
        notes: what a reader must know.
        options: of the bootstrap and the test.
    """

    systems: Sequence[str]
    shared: int
    own: Sequence[int]
    figures: Mapping[str, Sequence[Contrast]]
    notes: Sequence[str]
    options: Mapping[str, int]


def compare(folders: Sequence[Path], *, replicates: int = 500, rounds: int = 1000, seed: int = 42) -> Comparison:
    """Compare the first of some results folders with the others, on the samples and figures that all have.

    Args:
        folders: two or more, of `radfact evaluate` or `radfact score`.
        replicates: of the bootstrap, which resamples two systems alike.
        rounds: of approximate randomisation, p = (k + 1) / (rounds + 1).
        seed: of both.

    Raises:
        InputError: a folder is not finished, or they have no sample or no figure in common.
    """
    if len(folders) < 2:
        raise InputError("expected two or more results folders to compare")
    systems = [read_system(Path(folder), name) for folder, name in zip(folders, _names(folders), strict=True)]
    first = systems[0]
    everywhere = set(first.sample_ids).intersection(*(one.sample_ids for one in systems[1:]))
    shared = [key for key in first.sample_ids if key in everywhere]
    names = [name for name in first.columns if all(name in one.columns for one in systems)]
    if not shared or not names:
        raise InputError(f"the results have no {'figure' if shared else 'sample'} in common", file=folders[1])
    settings = {"replicates": replicates, "seed": seed}
    figures = {}
    for name in names:
        value = first.columns[name].value
        tables = [one.columns[name].of(shared) for one in systems]
        points = [summarise_counts(table, {name: value}, **settings)[name] for table in tables]
        direction = first.directions[name]
        contrasts = [Contrast(replace(points[0], direction=direction))]
        for table, point in zip(tables[1:], points[1:], strict=True):
            gap = difference_of_counts(table, tables[0], {name: value}, **settings)[name]
            p = randomisation_test(table, tables[0], {name: value}, rounds=rounds, seed=seed)[name]
            contrasts.append(Contrast(replace(point, direction=direction), replace(gap, direction=direction), p))
        figures[name] = contrasts
    return Comparison(
        [one.name for one in systems],
        len(shared),
        [len(one.sample_ids) for one in systems],
        figures,
        _notes(systems, shared, names),
        {**settings, "rounds": rounds},
    )


def read_system(folder: Path, name: str) -> System:
    """The figures of a results folder, ready to be resampled.

    Raises:
        InputError: it is not finished, or a file holds something else.
    """
    scores, samples = read_scores(folder), read_sample_figures(folder)
    rows, directions = samples.rows, samples.directions
    columns = _pooled(folder, scores.metrics, directions)
    pooled_elsewhere = {figure for metric in scores.metrics for figure in _pooled_names(folder, metric)}
    for figure in directions:
        if figure in F1_PARTS and all(part in directions for part in F1_PARTS[figure]):
            parts = np.array([[row.get(part, math.nan) for part in F1_PARTS[figure]] for row in rows.values()])
            columns[figure] = Column(dict(zip(rows, f1_counts(parts), strict=True)), set_f1)
        elif figure not in pooled_elsewhere and all(figure in row for row in rows.values()):
            counts = as_counts([row[figure] for row in rows.values()])
            columns[figure] = Column(dict(zip(rows, counts, strict=True)), mean_of)
    ordered = {figure: columns[figure] for figure in directions if figure in columns}
    return System(name, list(rows), directions, ordered, _references(folder))


def _pooled(folder: Path, metrics: Mapping[str, Any], wanted: Mapping[str, Direction]) -> dict[str, Column]:
    columns: dict[str, Column] = {}
    for metric in metrics:
        kept = read_kept(folder, metric)
        functions = getattr(entries()[metric].load(), "pooled", {}) if metric in entries() else {}
        if kept is None:
            continue
        for place, names in enumerate(kept.record["pooled"]):
            known = [name for name in names if name in functions and name in wanted]
            if known:
                table = kept.counts(place)
                counts = dict(zip(kept.sample_ids, table, strict=True))
                columns |= {name: Column(counts, functions[name]) for name in known}
    return columns


def _pooled_names(folder: Path, metric: str) -> list[str]:
    kept = read_kept(folder, metric)
    return [] if kept is None else [name for names in kept.record["pooled"] for name in names]


def _references(folder: Path) -> dict[str, str]:
    path = folder / "sentences.jsonl"
    texts: dict[str, str] = {}
    for _, row in read_jsonl(path) if path.is_file() else ():
        if row.get("side") == "reference":
            key = str(row.get("sample_id"))
            texts[key] = f"{texts.get(key, '')} {row.get('text')}"
    return {key: normalised_text(text) for key, text in texts.items()}


def _names(folders: Sequence[Path]) -> list[str]:
    names = [Path(folder).resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]


def _notes(systems: Sequence[System], shared: Sequence[str], names: Sequence[str]) -> list[str]:
    notes = [f"{len(shared)} samples are in all of them; no other counts here."]
    first = systems[0]
    for one in systems[1:]:
        other = sum(one.references.get(key) != first.references.get(key) for key in shared)
        if other:
            notes.append(
                f"{other} samples have another reference text in {one.name} than in {first.name}: another data set, or "
                "another splitter."
            )
    dropped = sorted({figure for one in systems for figure in one.directions} - set(names))
    if dropped:
        notes.append(f"Not compared, because not all systems have them: {', '.join(dropped)}.")
    notes.append("p is of each figure by itself: of many figures some differ by chance.")
    return notes


def cells(contrast: Contrast) -> str:
    """A figure, and behind it the difference with its interval, p, and its n where not all samples have both."""
    summary, gap = contrast.summary, contrast.difference
    text = "-" if summary.point is None else f"{summary.point:.3f}"
    if gap is None or gap.point is None:
        return text
    interval = "" if gap.low is None or gap.high is None else f" [{gap.low:+.3f}, {gap.high:+.3f}]"
    said = "" if gap.n == summary.n else f", n {gap.n}"
    return f"{text} ({gap.point:+.3f}{interval}, p {'-' if contrast.p is None else format(contrast.p, '.3f')}{said})"


def write_comparison(comparison: Comparison, folder: Path) -> Path:
    """Write `comparison.json`, `comparison.csv` (a line a figure and system) and `comparison.html`, and return the
    page."""
    write_json(folder / "comparison.json", asdict(comparison))
    with open_atomic(folder / "comparison.csv") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(
            (
                *("figure", "direction", "system", "point", "low", "high", "n"),
                *("difference", "difference_low", "difference_high", "difference_n", "p"),
            )
        )
        for figure, contrasts in comparison.figures.items():
            for system, one in zip(comparison.systems, contrasts, strict=True):
                gap = one.difference or Summary(None)
                row = [one.summary.point, one.summary.low, one.summary.high, one.summary.n]
                row += [gap.point, gap.low, gap.high, gap.n if one.difference else None, one.p]
                writer.writerow(
                    [figure, one.summary.direction, system, *("" if value is None else value for value in row)]
                )
    path = folder / "comparison.html"
    with open_atomic(path) as handle:
        handle.write(_page(comparison))
    return path


def _page(comparison: Comparison) -> str:
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("Figure", *comparison.systems))
    marks = {"higher": " ↑", "lower": " ↓", "neutral": ""}
    rows = "".join(
        f'<tr><th scope="row">{escape(words(figure))}{marks[contrasts[0].summary.direction]}</th>'
        + "".join(f"<td{_css(one)}>{escape(cells(one))}</td>" for one in contrasts)
        + "</tr>"
        for figure, contrasts in comparison.figures.items()
    )
    notes = "".join(f"<p>{escape(note)}</p>" for note in comparison.notes)
    return assemble(
        STATIC / "compare.html",
        [STATIC / "page.css"],
        [],
        {},
        title=escape(f"Comparison: {', '.join(comparison.systems)}"),
        notes=notes,
        first=escape(comparison.systems[0]),
        rounds=str(comparison.options["rounds"]),
        replicates=str(comparison.options["replicates"]),
        table=f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>",
    )


def _css(contrast: Contrast) -> str:
    """Better or worse than the first by more than chance."""
    gap, direction = contrast.difference, contrast.summary.direction
    if gap is None or gap.point is None or contrast.p is None or contrast.p > 0.05 or direction == "neutral":
        return ""
    return ' class="better"' if (gap.point > 0) == (direction == "higher") else ' class="worse"'
