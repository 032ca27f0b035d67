"""Figure 4 of the paper, drawn for each reviewer: corrections per report, error types, implications."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from maira.review.agreement import UNTYPED
from maira.review.summary import KINDS, NO_CORRECTION, SEVERITY_NAMES
from radfact.html.plots import save
from radfact.optional import load_pyplot

_UNSAID = "#8c8c8c"
_FAINT = 0.4
_WORST_COLOURS = {
    NO_CORRECTION: "#d0d0d0",
    "no": "#9ecae1",
    "minor": "#fdae6b",
    "significant": "#a50f15",
    "not rated": _UNSAID,
}
# As on the page, in tones that colour-blind readers tell apart.
_KIND_COLOURS = {"edit": "#d55e00", "deletion": "#7f7f7f", "addition": "#009e73"}
_PLURALS = {"edit": "edits", "deletion": "deletions", "addition": "additions"}
_MOST_TYPES = 10
_MOST_APART = 8
_ROOM = 4
"""Bars that a panel has room for at least, so that a few do not fill it."""


def draw_figure(summary: Mapping[str, Any], path: Path) -> Path:
    """Draw the three panels of every reviewer who has finished a study, a row each, as PNG and SVG.

    Args:
        summary: as `summarize` makes it.
        path: without suffix.

    Returns:
        The PNG file.
    """
    rows = [(name, figures) for name, figures in summary["reviewers"].items() if figures["finished"]]
    plot = load_pyplot()
    # A dollar sign in a name is one.
    with plot.rc_context({"text.parse_math": False}):
        return save(_drawn(plot, rows), path)


def _drawn(plot: Any, rows: Sequence[tuple[str, Mapping[str, Any]]]) -> Any:
    figure, grid = plot.subplots(
        len(rows), 3, figsize=(15, 4.4 * len(rows)), layout="constrained", squeeze=False, width_ratios=(1, 1.25, 1)
    )
    for panels, (name, figures) in zip(grid, rows, strict=True):
        _draw_reports(panels[0], figures, f"A  {name}: " if len(rows) > 1 else "A  ")
        _draw_kinds(panels[1], _most_frequent(figures["error_types"]), "B  Error types")
        _draw_kinds(panels[2], _severities(figures["severities"]), "C  Clinical implications")
    # Below the panels: within one there is not always room beside the bars.
    worst = {name: bars for panel in grid[:, 0] for bars, name in zip(*panel.get_legend_handles_labels(), strict=True)}
    names = [name for name in _WORST_COLOURS if name in worst]
    implied = [name if name in (NO_CORRECTION, "not rated") else f"{name} implications" for name in names]
    _legend(figure, [worst[name] for name in names], implied, "A: worst of the report", "left")
    handles, kinds = grid[0][2].get_legend_handles_labels()
    _legend(figure, handles, [_PLURALS[kind] for kind in kinds], "B and C", "right")
    return figure


def _legend(figure: Any, handles: Sequence[Any], labels: Sequence[str], title: str, side: str) -> None:
    figure.legend(
        handles, labels, loc=f"outside lower {side}", ncols=len(labels), title=title, fontsize=8, title_fontsize=8
    )


def _draw_reports(panel: Any, figures: Mapping[str, Any], mark: str) -> None:
    """Panel A: how many reports took how many corrections, by the worst implication of each."""
    by_count: dict[str, dict[str, int]] = {}
    for count, worst in figures["reports_by_corrections"].items():
        label = count if int(count) < _MOST_APART else f"{_MOST_APART}+"
        for name, reports in worst.items():
            at = by_count.setdefault(label, {})
            at[name] = at.get(name, 0) + reports
    most = max(_ROOM, *(min(int(count), _MOST_APART) for count in figures["reports_by_corrections"]))
    labels = [*map(str, range(min(most, _MOST_APART - 1) + 1)), *([f"{_MOST_APART}+"] if most == _MOST_APART else [])]
    series = {name: [by_count.get(label, {}).get(name, 0) for label in labels] for name in _WORST_COLOURS}
    _stack(panel.bar, labels, {name: values for name, values in series.items() if any(values)}, _WORST_COLOURS)
    panel.set_xlabel("corrections in a report")
    panel.set_ylabel("reports")
    panel.yaxis.get_major_locator().set_params(integer=True)
    panel.set_xlim(-0.6, len(labels) - 0.4)
    panel.set_ylim(0, 1.05 * max(sum(worst.values()) for worst in by_count.values()))
    counts = f"{_count(figures['corrections'], 'correction')} in {_count(figures['finished'], 'report')}"
    unchanged = f"{figures['unchanged_sentences']} of {_count(figures['sentences'], 'sentence')} unchanged"
    panel.set_title(f"{mark}{counts};\n{unchanged}", loc="left", fontsize=11)


def _draw_kinds(panel: Any, counts: Mapping[str, Mapping[str, int]], title: str) -> None:
    """Panels B and C: how many corrections of each name, by what was done."""
    names = list(counts)[::-1]
    series = {kind: [counts[name][kind] for name in names] for kind in KINDS}
    _stack(panel.barh, names, series, _KIND_COLOURS, along="left")
    totals = [sum(counts[name].values()) for name in names]
    if UNTYPED in names:
        at = names.index(UNTYPED)
        panel.get_yticklabels()[at].set(style="italic", color=_UNSAID)
        for bars in panel.containers:
            bars[at].set_alpha(_FAINT)
    for place, total in enumerate(totals):
        panel.text(total, place, f" {total}", va="center", fontsize=9)
    panel.set_xlim(0, max([*totals, 1]) * 1.12)
    panel.set_title(title, loc="left", fontsize=11)
    panel.set_xlabel("corrections")
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.set_ylim(min(len(names) - _ROOM, 0) - 0.6, len(names) - 0.4)


def _stack(
    draw: Any,
    labels: Sequence[str],
    series: Mapping[str, Sequence[int]],
    colours: Mapping[str, str],
    along: str = "bottom",
) -> None:
    at = [0] * len(labels)
    for name, values in series.items():
        draw(labels, values, **{along: at}, color=colours[name], label=name, edgecolor="white", linewidth=0.5)
        at = [below + value for below, value in zip(at, values, strict=True)]


def _most_frequent(types: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """The most frequent types, the rest in one, and last the corrections of which none is named."""
    named = [(name, dict(kinds)) for name, kinds in types.items() if name != UNTYPED]
    kept, rest = dict(named[:_MOST_TYPES]), [kinds for _, kinds in named[_MOST_TYPES:]]
    if rest:
        kept[f"{len(rest)} others"] = {kind: sum(kinds[kind] for kinds in rest) for kind in KINDS}
    return kept | {UNTYPED: dict(types[UNTYPED])} if UNTYPED in types else kept


def _severities(counts: Mapping[str, Mapping[str, int]]) -> dict[str, Mapping[str, int]]:
    """All three, rated or not; those that nobody has rated only where there are any."""
    none = dict.fromkeys(KINDS, 0)
    return {
        name: counts.get(name, none) for number, name in SEVERITY_NAMES.items() if number is not None or name in counts
    }


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
