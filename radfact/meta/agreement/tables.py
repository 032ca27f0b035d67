"""The agreement of metrics with experts as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from radfact.error_categories import ERROR_CATEGORIES
from radfact.html.meta_page import Table, shown
from radfact.meta.agreement.analysis import Agreement, Counted, CountError, Raters
from radfact.meta.agreement.preferences import Accuracy
from radfact.statistics.correlation import COEFFICIENTS


def kinds_of_errors() -> str:
    """What the letters of the categories stand for."""
    return "; ".join(f"({letter}) {words}" for letter, words in ERROR_CATEGORIES.items()) + "."


def agreement_table(found: Sequence[Agreement]) -> Table:
    """A row a figure and group, all coefficients with their intervals."""
    headings = ["figure", "group", "n"]
    headings += [f"{name}{part}" for name in COEFFICIENTS for part in ("", " low", " high")]
    rows = []
    for one in found:
        estimates = [one.coefficients[name] for name in COEFFICIENTS]
        rows.append([one.figure, one.group, estimates[0].n, *(x for e in estimates for x in (e.value, e.low, e.high))])
    return Table(headings, rows)


def short_table(found: Sequence[Agreement]) -> Table:
    """What a console has room for: coefficients over all samples, and the interval of the first."""
    rows = []
    for one in (one for one in found if one.group == "all"):
        estimates = [one.coefficients[name] for name in COEFFICIENTS]
        first = estimates[0]
        rows.append([one.figure, first.n, first.value, first.low, first.high, *(e.value for e in estimates[1:])])
    return Table(["figure", "n", COEFFICIENTS[0], "low", "high", *COEFFICIENTS[1:]], rows)


def overview(found: Sequence[Agreement]) -> Table:
    """The same as a person reads it: a coefficient and its interval in one cell."""
    rows = [[one.figure, one.group, *_cells(one)] for one in found]
    return Table(["figure", "group", "n", *COEFFICIENTS], rows)


def _cells(one: Agreement) -> list[str | int | float | None]:
    estimates = [one.coefficients[name] for name in COEFFICIENTS]
    intervals = (
        e.value if e.low is None or e.high is None else f"{shown(e.value)} ({e.low:.2f} to {e.high:.2f})"
        for e in estimates
    )
    return [estimates[0].n, *intervals]


def rater_table(found: Sequence[Raters]) -> Table:
    """A row a quantity and pair of raters."""
    headings = ["quantity", "first", "second", "n", "kendall", "low", "high", "mean absolute difference"]
    return Table(
        headings,
        [
            [r.quantity, r.first, r.second, r.kendall.n, r.kendall.value, r.kendall.low, r.kendall.high,
             r.mean_absolute_difference]
            for r in found
        ],
    )  # fmt: skip


def rater_matrix(found: Sequence[Raters], quantity: str) -> Table:
    """Kendall's tau-b of every two raters of a quantity, as a matrix."""
    here = [one for one in found if one.quantity == quantity]
    names = sorted({name for one in here for name in (one.first, one.second)})
    values = {frozenset((one.first, one.second)): one.kendall.value for one in here}
    rows = [
        [name, *(1.0 if name == other else values.get(frozenset((name, other))) for other in names)] for name in names
    ]
    return Table(["rater", *names], rows)


def error_table(found: Sequence[CountError]) -> Table:
    """Mean absolute errors of counts, a row a figure and expert."""
    headings = ["figure", "experts' quantity", "expert", "mean absolute error", "standard deviation", "n"]
    return Table(headings, [[e.figure, e.quantity, e.rater, e.mean, e.deviation, e.n] for e in found])


def category_table(found: Sequence[Counted]) -> Table:
    """F1 and accuracy by category of error."""
    headings = ["figure", *(f"{kind} ({letter})" for kind in ("F1", "accuracy") for letter in ERROR_CATEGORIES)]
    rows = [
        [one.figure, *(d.f1 for d in one.by_category.values()), *(mean.value for mean in one.accuracy.values())]
        for one in found
        if one.by_category
    ]
    return Table(headings, rows)


def preference_table(found: Mapping[str, Mapping[float, Accuracy]]) -> Table:
    """Accuracy by least confidence, and how often neither candidate was preferred."""
    rows = [
        [figure, level, one.n, one.value, one.low, one.high, one.ties]
        for figure, levels in found.items()
        for level, one in levels.items()
    ]
    return Table(["figure", "confidence at least", "n", "accuracy", "low", "high", "ties"], rows)
