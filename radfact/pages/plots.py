"""Plots as PNG and SVG: scatter, forest, bars, curves with bands, boxes."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from radfact.io.jsonl import open_atomic
from radfact.optional import load_pyplot
from radfact.results.display import words
from radfact.statistics.bootstrap import Direction
from radfact.statistics.correlation import Estimate

_COLUMNS = 4
_DPI = 140
_GUIDE = {"color": "gray", "linewidth": 0.8, "linestyle": ":"}
_STYLE_COLORS = ("black", "#1c5d99")


def save(figure: Any, path: Path) -> Path:
    """Write a plot as PNG and SVG, each atomically, and return the path of the PNG."""
    # Without the date, equal plots are equal files.
    for kind, metadata in {"png": None, "svg": {"Date": None}}.items():
        with open_atomic(path.with_suffix(f".{kind}"), "wb") as handle:
            figure.savefig(handle, format=kind, dpi=_DPI, metadata=metadata)
    load_pyplot().close(figure)
    return path.with_suffix(".png")


def scatter(
    expert: Sequence[float],
    scores: Mapping[str, Sequence[float]],
    groups: Mapping[str, Sequence[int]],
    path: Path,
    *,
    directions: Mapping[str, Direction],
    label: str,
) -> Path:
    """Plot every score against the experts, one panel per score, with groups by color."""
    shown = {name: indices for name, indices in groups.items() if name != "all"} or dict(groups)
    figure, panels = _panels(scores, label, {name: f"{directions[name]} is better" for name in scores})
    for panel, values in zip(panels, scores.values(), strict=False):
        for group, indices in shown.items():
            panel.scatter([expert[i] for i in indices], [values[i] for i in indices], s=12, alpha=0.5, label=group)
    return _save_with_legend(figure, panels[0], path, columns=6)


def forest(panels: Mapping[str, Sequence[tuple[str, str, Estimate]]], path: Path) -> Path:
    """Plot estimates with intervals, one panel per label of the axis, one row per score and one mark per group.

    The first score is on top, or the one with the highest value over all, where there is a group of all. Estimates
    without a value have no mark, those without an interval no line.
    """
    known = {label: [row for row in rows if row[2].value is not None] for label, rows in panels.items()}
    groups = list(dict.fromkeys(group for rows in known.values() for _, group, _ in rows))
    names = [list(dict.fromkeys(score for score, _, _ in rows)) for rows in known.values()]
    heights = [min(0.22 * len(own) * max(len(groups), 2) + 1.3, 60) for own in names]
    figure, all_axes = load_pyplot().subplots(
        len(panels), squeeze=False, figsize=(7.5, sum(heights)), height_ratios=heights, layout="constrained"
    )
    for axes, (label, rows), order in zip(all_axes.flat, known.items(), names, strict=True):
        overall = {score: estimate.value or 0.0 for score, group, estimate in rows if group == "all"}
        lowest = min(overall.values(), default=0.0) - 1
        order.reverse()
        order.sort(key=lambda name: overall.get(name, lowest))
        _label(axes, _plain(label) + ", 95% interval" * any(e.low is not None for *_, e in rows), None)
        for number, group in enumerate(groups):
            offset = 0.7 * (0.5 - (number + 0.5) / len(groups))
            color = "black" if group == "all" else f"C{number - ('all' in groups[:number])}"
            of_group = [(order.index(score) + offset, e) for score, other, e in rows if other == group]
            values, places = [e.value for _, e in of_group], [y for y, _ in of_group]
            marker = "D" if group == "all" else "o"
            axes.plot(values, places, marker, markersize=4, label=_plain(group), color=color)
            for y, e in of_group:
                if e.low is not None and e.high is not None:
                    axes.plot([e.low, e.high], [y, y], linewidth=1.2, color=color)
        axes.axvline(0, **_GUIDE)
        axes.set_yticks(range(len(order)), list(map(words, order)))
        axes.set_ylim(-0.6, len(order) - 0.4)
    return _save_with_legend(figure, all_axes.flat[0], path, columns=6)


def bars(
    columns: Mapping[str, Mapping[float, float]], path: Path, *, x: str, y: str, width: float | None = None
) -> Path:
    """Plot histograms, bars of several columns (name -> position -> height) next to each other."""
    positions = sorted({position for heights in columns.values() for position in heights})
    width = 0.85 * (width or min((b - a for a, b in pairwise(positions)), default=1.0))
    figure, axes = _axes((6.0, 3.6), x, y)
    for number, (name, heights) in enumerate(columns.items()):
        shift = width * ((number + 0.5) / len(columns) - 0.5)
        shifted = [position + shift for position in heights]
        axes.bar(shifted, list(heights.values()), width / len(columns), label=name, color=f"C{number}")
    if all(position.is_integer() for position in positions):
        axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    return _save_with_legend(figure, axes, path)


def bands(lines: Mapping[str, Mapping[float, Estimate]], path: Path, *, x: str, y: str) -> Path:
    """Plot shares with intervals (score -> position -> share), one line per score."""
    figure, axes = _axes((6.0, 3.8), x, y)
    for number, (name, estimates) in enumerate(lines.items()):
        color = f"C{number}"
        known = [(position, e.value) for position, e in estimates.items() if e.value is not None]
        axes.plot(*zip(*known, strict=True), "o-", markersize=3, linewidth=1.2, color=color, label=words(name))
        intervals = [(position, e.low, e.high) for position, e in estimates.items() if e.low is not None]
        if intervals:
            axes.fill_between(*zip(*intervals, strict=True), color=color, alpha=0.12, linewidth=0)
    axes.axhline(0.5, **_GUIDE)
    axes.set_ylim(-0.02, 1.02)
    return _save_with_legend(figure, axes, path, fewest=1)


def curves(
    lines: Mapping[str, Mapping[str, Mapping[int, float | None]]], path: Path, *, x: str, y: str, diagonal: bool
) -> Path:
    """Plot means (score -> kind of error -> number of errors -> mean), one panel per score and one line per kind."""
    figure, panels = _panels(lines, x, dict.fromkeys(lines, y))
    for panel, kinds in zip(panels, lines.values(), strict=False):
        for kind, points in kinds.items():
            panel.plot(list(points), list(points.values()), "o-", markersize=3, linewidth=1.2, label=kind)
        if diagonal:
            limit = max((number for points in kinds.values() for number in points), default=1)
            panel.plot([0, limit], [0, limit], **_GUIDE)
        panel.xaxis.get_major_locator().set_params(integer=True)
    return _save_with_legend(figure, panels[0], path)


def boxes(columns: Mapping[str, Mapping[str, Sequence[float]]], path: Path, *, y: str) -> Path:
    """Plot boxes of values over sites by score and style (ReXamine-Global, figure 3)."""
    figure, axes = _axes((max(6.0, 0.95 * len(columns) + 1.5), 4.5), None, y)
    styles = list(dict.fromkeys(style for by_style in columns.values() for style in by_style))
    for number, style in enumerate(styles):
        color = _STYLE_COLORS[number % len(_STYLE_COLORS)]
        positions = [i + 0.36 * (number - (len(styles) - 1) / 2) for i in range(len(columns))]
        values = [[v for v in by_style.get(style, ()) if not math.isnan(v)] for by_style in columns.values()]
        line = {"color": color}
        axes.boxplot(values, positions=positions, widths=0.28, whis=(0, 100), boxprops=line, whiskerprops=line,
                     capprops=line, medianprops={"color": color, "linewidth": 2})  # fmt: skip
        for position, points in zip(positions, values, strict=True):
            axes.plot([position] * len(points), points, ".", color=color, alpha=0.5)
        axes.plot([], [], color=color, label=style)
    axes.axhline(0, **_GUIDE)
    axes.set_xticks(range(len(columns)), list(map(words, columns)), rotation=30, ha="right")
    return _save_with_legend(figure, axes, path, fewest=1)


def _axes(size: tuple[float, float], x: str | None, y: str | None) -> tuple[Any, Any]:
    figure, axes = load_pyplot().subplots(figsize=size, layout="constrained")
    _label(axes, x, y)
    return figure, axes


def _panels(names: Collection[str], x: str, labels: Mapping[str, str]) -> tuple[Any, list[Any]]:
    """Return a panel for each score, with its name as the title and its label at the vertical axis."""
    columns = max(1, min(_COLUMNS, len(names)))
    rows = max(1, math.ceil(len(names) / columns))
    size = (3.1 * columns, 2.7 * rows + 0.4)
    figure, axes = load_pyplot().subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    panels = list(axes.flat)
    for panel in panels[max(len(names), 1) :]:
        panel.set_visible(False)
    for panel, name in zip(panels, names, strict=False):
        panel.set_title(words(name), fontsize=9)
        _label(panel, x, labels[name])
    return figure, panels


def _label(axes: Any, x: str | None, y: str | None) -> None:
    axes.set_xlabel(x or "", fontsize=8)
    axes.set_ylabel(y or "", fontsize=8)
    axes.tick_params(labelsize=8)


def _plain(text: str) -> str:
    """Return a text that matplotlib draws unchanged: without formulas, and in the legend despite an underscore."""
    return text.replace("$", r"\$").replace("_", " _", text.startswith("_"))


def _save_with_legend(figure: Any, axes: Any, path: Path, *, columns: int = 4, fewest: int = 2) -> Path:
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) >= fewest:
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=8)
    return save(figure, path)
