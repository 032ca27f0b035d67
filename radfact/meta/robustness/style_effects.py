"""Effect of style on scores and on their ranks by site: the two questions of ReXamine-Global."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from radfact.meta.scores import ScoreColumns
from radfact.optional import load_stats
from radfact.pages.meta_page import Table
from radfact.statistics.correlation import correlate

Style = Literal["Original", "Standardized"]
_ALPHA = 0.05
_MIN_SAMPLES = 2


@dataclass(frozen=True, slots=True)
class StyleTest:
    """Paired t-test of one score at one site: standardized minus original, oriented so that higher is worse.

    A negative `t` means that a candidate in the style of its reference is rewarded. `t` and `p` are None if fewer than
    two reports have both scores, or if all differences are the same.
    """

    score: str
    site: str
    t: float | None
    p: float | None
    mean_difference: float | None
    n: int


@dataclass(frozen=True, slots=True)
class Ranking:
    """Spearman's rho of a score with the experts' number of errors, at one site and for one style."""

    score: str
    style: Style
    site: str
    rho: float | None
    n: int


def style_tests(original: ScoreColumns, standardized: ScoreColumns, sites: Sequence[str]) -> list[StyleTest]:
    """Test every score of the same candidates with both references, at every site.

    Source: ReXamine-Global, section 2.4, step 6.
    """
    tests = []
    for name in filter(standardized.values.__contains__, original.values):
        before, after = original.oriented(name), standardized.oriented(name)
        if before is None or after is None:
            continue
        for site in sorted(set(sites)):
            pairs = np.array([(b, a) for b, a, s in zip(before, after, sites, strict=True) if s == site])
            pairs = pairs[~np.isnan(pairs).any(axis=1)]
            gaps = pairs[:, 1] - pairs[:, 0]
            t = p = None
            # Gaps that differ by rounding errors only have no variance.
            if len(gaps) >= _MIN_SAMPLES and float(np.ptp(gaps)) > 1e-12:
                result = load_stats().ttest_rel(pairs[:, 1], pairs[:, 0])
                t, p = float(result.statistic), float(result.pvalue)
            mean = float(gaps.mean()) if len(gaps) else None
            tests.append(StyleTest(name, site, t, p, mean, len(gaps)))
    return tests


def significance_level(tests: Sequence[StyleTest]) -> float:
    """Return the level of each test by Bonferroni: 0.05 over scores times sites."""
    return _ALPHA / max(len(tests), 1)


def rankings(scores: Mapping[Style, ScoreColumns], experts: Sequence[float], sites: Sequence[str]) -> list[Ranking]:
    """Correlate every score with the experts' number of errors (NaN = not counted), by site and style.

    Source: ReXamine-Global, section 2.4, step 7.
    """
    results = []
    for name in filter(scores["Standardized"].values.__contains__, scores["Original"].values):
        for style, of_style in scores.items():
            column = of_style.oriented(name)
            if column is None:
                continue
            for site in sorted(set(sites)):
                indices = [index for index, other in enumerate(sites) if other == site]
                estimates = correlate([experts[i] for i in indices], [column[i] for i in indices], replicates=0)
                results.append(Ranking(name, style, site, estimates["spearman"].value, estimates["spearman"].n))
    return results


def table_2(tests: Sequence[StyleTest]) -> Table:
    """Return mean, minimum and maximum t over sites, and the number of sites with a significant effect (table 2)."""
    level = significance_level(tests)
    rows = []
    for name in dict.fromkeys(test.score for test in tests):
        of_score = [test for test in tests if test.score == name]
        significant = sum(test.p is not None and test.p < level for test in of_score)
        rows.append([name, *_mean_and_range([test.t for test in of_score]), significant, len(of_score)])
    return Table(["Metric", "Mean t-stat", "Min t-stat", "Max t-stat", "Significant sites", "Sites"], rows)


def table_c(results: Sequence[Ranking]) -> Table:
    """Return Spearman's rho by score and style, with columns for each site and its number of reports (appendix C)."""
    sites = list(dict.fromkeys(ranking.site for ranking in results))
    rows: dict[tuple[str, str], dict[str, tuple[float | None, int | None]]] = {}
    for ranking in results:
        rows.setdefault((ranking.score, ranking.style), {})[ranking.site] = (ranking.rho, ranking.n)
    return Table(
        ["Metric", "Ground truth", *(heading for site in sites for heading in (site, f"{site} n"))],
        [
            [name, style, *(cell for site in sites for cell in by_site.get(site, (None, None)))]
            for (name, style), by_site in rows.items()
        ],
    )


def short_table_c(results: Sequence[Ranking]) -> Table:
    """Return mean, minimum and maximum rho over sites, for a console."""
    rows: list[list[Any]] = []
    for name, by_style in rho_by_style(results).items():
        for style, values in by_style.items():
            known = [value for value in values if not math.isnan(value)]
            rows.append([name, style, *_mean_and_range(known), len(known)])
    return Table(["Metric", "Ground truth", "Mean rho", "Min rho", "Max rho", "Sites"], rows)


def _mean_and_range(values: Sequence[float | None]) -> list[float | None]:
    known = [value for value in values if value is not None]
    return [sum(known) / len(known), min(known), max(known)] if known else [None, None, None]


def rho_by_style(results: Sequence[Ranking]) -> dict[str, dict[str, list[float]]]:
    """Return score -> style -> rho of every site, NaN = no value, for figure 3."""
    columns: dict[str, dict[str, list[float]]] = {}
    for ranking in results:
        value = math.nan if ranking.rho is None else ranking.rho
        columns.setdefault(ranking.score, {}).setdefault(ranking.style, []).append(value)
    return columns
