"""Plot of a review as in MAIRA-2, figure 4: corrections per report, error types, clinical implications."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from maira.review.agreement import UNTYPED
from maira.review.summary import KINDS, NO_CORRECTION, SEVERITY_NAMES, WORST_NAMES
from radfact.optional import load_pyplot
from radfact.pages.plots import save

_WORST_COLORS = dict(zip(WORST_NAMES, ("#d0d0d0", "#9ecae1", "#fdae6b", "#a50f15", "#8c8c8c"), strict=True))
# As on the page; distinguishable with color vision deficiency.
_KIND_COLORS = {"edit": "#d55e00", "deletion": "#7f7f7f", "addition": "#009e73"}
_PLURALS = {"edit": "edits", "deletion": "deletions", "addition": "additions"}
_MAX_TYPES = 10
_MAX_BARS = 8


def draw_figure(summary: Mapping[str, Any], path: Path) -> Path:
    """Plot three panels for each reader with a finished study, one row each, as PNG and SVG.

    Returns:
        The PNG file.
    """
    rows = [(name, statistics) for name, statistics in summary["readers"].items() if statistics["finished"]]
    plot = load_pyplot()
    # A dollar sign in a name is not math.
    with plot.rc_context({"text.parse_math": False}):
        return save(_drawn(plot, rows), path)


def _drawn(plot: Any, rows: Sequence[tuple[str, Mapping[str, Any]]]) -> Any:
    figure, grid = plot.subplots(
        len(rows), 3, figsize=(15, 4.4 * len(rows)), layout="constrained", squeeze=False, width_ratios=(1, 1.25, 1)
    )
    for panels, (name, summary) in zip(grid, rows, strict=True):
        _draw_reports(panels[0], summary, f"A  {name}: " if len(rows) > 1 else "A  ")
        _draw_kinds(panels[1], _most_frequent(summary["error_types"]), "B  Error types")
        _draw_kinds(panels[2], _severities(summary["severities"]), "C  Clinical implications")
    # Below the panels, since a legend may not fit next to the bars.
    worst = {name: bars for panel in grid[:, 0] for bars, name in zip(*panel.get_legend_handles_labels(), strict=True)}
    names = [name for name in _WORST_COLORS if name in worst]
    implied = [name if name in (NO_CORRECTION, "not rated") else f"{name} implications" for name in names]
    _legend(figure, [worst[name] for name in names], implied, "A: worst of the report", "left")
    handles, kinds = grid[0][2].get_legend_handles_labels()
    _legend(figure, handles, [_PLURALS[kind] for kind in kinds], "B and C", "right")
    return figure


def _legend(figure: Any, handles: Sequence[Any], labels: Sequence[str], title: str, side: str) -> None:
    figure.legend(
        handles, labels, loc=f"outside lower {side}", ncols=len(labels), title=title, fontsize=8, title_fontsize=8
    )


def _draw_reports(panel: Any, summary: Mapping[str, Any], mark: str) -> None:
    """Plot panel A: number of reports by number of corrections and worst implication."""
    by_count: dict[str, dict[str, int]] = {}
    for count, worst in summary["reports_by_corrections"].items():
        label = count if int(count) < _MAX_BARS else f"{_MAX_BARS}+"
        for name, reports in worst.items():
            at = by_count.setdefault(label, {})
            at[name] = at.get(name, 0) + reports
    labels = [*map(str, range(_MAX_BARS)), f"{_MAX_BARS}+"]
    series = {name: [by_count.get(label, {}).get(name, 0) for label in labels] for name in _WORST_COLORS}
    _stack(panel.bar, labels, {name: values for name, values in series.items() if any(values)}, _WORST_COLORS)
    panel.set_xlabel("corrections in a report")
    panel.set_ylabel("reports")
    panel.yaxis.get_major_locator().set_params(integer=True)
    counts = f"{_count(summary['corrections'], 'correction')} in {_count(summary['finished'], 'report')}"
    unchanged = f"{summary['unchanged_sentences']} of {_count(summary['sentences'], 'sentence')} unchanged"
    panel.set_title(f"{mark}{counts};\n{unchanged}", loc="left", fontsize=11)


def _draw_kinds(panel: Any, counts: Mapping[str, Mapping[str, int]], title: str) -> None:
    """Plot panel B or C: number of corrections by name and kind."""
    names = list(counts)[::-1]
    series = {kind: [counts[name][kind] for name in names] for kind in KINDS}
    _stack(panel.barh, names, series, _KIND_COLORS, along="left")
    totals = [sum(counts[name].values()) for name in names]
    for index, total in enumerate(totals):
        panel.text(total, index, f" {total}", va="center", fontsize=9)
    panel.set_xlim(0, max([*totals, 1]) * 1.12)
    panel.set_title(title, loc="left", fontsize=11)
    panel.set_xlabel("corrections")
    panel.xaxis.get_major_locator().set_params(integer=True)


def _stack(
    draw: Any,
    labels: Sequence[str],
    series: Mapping[str, Sequence[int]],
    colors: Mapping[str, str],
    along: str = "bottom",
) -> None:
    at = [0] * len(labels)
    for name, values in series.items():
        draw(labels, values, **{along: at}, color=colors[name], label=name, edgecolor="white", linewidth=0.5)
        at = [below + value for below, value in zip(at, values, strict=True)]


def _most_frequent(types: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """Return the most frequent types, the others combined, and untyped corrections last."""
    named = [(name, dict(kinds)) for name, kinds in types.items() if name != UNTYPED]
    shown, rest = dict(named[:_MAX_TYPES]), [kinds for _, kinds in named[_MAX_TYPES:]]
    if rest:
        shown[f"{len(rest)} others"] = {kind: sum(kinds[kind] for kinds in rest) for kind in KINDS}
    return shown | {UNTYPED: dict(types[UNTYPED])} if UNTYPED in types else shown


def _severities(counts: Mapping[str, Mapping[str, int]]) -> dict[str, Mapping[str, int]]:
    """Return all three severities, and unrated corrections if there are any."""
    none = dict.fromkeys(KINDS, 0)
    return {
        name: counts.get(name, none) for number, name in SEVERITY_NAMES.items() if number is not None or name in counts
    }


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
