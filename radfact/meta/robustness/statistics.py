"""ReXamine-Global's two questions: does style change a metric, does it rank reports as experts do (paper 002)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from radfact.html.meta_page import Table
from radfact.meta.agreement.analysis import Figures
from radfact.optional import load_stats
from radfact.statistics.correlation import correlate

Style = Literal["Original", "Standardised"]
ALPHA = 0.05
FEWEST = 2


@dataclass(frozen=True, slots=True)
class StyleTest:
    """A paired t-test of one figure at one site: standardised minus original, higher is worse.

    A negative `t` means that the style is rewarded. None where fewer than two reports have both scores, or style
    changes none of them, or all by the same.
    """

    figure: str
    site: str
    t: float | None
    p: float | None
    mean_difference: float | None
    n: int


@dataclass(frozen=True, slots=True)
class Ranking:
    """Spearman's rho of a figure with the experts' number of errors, at one site and against one style."""

    figure: str
    style: Style
    site: str
    rho: float | None
    n: int


def style_tests(original: Figures, standardised: Figures, sites: Sequence[str]) -> list[StyleTest]:
    """Paired t-tests of every figure at every site (paper 002, 2.4, step 6).

    Args:
        original: figures of the candidates against the original references.
        standardised: of the same candidates against the standardised ones.
        sites: of each candidate.
    """
    found = []
    for name in original.values:
        before, after = original.worse(name), standardised.worse(name) if name in standardised.values else None
        if before is None or after is None:
            continue
        for site in sorted(set(sites)):
            here = [place for place, one in enumerate(sites) if one == site]
            pairs = np.array([(before[place], after[place]) for place in here], dtype=np.float64)
            pairs = pairs[~np.isnan(pairs).any(axis=1)]
            gaps = pairs[:, 1] - pairs[:, 0]
            t = p = None
            # All equal but for rounding is no spread.
            if len(gaps) >= FEWEST and float(np.ptp(gaps)) > 1e-12:
                result = load_stats().ttest_rel(pairs[:, 1], pairs[:, 0])
                t, p = float(result.statistic), float(result.pvalue)
            mean = float(gaps.mean()) if len(gaps) else None
            found.append(StyleTest(name, site, t, p, mean, len(gaps)))
    return found


def threshold(tests: Sequence[StyleTest]) -> float:
    """The level of each test by Bonferroni: 0.05 over figures times sites."""
    return ALPHA / max(len(tests), 1)


def rankings(figures: Mapping[Style, Figures], experts: Sequence[float], sites: Sequence[str]) -> list[Ranking]:
    """Spearman's rho of every figure with the experts, per site and style (paper 002, 2.4, step 7).

    Args:
        figures: of the same candidates against the references of each style.
        experts: number of errors of each candidate, NaN = not counted.
        sites: of each candidate.
    """
    found = []
    names = [name for name in figures["Original"].values if name in figures["Standardised"].values]
    for name in names:
        for style, of_style in figures.items():
            column = of_style.worse(name)
            if column is None:
                continue
            for site in sorted(set(sites)):
                here = [place for place, one in enumerate(sites) if one == site]
                rho = correlate([experts[place] for place in here], [column[place] for place in here], replicates=0)
                found.append(Ranking(name, style, site, rho["spearman"].value, rho["spearman"].n))
    return found


def table_2(tests: Sequence[StyleTest]) -> Table:
    """Mean, least and greatest t over sites, and at how many of them style matters (paper 002, table 2)."""
    level = threshold(tests)
    rows = []
    for name in dict.fromkeys(one.figure for one in tests):
        here = [one for one in tests if one.figure == name]
        known = [one.t for one in here if one.t is not None]
        significant = sum(one.p is not None and one.p < level for one in here)
        spread = [sum(known) / len(known), min(known), max(known)] if known else [None, None, None]
        rows.append([name, *spread, significant, len(here)])
    return Table(["Metric", "Mean t-stat", "Min t-stat", "Max t-stat", "Significant sites", "Sites"], rows)


def table_c(found: Sequence[Ranking]) -> Table:
    """Spearman's rho by metric and style, a column a site and its number of reports (paper 002, appendix C)."""
    sites = list(dict.fromkeys(one.site for one in found))
    rows: dict[tuple[str, str], dict[str, tuple[float | None, int | None]]] = {}
    for one in found:
        rows.setdefault((one.figure, one.style), {})[one.site] = (one.rho, one.n)
    return Table(
        ["Metric", "Ground truth", *(heading for site in sites for heading in (site, f"{site} n"))],
        [
            [figure, style, *(cell for site in sites for cell in by_site.get(site, (None, None)))]
            for (figure, style), by_site in rows.items()
        ],
    )


def table_c_in_short(found: Sequence[Ranking]) -> Table:
    """The spread of rho over sites, which a console has room for."""
    rows: list[list[float | str | int | None]] = []
    for figure, by_site in by_style(found).items():
        for style, values in by_site.items():
            known = [value for value in values if not math.isnan(value)]
            spread = [sum(known) / len(known), min(known), max(known)] if known else [None, None, None]
            rows.append([figure, style, *spread, len(known)])
    return Table(["Metric", "Ground truth", "Mean rho", "Min rho", "Max rho", "Sites"], rows)


def by_style(found: Sequence[Ranking]) -> dict[str, dict[str, list[float]]]:
    """Figure -> style -> rho of every site, as figure 3 draws it; NaN where there is none."""
    columns: dict[str, dict[str, list[float]]] = {}
    for one in found:
        value = math.nan if one.rho is None else one.rho
        columns.setdefault(one.figure, {}).setdefault(one.style, []).append(value)
    return columns
