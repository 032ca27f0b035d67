"""Plots as PNG and SVG: figures against experts, coefficients with intervals, curves, bars, boxes by style."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from radfact.html.markup import words
from radfact.meta.agreement.analysis import Agreement
from radfact.meta.agreement.preferences import Accuracy
from radfact.optional import load_pyplot
from radfact.statistics.bootstrap import Direction

_COLUMNS = 4
_DOTS = 140
STYLES = ("black", "#1c5d99")
"""Of the original reports and the standardised ones (paper 002, figure 3)."""


def save(figure: Any, path: Path) -> Path:
    """Write a plot as `path`.png and `path`.svg, each whole, and give the former."""
    from radfact.io.jsonl import open_atomic

    for kind, options in (("png", {"dpi": _DOTS}), ("svg", {})):
        # The date of writing would make two equal plots differ.
        meta = {"metadata": {"Date": None}} if kind == "svg" else {}
        with open_atomic(path.with_suffix(f".{kind}"), "wb") as handle:
            figure.savefig(handle, format=kind, **options, **meta)
    load_pyplot().close(figure)
    return path.with_suffix(".png")


def scatter(
    expert: Sequence[float],
    figures: Mapping[str, Sequence[float]],
    groups: Mapping[str, Sequence[int]],
    path: Path,
    *,
    directions: Mapping[str, Direction],
    label: str,
) -> Path:
    """Every figure against the experts, a panel each, both on their own scales; groups by colour.

    Args:
        expert: one value a sample.
        figures: figure -> one value a sample.
        groups: name -> places of its samples; one named `all` is drawn only where there is no other.
        path: without suffix.
        directions: which way a figure is better.
        label: of the experts' axis.
    """
    shown = {name: places for name, places in groups.items() if name != "all"} or dict(groups)
    figure, panels = _grid(len(figures))
    for panel, (name, values) in zip(panels, figures.items(), strict=False):
        for group, places in shown.items():
            panel.scatter(
                [expert[place] for place in places], [values[place] for place in places], s=12, alpha=0.5, label=group
            )
        panel.set_title(words(name), fontsize=9)
        panel.set_xlabel(label, fontsize=8)
        panel.set_ylabel(f"{directions[name]} is better", fontsize=8)
        panel.tick_params(labelsize=7)
    if len(shown) > 1:
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize=8)
    return save(figure, path)


def forest(found: Sequence[Agreement], path: Path) -> Path:
    """Kendall's tau-b with its intervals: a row a figure, a mark a group, the highest over all on top.

    What has no coefficient has no mark, and a figure without any has no row; a mark without a line has no interval.

    Args:
        found: of all figures and groups.
        path: without suffix.
    """
    known = [(one.figure, one.group, e) for one in found if (e := one.coefficients["kendall"]).value is not None]
    groups = list(dict.fromkeys(group for _, group, _ in known))
    overall = {figure: estimate.value or 0.0 for figure, group, estimate in known if group == "all"}
    lowest = min(overall.values(), default=0.0) - 1
    rows = sorted(dict.fromkeys(figure for figure, _, _ in known), key=lambda name: overall.get(name, lowest))
    height = 0.22 * len(rows) * max(len(groups), 2) + 1.3
    figure, axes = load_pyplot().subplots(figsize=(7.5, min(height, 60)), layout="constrained")
    for number, group in enumerate(groups):
        offset = 0.7 * (0.5 - (number + 0.5) / len(groups))
        style = {"color": "black" if group == "all" else f"C{number - 1}"}
        marks = [(e.value, rows.index(name) + offset) for name, other, e in known if other == group]
        axes.plot(*zip(*marks, strict=True), "D" if group == "all" else "o", markersize=4, label=group, **style)
        for name, other, e in known:
            if other == group and e.low is not None and e.high is not None:
                axes.plot([e.low, e.high], [rows.index(name) + offset] * 2, linewidth=1.2, **style)
    axes.axvline(0, color="grey", linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(rows)), list(map(words, rows)), fontsize=8)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    lines = ", 95 % interval" if any(e.low is not None for _, _, e in known) else ""
    axes.set_xlabel(f"Kendall's tau-b with experts{lines} (positive: both find the same bad)")
    if len(groups) > 1:
        figure.legend(loc="outside lower center", ncols=6, fontsize=8)
    return save(figure, path)


def bars(
    columns: Mapping[str, Mapping[float, float]], path: Path, *, x: str, y: str, width: float | None = None
) -> Path:
    """How often values occur, the columns of each place side by side.

    Such are the histograms of experts' scores (paper 003, figures 5 and 6) and of errors of severity (paper 001,
    figure 2).

    Args:
        columns: name -> place -> height.
        path: without suffix.
        x: label of the places.
        y: label of the heights.
        width: of a place; by default the least distance of two.
    """
    places = sorted({place for heights in columns.values() for place in heights})
    width = 0.85 * (width or min((b - a for a, b in pairwise(places)), default=1.0))
    figure, axes = load_pyplot().subplots(figsize=(6.0, 3.6), layout="constrained")
    for number, (name, heights) in enumerate(columns.items()):
        shift = width * ((number + 0.5) / len(columns) - 0.5)
        at = [place + shift for place in heights]
        axes.bar(at, list(heights.values()), width / len(columns), label=name, color=f"C{number}")
    if all(place.is_integer() for place in places):
        axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8)
    if len(columns) > 1:
        axes.legend(fontsize=8)
    return save(figure, path)


def bands(lines: Mapping[str, Mapping[float, Accuracy]], path: Path, *, x: str, y: str) -> Path:
    """Shares that were met by how sure the experts were, a line a figure, with intervals (paper 000, figure 6).

    Args:
        lines: figure -> least confidence -> share; what has no value is left out, as is an interval that is not known.
        path: without suffix.
        x: label of the confidence.
        y: label of the shares.
    """
    figure, axes = load_pyplot().subplots(figsize=(6.0, 3.8), layout="constrained")
    for number, (name, levels) in enumerate(lines.items()):
        colour = f"C{number}"
        known = [(level, one.value) for level, one in levels.items() if one.value is not None]
        axes.plot(*zip(*known, strict=True), "o-", markersize=3, linewidth=1.2, color=colour, label=words(name))
        spread = [(level, one.low, one.high) for level, one in levels.items() if one.low is not None]
        if spread:
            axes.fill_between(*zip(*spread, strict=True), color=colour, alpha=0.12, linewidth=0)
    axes.axhline(0.5, color="grey", linewidth=0.8, linestyle=":")
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8)
    return save(figure, path)


def curves(
    lines: Mapping[str, Mapping[str, Mapping[int, float]]], path: Path, *, x: str, y: str, diagonal: bool
) -> Path:
    """Mean values by the true number of errors, a panel a figure and a line a type (paper 003, figures 2 and 3).

    Args:
        lines: figure -> type -> true number -> mean.
        path: without suffix.
        x: label of the true number.
        y: label of the mean.
        diagonal: whether to draw where both are the same.
    """
    figure, panels = _grid(len(lines))
    for panel, (name, types) in zip(panels, lines.items(), strict=False):
        for kind, points in types.items():
            panel.plot(list(points), list(points.values()), "o-", markersize=3, linewidth=1.2, label=kind)
        if diagonal:
            most = max((number for points in types.values() for number in points), default=1)
            panel.plot([0, most], [0, most], color="grey", linewidth=0.8, linestyle=":")
        panel.set_title(words(name), fontsize=9)
        panel.set_xlabel(x, fontsize=8)
        panel.set_ylabel(y, fontsize=8)
        panel.tick_params(labelsize=7)
        panel.xaxis.get_major_locator().set_params(integer=True)
    handles = panels[0].get_legend_handles_labels()
    if len(handles[0]) > 1:
        figure.legend(*handles, loc="outside lower center", ncols=3, fontsize=8)
    return save(figure, path)


def boxes(columns: Mapping[str, Mapping[str, Sequence[float]]], path: Path, *, y: str) -> Path:
    """Box plots of values over sites: a place a figure, a box a style (paper 002, figure 3).

    Args:
        columns: figure -> style -> one value a site.
        path: without suffix.
        y: label.
    """
    plot = load_pyplot()
    figure, axes = plot.subplots(figsize=(max(6.0, 0.95 * len(columns) + 1.5), 4.5), layout="constrained")
    styles = list(dict.fromkeys(style for one in columns.values() for style in one))
    for number, style in enumerate(styles):
        colour = STYLES[number % len(STYLES)]
        at = [place + 0.36 * (number - (len(styles) - 1) / 2) for place in range(len(columns))]
        values = [[value for value in one.get(style, ()) if not math.isnan(value)] for one in columns.values()]
        line = {"color": colour}
        axes.boxplot(values, positions=at, widths=0.28, whis=(0, 100), boxprops=line, whiskerprops=line,
                     capprops=line, medianprops={"color": colour, "linewidth": 2})  # fmt: skip
        for place, points in zip(at, values, strict=True):
            axes.plot([place] * len(points), points, ".", color=colour, alpha=0.5)
        axes.plot([], [], color=colour, label=style)
    axes.axhline(0, color="grey", linewidth=0.8, linestyle=":")
    axes.set_xticks(range(len(columns)), list(map(words, columns)), rotation=30, ha="right", fontsize=8)
    axes.set_ylabel(y)
    axes.legend(fontsize=8)
    return save(figure, path)


def _grid(count: int) -> tuple[Any, list[Any]]:
    plot = load_pyplot()
    wide = max(1, min(_COLUMNS, count))
    high = max(1, math.ceil(count / wide))
    figure, axes = plot.subplots(
        high, wide, figsize=(3.1 * wide, 2.7 * high + 0.4), squeeze=False, layout="constrained"
    )
    panels = list(axes.flat)
    for panel in panels[max(count, 1) :]:
        panel.set_visible(False)
    return figure, panels
