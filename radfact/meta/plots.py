"""Plots as PNG and SVG: figures against experts, coefficients with intervals, curves, boxes by style."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from radfact.meta.agreement import Agreement
from radfact.meta.needs import load_pyplot

_COLUMNS = 4
_DOTS = 140
STYLES = ("black", "#1c5d99")
"""Of the original reports and the standardised ones (paper 002, figure 3)."""


def save(figure: Any, path: Path) -> Path:
    """Write a plot as `path`.png and `path`.svg, each whole, and give the former."""
    from radfact.jsonl import open_atomic

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
    label: str,
) -> Path:
    """Every figure against the experts, a panel each; groups by colour.

    Args:
        expert: one value a sample.
        figures: figure -> one value a sample.
        groups: name -> places of its samples; one named `all` is drawn only where there is no other.
        path: without suffix.
        label: of the experts' axis.
    """
    shown = {name: places for name, places in groups.items() if name != "all"} or dict(groups)
    figure, panels = _grid(len(figures))
    for panel, (name, values) in zip(panels, figures.items(), strict=False):
        for group, places in shown.items():
            panel.scatter(
                [expert[place] for place in places], [values[place] for place in places], s=12, alpha=0.5, label=group
            )
        panel.set_title(name, fontsize=9)
        panel.set_xlabel(label, fontsize=8)
        panel.tick_params(labelsize=7)
    if len(shown) > 1:
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize=8)
    return save(figure, path)


def forest(found: Sequence[Agreement], path: Path, *, coefficient: str) -> Path:
    """Coefficients with their intervals: a row a figure, a mark a group, the highest over all on top.

    Args:
        found: of all figures and groups.
        path: without suffix.
        coefficient: kendall, spearman or pearson.
    """
    plot = load_pyplot()
    groups = list(dict.fromkeys(one.group for one in found))
    overall = {one.figure: one.coefficients[coefficient].value or -math.inf for one in found if one.group == "all"}
    names = sorted(overall, key=lambda name: overall[name])
    height = 0.22 * len(names) * max(len(groups), 2) + 1.3
    figure, axes = plot.subplots(figsize=(7.5, min(height, 60)), layout="constrained")
    for number, group in enumerate(groups):
        offset = 0.7 * (0.5 - (number + 0.5) / len(groups))
        colour = "black" if group == "all" else f"C{number - 1}"
        first = True
        for one in (one for one in found if one.group == group):
            estimate = one.coefficients[coefficient]
            if estimate.value is None:
                continue
            at = names.index(one.figure) + offset
            low, high = estimate.low, estimate.high
            if low is not None and high is not None:
                axes.plot([low, high], [at, at], color=colour, linewidth=1.2)
            axes.plot(estimate.value, at, "D" if group == "all" else "o", color=colour, markersize=4,
                      label=group if first else None)  # fmt: skip
            first = False
    axes.axvline(0, color="grey", linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.set_xlabel(f"{coefficient.capitalize()} with experts, 95 % interval (positive: both find the same bad)")
    if len(groups) > 1:
        figure.legend(loc="outside lower center", ncols=6, fontsize=8)
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
        panel.set_title(name, fontsize=9)
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
    axes.set_xticks(range(len(columns)), list(columns), rotation=30, ha="right", fontsize=8)
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
