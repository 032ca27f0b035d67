"""Tables for a paper, in LaTeX and Markdown: values with intervals, bold best values, marks of significance."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from radfact.errors import escape_for_terminal
from radfact.machine import PROJECT
from radfact.results.display import main_scores, score_label, select_scores, words
from radfact.results.schema import ScoresFile, describe_models
from radfact.statistics.bootstrap import Summary
from radfact.statistics.clusters import Resampling

if TYPE_CHECKING:
    from radfact.results.compare import Comparison

SCORE_COLUMNS = ("score", "direction", "unit", "n", "point", "low", "high", "repeat_sd")
_LATEX = {character: f"\\{character}" for character in "&%$#_{}"} | {
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''"},
    **{"↑": r"$\uparrow$", "↓": r"$\downarrow$", "≤": r"$\leq$", "–": "--"},
}
_MARKDOWN = {character: f"\\{character}" for character in "\\`*_{}[]<>|#"}


@dataclass(frozen=True, slots=True)
class Cell:
    """A value with its interval, and whether it is the best of its row and differs significantly from the first."""

    value: str
    interval: str = ""
    is_best: bool = False
    is_significant: bool = False


@dataclass(frozen=True, slots=True)
class PaperTable:
    """One row per score, with its label and the cells of all systems."""

    caption: str
    headings: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell]]]

    def to_latex(self) -> str:
        """Return a table for the LaTeX package booktabs."""
        rows = [
            [_escape(label, _LATEX), *(_join(cell, _LATEX, r"\textbf{", "}", "$^{*}$") for cell in cells)]
            for label, cells in self.rows
        ]
        head = [_escape(heading, _LATEX) for heading in self.headings]
        lines = [f"{' & '.join(row)} \\\\" for row in (head, *rows)]
        return "\n".join(
            [
                r"% \usepackage{booktabs}",
                *(r"\begin{table}", r"\centering", f"\\caption{{{_escape(self.caption, _LATEX)}}}"),
                *(f"\\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}", r"\toprule", lines[0], r"\midrule", *lines[1:]),
                *(r"\bottomrule", r"\end{tabular}", r"\end{table}", ""),
            ]
        )

    def to_markdown(self) -> str:
        """Return a Markdown table below its caption."""
        rows = [
            [_escape(label, _MARKDOWN), *(_join(cell, _MARKDOWN, "**", "**", r"\*") for cell in cells)]
            for label, cells in self.rows
        ]
        head = [_escape(heading, _MARKDOWN) for heading in self.headings]
        lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
        return f"{_escape(self.caption, _MARKDOWN)}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def score_rows(scores: ScoresFile, chosen: Sequence[str] = ()) -> list[list[Any]]:
    """Return the chosen scores, or the main ones, with unrounded numbers in the order of `SCORE_COLUMNS`."""
    names = _selected_names(scores, chosen)
    return [[name, *(getattr(scores.scores[name], column) for column in SCORE_COLUMNS[1:])] for name in names]


def _selected_names(scores: ScoresFile, chosen: str | Sequence[str]) -> list[str]:
    main = [name for names in main_scores(scores).values() for name in names]
    return select_scores(scores, scores.scores, chosen or main or list(scores.scores))


def result_table(scores: ScoresFile, chosen: str | Sequence[str], version: str | None) -> PaperTable:
    """Return the chosen scores of one system, or its main scores."""
    records = {name: scores.scores[name] for name in _selected_names(scores, chosen)}
    samples, excluded = scores.counts.get("samples"), scores.counts.get("excluded")
    rows = [
        (score_label(words(name), record.direction, record.unit), [_cell(record, samples)])
        for name, record in records.items()
    ]
    caption = _describe_values(list(records.values()), samples, scores.resampling)
    caption += f" {excluded} samples are not scored by every metric." if excluded else ""
    models = _describe_models([describe_models(scores)], [version])
    return PaperTable(caption + models, ["Score", "Value [95% interval]"], rows)


def comparison_table(comparison: Comparison, names: Sequence[str]) -> PaperTable:
    rows = []
    for name in names:
        contrasts = comparison.scores[name]
        direction = contrasts[0].summary.direction
        label = score_label(words(name), direction, comparison.units.get(name))
        # Values are equal if they are as they are shown; none is the best if all are equal, or without a direction.
        shown = {f"{value:.3f}": value for contrast in contrasts if (value := contrast.summary.point) is not None}
        order = sorted(shown, key=shown.__getitem__, reverse=direction == "higher")
        best = order[0] if len(order) > 1 and direction != "neutral" else None
        cells = [_cell(each.summary, comparison.shared, best, each.verdict is not None) for each in contrasts]
        rows.append((label, cells))
    all_cells = [cell for _, cells in rows for cell in cells]
    summaries = [contrast.summary for name in names for contrast in comparison.scores[name]]
    caption = _describe_values(summaries, comparison.shared, comparison.resampling)
    if any(cell.is_best for cell in all_cells):
        caption += " Bold: best value of the score."
    if any(cell.is_significant for cell in all_cells):
        caption += (
            f" *: differs from {comparison.systems[0]} (approximate randomization, p adjusted by Holm's method for "
            f"{comparison.tests} test{'s' * (comparison.tests > 1)} at most 0.05)."
        )
    caption += _describe_models(comparison.models, comparison.versions)
    return PaperTable(caption, ["Score", *comparison.systems], rows)


def _cell(summary: Summary, samples: int | None, best: str | None = None, is_significant: bool = False) -> Cell:
    if summary.point is None:
        return Cell("–")
    value = f"{summary.point:.3f}"
    has_interval = summary.low is not None and summary.high is not None
    interval = f"[{summary.low:.3f}, {summary.high:.3f}]" if has_interval else ""
    # The caption has the number of samples.
    other = f"(n = {summary.n})" if summary.n not in (samples, None) else ""
    return Cell(value, " ".join(filter(None, (interval, other))), value == best, is_significant)


def _join(cell: Cell, escapes: Mapping[str, str], start: str, end: str, mark: str) -> str:
    value = f"{start}{cell.value}{end}" if cell.is_best else _escape(cell.value, escapes)
    return value + mark * cell.is_significant + f" {cell.interval}" * bool(cell.interval)


def _describe_values(summaries: Sequence[Summary], samples: int | None, resampling: Resampling | None) -> str:
    has_intervals = any(score.low is not None for score in summaries)
    text = "Values with 95% bootstrap intervals" if has_intervals else "Values"
    if has_intervals and resampling is not None and resampling.by is not None:
        text += f", {resampling.describe()}"
    elif samples is not None:
        text += f", n = {samples} samples"
    fewer = any(score.n not in (samples, None) for score in summaries if score.point is not None)
    return f"{text}{'; (n = ...): samples with a value, where they are fewer' if fewer else ''}."


def _describe_models(models: Sequence[Mapping[str, str]], versions: Sequence[str | None]) -> str:
    """Return the judge or model of each metric, those of several systems once if they are equal, and the version."""
    of_metric: dict[str, list[str]] = {}
    for by_metric in models:
        for metric, model in by_metric.items():
            of_metric.setdefault(words(metric), []).append(model)
    parts = [f"{metric}: {' or '.join(dict.fromkeys(names))}" for metric, names in of_metric.items()]
    known = list(dict.fromkeys(f"{PROJECT} {version}" for version in versions if version))
    text = f" Judge or model: {'; '.join(parts)}." if parts else ""
    return text + (f" Computed with {' and '.join(known)}." if known else "")


def _escape(text: str, escapes: Mapping[str, str]) -> str:
    """Return a text in one line with the special characters of a markup language and control characters escaped."""
    text = escape_for_terminal(re.sub(r"\s+", " ", text).strip())
    return "".join(escapes.get(character, character) for character in text)
