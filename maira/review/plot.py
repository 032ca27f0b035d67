"""Plot of a review as in MAIRA-2, figure 4: corrections per report, error types, clinical implications."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from maira.review.changes import UNTYPED
from maira.review.form import Form
from maira.review.summary import KINDS, worst_names
from radfact.optional import load_module, load_pyplot
from radfact.pages.plots import save

_SEVERITY_COLORS = ("#9ecae1", "#fdae6b", "#a50f15")
_NO_CORRECTION, _NOT_RATED = "#d0d0d0", "#8c8c8c"
# As on the page; distinguishable with color vision deficiency.
_KIND_COLORS = dict(zip(KINDS, ("#d55e00", "#7f7f7f", "#009e73"), strict=True))
_MAX_TYPES = 10
_MAX_BARS = 8


def draw_figure(summary: Mapping[str, Any], path: Path, form: Form) -> None:
    """Plot three panels for each reader with a finished study, one row each, as PNG and SVG."""
    rows = [(name, statistics) for name, statistics in summary["readers"].items() if statistics["finished"]]
    plot = load_pyplot()
    names = [*form.severities.values()]
    # Other severities than three are shades of the colors of MAIRA-2.
    shades = load_module("matplotlib.colors").LinearSegmentedColormap.from_list("", _SEVERITY_COLORS, N=len(names) - 1)
    colors = [shades(place) for place in range(len(names) - 1)]
    by_name = dict(zip(worst_names(form).values(), (_NO_CORRECTION, *colors, _NOT_RATED), strict=True))
    # A dollar sign in a name is not math.
    with plot.rc_context({"text.parse_math": False}):
        figure = plot.figure(figsize=(15, 4.4 * len(rows)), layout="constrained")
        grid = figure.subplots(len(rows), 3, squeeze=False, width_ratios=(1, 1.25, 1))
        for (reports, types, severities), (name, statistics) in zip(grid, rows, strict=True):
            _draw_reports(reports, statistics, by_name, f"A  {name}: " if len(rows) > 1 else "A  ")
            _draw_kinds(types, _most_frequent(statistics["error_types"]), form, "B  Error types")
            # All severities, and unrated corrections if there are any.
            rated: dict[str, dict[str, int]] = {name: {} for name in names[:-1]}
            _draw_kinds(severities, rated | statistics["severities"], form, "C  Clinical implications")
        save(figure, path)


def _draw_reports(panel: Any, summary: Mapping[str, Any], colors: Mapping[str, Any], mark: str) -> None:
    labels = [*map(str, range(_MAX_BARS)), f"{_MAX_BARS}+"]
    counts: Counter[tuple[str, str]] = Counter()
    for count, worst in summary["reports_by_corrections"].items():
        counts.update({(labels[min(int(count), _MAX_BARS)], name): reports for name, reports in worst.items()})
    series = {name: [counts[label, name] for label in labels] for name in colors}
    _stack(panel, labels, {name: values for name, values in series.items() if any(values)}, colors)
    panel.set_xlabel("corrections in a report, and its worst implications")
    panel.set_ylabel("reports")
    corrections = f"{_count(summary['corrections'], 'correction')} in {_count(summary['finished'], 'report')}"
    unchanged = f"{summary['unchanged_sentences']} of {_count(summary['sentences'], 'sentence')} unchanged"
    panel.set_title(f"{mark}{corrections};\n{unchanged}", loc="left", fontsize=11)


def _draw_kinds(panel: Any, counts: Mapping[str, Mapping[str, int]], form: Form, title: str) -> None:
    panel.set_title(title, loc="left", fontsize=11)
    totals = [sum(kinds.values()) for kinds in counts.values()][::-1]
    if not any(totals):
        panel.text(0.5, 0.5, "no corrections", ha="center", va="center", transform=panel.transAxes)
        panel.axis("off")
        return
    series = {kind: [kinds.get(kind, 0) for kinds in counts.values()][::-1] for kind in KINDS}
    labels = [form.option_names.get(name, name) for name in counts][::-1]
    _stack(panel, labels, series, _KIND_COLORS, is_horizontal=True)
    panel.bar_label(panel.containers[-1], totals, padding=3, fontsize=9)
    panel.set(xlim=(0, max(totals) * 1.12), xlabel="corrections")


def _stack(
    panel: Any,
    labels: Sequence[str],
    series: Mapping[str, Sequence[int]],
    colors: Mapping[str, Any],
    *,
    is_horizontal: bool = False,
) -> None:
    draw, start = (panel.barh, "left") if is_horizontal else (panel.bar, "bottom")
    at = [0] * len(labels)
    for name, values in series.items():
        draw(labels, values, **{start: at}, color=colors[name], label=name, edgecolor="white", linewidth=0.5)
        at = [below + value for below, value in zip(at, values, strict=True)]
    (panel.xaxis if is_horizontal else panel.yaxis).get_major_locator().set_params(integer=True)
    # Below the panel, since it may not fit next to the bars.
    panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=len(series), fontsize=8)


def _most_frequent(types: Mapping[str, Mapping[str, int]]) -> dict[str, Mapping[str, int]]:
    """Return the most frequent types, the others combined, and untyped corrections last."""
    named = [name for name in types if name != UNTYPED]
    shown, rest = named[:_MAX_TYPES], named[_MAX_TYPES:]
    others = {f"{len(rest)} others": sum((Counter(types[name]) for name in rest), Counter())} if rest else {}
    return {name: types[name] for name in shown} | others | {name: types[name] for name in types if name == UNTYPED}


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
