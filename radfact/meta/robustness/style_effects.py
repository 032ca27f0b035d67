"""Effect of style on scores and on their ranks by site: the two questions of ReXamine-Global."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from radfact.meta.scores import ScoreColumns
from radfact.optional import load_module
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
    """Test scores of the same candidates with both references at every site (ReXamine-Global, 2.4, step 6)."""
    tests = []
    after = standardized.oriented
    for name, before in original.oriented.items():
        for site, indices in _by_site(sites).items() if name in after else ():
            columns = np.array([before, after[name]])[:, indices]
            columns = columns[:, ~np.isnan(columns).any(axis=0)]
            gaps = columns[1] - columns[0]
            t = p = None
            # Gaps that differ by rounding errors only have no variance.
            if len(gaps) >= _MIN_SAMPLES and float(np.ptp(gaps)) > 1e-12:
                result = load_module("scipy.stats").ttest_rel(columns[1], columns[0])
                t, p = float(result.statistic), float(result.pvalue)
            tests.append(StyleTest(name, site, t, p, float(gaps.mean()) if len(gaps) else None, len(gaps)))
    return tests


def significance_level(tests: Sequence[StyleTest]) -> float:
    """Return the level of each test by Bonferroni: 0.05 over scores times sites."""
    return _ALPHA / max(len(tests), 1)


def rankings(scores: Mapping[Style, ScoreColumns], experts: Sequence[float], sites: Sequence[str]) -> list[Ranking]:
    """Correlate scores with numbers of errors (NaN = not counted) by site and style (ReXamine-Global, 2.4, step 7)."""
    oriented = {style: {name: np.array(c) for name, c in columns.oriented.items()} for style, columns in scores.items()}
    counts, results = np.array(experts, dtype=np.float64), []
    for name in oriented["Original"]:
        for style, columns in oriented.items() if name in oriented["Standardized"] else ():
            for site, indices in _by_site(sites).items():
                rho = correlate(counts[indices].tolist(), columns[name][indices].tolist(), replicates=0)["spearman"]
                results.append(Ranking(name, style, site, rho.value, rho.n))
    return results


def _by_site(sites: Sequence[str]) -> dict[str, NDArray[np.int_]]:
    return {site: np.flatnonzero(np.array(sites) == site) for site in sorted(set(sites))}


def table_2(tests: Sequence[StyleTest]) -> Table:
    """Return mean, minimum and maximum t over sites, and the number of sites with a significant effect (table 2)."""
    level = significance_level(tests)
    rows = []
    for name in dict.fromkeys(test.score for test in tests):
        of_score = [test for test in tests if test.score == name]
        significant = sum(test.p is not None and test.p < level for test in of_score)
        known = [test.t for test in of_score if test.t is not None]
        rows.append([name, *_mean_and_range(known), significant, len(of_score)])
    return Table(["Metric", "Mean t-stat", "Min t-stat", "Max t-stat", "Significant sites", "Sites"], rows)


def table_c(results: Sequence[Ranking]) -> Table:
    """Return Spearman's rho by score and style, with columns for each site and its number of reports (appendix C)."""
    sites = list(dict.fromkeys(ranking.site for ranking in results))
    cells = {(row.score, row.style, row.site): (row.rho, row.n) for row in results}
    return Table(
        ["Metric", "Ground truth", *(heading for site in sites for heading in (site, f"{site} n"))],
        [
            [*key, *(cell for site in sites for cell in cells.get((*key, site), (None, None)))]
            for key in dict.fromkeys((row.score, row.style) for row in results)
        ],
    )


def short_table_c(results: Sequence[Ranking]) -> Table:
    """Return mean, minimum and maximum rho over sites, for a console."""
    rows = []
    for name, by_style in rho_by_style(results).items():
        for style, values in by_style.items():
            known = [value for value in values if not math.isnan(value)]
            rows.append([name, style, *_mean_and_range(known), len(known)])
    return Table(["Metric", "Ground truth", "Mean rho", "Min rho", "Max rho", "Sites"], rows)


def _mean_and_range(known: Sequence[float]) -> list[float | None]:
    return [sum(known) / len(known), min(known), max(known)] if known else [None, None, None]


def rho_by_style(results: Sequence[Ranking]) -> dict[str, dict[str, list[float]]]:
    """Return score -> style -> rho of every site, NaN = no value, for figure 3."""
    columns: dict[str, dict[str, list[float]]] = {}
    for ranking in results:
        value = math.nan if ranking.rho is None else ranking.rho
        columns.setdefault(ranking.score, {}).setdefault(ranking.style, []).append(value)
    return columns
