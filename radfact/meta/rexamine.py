"""ReXamine-Global: seven steps from reports of several sites to the effects of style and site on metrics."""

from __future__ import annotations

import hashlib
import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from radfact.errors import ErrorCode, Failure, InputError, RunError, list_some
from radfact.io.csv_tables import read_csv
from radfact.io.jsonl import dumps, read_json, read_jsonl, write_json, write_jsonl
from radfact.io.outputs import replace_files
from radfact.meta.agreement.analysis import MEAN_RATER, RaterAgreement, compare_raters
from radfact.meta.agreement.report import add_raters
from radfact.meta.datasets.ratings import RatingSet
from radfact.meta.datasets.reports import SiteReport
from radfact.meta.injection.records import RULES, InjectedReport, read_injected, write_injected
from radfact.meta.report import AnalysisReport
from radfact.meta.scores import ScoreColumns, ScoreFunction
from radfact.optional import load_module
from radfact.pages import plots
from radfact.pages.meta_page import Table
from radfact.records import PatientContext
from radfact.statistics.clusters import id_order
from radfact.statistics.correlation import correlate

PER_SITE = 40  # ReXamine-Global, section 2

Style = Literal["Original", "Standardized"]


class Editor(Protocol):
    """What changes reports; `describe` returns everything that affects its output as JSON values."""

    @property
    def name(self) -> str: ...

    def describe(self) -> dict[str, Any]: ...

    def edit(self, reports: Sequence[SiteReport]) -> list[InjectedReport | Failure]: ...


@dataclass(frozen=True, slots=True)
class StyleTest:
    """Paired t-test of a score at a site, standardized minus original; None if all differences are the same."""

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


@dataclass(frozen=True, slots=True)
class ErrorTotal:
    """Errors that an expert, or the mean of all, counted in `n` candidates of a site, in all and by category."""

    site: str
    rater: str
    n: int
    totals: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RexamineResult:
    """Effects of style, rank correlations with numbers of errors of `experts` or `labels`, and excluded reports."""

    tests: Sequence[StyleTest]
    rankings: Sequence[Ranking]
    totals: Sequence[ErrorTotal]
    inter_rater: Sequence[RaterAgreement]
    experts: str | None
    excluded: Mapping[str, str]
    notes: Sequence[str]


def rexamine(
    reports: Sequence[SiteReport],
    folder: Path,
    *,
    styler: Editor,
    injector: Editor,
    score: ScoreFunction,
    counts: RatingSet | None = None,
    per_site: int | None = PER_SITE,
    seed: int = 42,
    notes: Sequence[str] = (),
) -> RexamineResult:
    """Run the seven steps, each stored in the folder and reused; without `counts` of experts, labels replace them."""
    drawn = _draw(reports, per_site, seed)
    standardized, excluded = _standardize(drawn, styler, folder)
    candidates, failed = _inject(standardized, injector, seed, folder)
    excluded |= failed
    originals = {report.sample_id: report.report for report in drawn}
    _write_for_experts(candidates, originals, folder / "for_experts.csv")
    known: dict[str, float] = {}
    if counts is None:
        experts = [float(len(candidate.changes)) for candidate in candidates]
    else:
        means = {row.pair.sample_id: row.mean("errors") for row in counts.samples}
        known = {key: mean for key, mean in means.items() if not math.isnan(mean)}
        experts = [known.get(candidate.sample_id, math.nan) for candidate in candidates]
        if all(map(math.isnan, experts)):
            message = "expected ids of for_experts.csv in the results, found none of them"
            raise InputError(message, code=ErrorCode.MISMATCH, field="counts")
    source = "experts" if counts is not None else "labels" if any(experts) else None
    sites = [str(candidate.site) for candidate in candidates]
    contexts = {row.sample_id: PatientContext(modality=row.modality, anatomy=row.anatomy) for row in drawn}
    standard_pairs = [replace(candidate.pair, context=contexts[candidate.sample_id]) for candidate in candidates]
    original_pairs = [replace(pair, reference=originals[pair.sample_id]) for pair in standard_pairs]
    original = score(original_pairs, folder / "original")
    standard = score(standard_pairs, folder / "standardized")
    tests = style_tests(original, standard, sites)
    ranked = rankings({"Original": original, "Standardized": standard}, experts, sites) if source else []
    ids = [candidate.sample_id for candidate in candidates]
    unmatched = {
        "uncounted": [] if counts is None else [key for key in ids if key not in known],
        "unknown_counts": [key for key in known if key not in ids],
    }
    circular = original.circular_notes(by_rules=RULES in (styler.name, injector.name))
    own_notes = _notes(len(ids), source, unmatched, styler.name, injector.name)
    own_notes += [] if counts is None else counts.agreement_notes()
    totals = [] if counts is None else error_totals(counts, dict(zip(ids, sites, strict=True)))
    raters = [] if counts is None else compare_raters(counts, replicates=0)
    all_notes = [*notes, *own_notes, *original.model_notes(), *circular]
    result = RexamineResult(tests, ranked, totals, raters, source, excluded, all_notes)
    record = {"seed": seed, "per_site": per_site, "sites": dict(sorted(Counter(sites).items())), **unmatched}
    with replace_files(folder) as new:
        _write(result, new, {**record, "models": original.models, "circular": bool(circular)})
    return result


def _key(*parts: Any) -> str:
    # The rules may change with the version of this package.
    return hashlib.sha256(dumps([version("maira-radfact"), *parts]).encode(errors="replace")).hexdigest()


def _run_once(path: Path, key: str, write: Callable[[], bool]) -> None:
    """Write the output of a step unless it is there for the same key; `write` returns whether no report failed."""
    steps = path.with_name("steps.json")
    read = read_json(steps) if steps.is_file() else {}
    keys = read if isinstance(read, dict) else {}
    if not (path.is_file() and keys.get(path.name) == key) and write():
        write_json(steps, {**keys, path.name: key})


def _draw(reports: Sequence[SiteReport], per_site: int | None, seed: int) -> list[SiteReport]:
    by_site: dict[str, list[SiteReport]] = {}
    for report in sorted(reports, key=lambda report: id_order(report.sample_id)):
        by_site.setdefault(report.site, []).append(report)
    drawn = []
    for site, of_site in sorted(by_site.items()):
        if len(of_site) < 2:
            raise InputError(f"expected at least two reports of site '{site}', found one", code=ErrorCode.EMPTY_INPUT)
        number = len(of_site) if per_site is None else min(per_site, len(of_site))
        drawn += random.Random(f"{seed}/{site}").sample(of_site, number)
    return drawn


def _standardize(drawn: Sequence[SiteReport], styler: Editor, folder: Path) -> tuple[list[SiteReport], dict[str, str]]:
    path = folder / "standardized.jsonl"

    def write() -> bool:
        rows = [
            {
                "sample_id": report.sample_id,
                "site": report.site,
                "original": report.report,
                "report": result.candidate if isinstance(result, InjectedReport) else None,
                "failure": result.reason if isinstance(result, Failure) else None,
            }
            for report, result in zip(drawn, styler.edit(drawn), strict=True)
        ]
        write_jsonl(path, rows)
        return all(row["failure"] is None for row in rows)

    _run_once(path, _key(styler.describe(), [[row.sample_id, row.site, row.report] for row in drawn]), write)
    rows = [row for _, row in read_jsonl(path)]
    standardized = [SiteReport(row["sample_id"], row["site"], row["report"]) for row in rows if row["failure"] is None]
    failed = {row["sample_id"]: f"not standardized: {row['failure']}" for row in rows if row["failure"] is not None}
    if not standardized:
        raise RunError(f"no report could be standardized: {next(iter(failed.values()))}", code=ErrorCode.JUDGE_FAILED)
    return standardized, failed


def _inject(
    standardized: Sequence[SiteReport], injector: Editor, seed: int, folder: Path
) -> tuple[list[InjectedReport], dict[str, str]]:
    path, failures = folder / "candidates.jsonl", folder / "injection_failures.json"

    def write() -> bool:
        results = dict(zip((row.sample_id for row in standardized), injector.edit(standardized), strict=True))
        reasons = {key: result.reason for key, result in results.items() if isinstance(result, Failure)}
        failed = {key: f"no errors injected: {reason}" for key, reason in reasons.items()}
        if len(failed) == len(results):
            raise RunError(next(iter(failed.values())), code=ErrorCode.JUDGE_FAILED)
        write_json(failures, failed)
        write_injected(path, (result for result in results.values() if isinstance(result, InjectedReport)))
        return not failed

    _run_once(path, _key(injector.describe(), seed, [[row.sample_id, row.report] for row in standardized]), write)
    return read_injected(path), dict(read_json(failures)) if failures.is_file() else {}


def _write_for_experts(candidates: Sequence[InjectedReport], originals: Mapping[str, str], path: Path) -> None:
    """Write the candidates for expert counts; existing counts are never overwritten."""
    rows = [[c.sample_id, c.site, originals[c.sample_id], c.candidate, None] for c in candidates]
    if path.is_file():
        existing = [row for _, row in read_csv(path)[1]]
        if {(row.get("id"), row.get("candidate")) for row in existing} == {(row[0], row[3]) for row in rows}:
            return
        if any((row.get("errors") or "").strip() for row in existing):
            message = "expected counts of the candidates of this run, found counts of others"
            hint = "move the file, or use another folder"
            raise InputError(f"{message}; {hint}", code=ErrorCode.OUTPUT_CONFLICT, file=path)
    Table(["id", "site", "reference", "candidate", "errors"], rows).write(path)


def _notes(n: int, source: str | None, unmatched: Mapping[str, Sequence[str]], styler: str, injector: str) -> list[str]:
    notes = [
        f"{n} candidates. Standard style by {styler}, errors by {injector}. All scores are oriented so that higher is "
        "worse; t = standardized minus original, so that a negative t means that a candidate in the style of its "
        "reference is rewarded."
    ]
    if source == "labels":
        replaced = "No expert has counted errors: the number of injected errors replaces the counts of experts."
        notes.append(f"{replaced} Counts of experts go into for_experts.csv.")
    elif source is None:
        uncounted = "Errors are not counted yet, so that nothing is ranked: fill in for_experts.csv"
        notes.append(f"{uncounted}, and run again with --counts for_experts.csv.")
    if ids := unmatched["uncounted"]:
        notes.append(f"Candidates without an expert count, which are not ranked: {len(ids)} of {n} ({list_some(ids)}).")
    if ids := unmatched["unknown_counts"]:
        notes.append(f"Counts with ids of no candidate: {len(ids)} ({list_some(ids)}).")
    return notes


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
            if len(gaps) and float(np.ptp(gaps)) > 1e-12:
                result = load_module("scipy.stats").ttest_rel(columns[1], columns[0])
                t, p = float(result.statistic), float(result.pvalue)
            tests.append(StyleTest(name, site, t, p, float(gaps.mean()) if len(gaps) else None, len(gaps)))
    return tests


def significance_level(tests: Sequence[StyleTest]) -> float:
    return 0.05 / max(len(tests), 1)  # Bonferroni


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


def error_totals(counts: RatingSet, sites: Mapping[str, str]) -> list[ErrorTotal]:
    """Add up the experts' numbers of errors in the candidates of each site (ReXamine-Global, appendix B)."""
    totals = []
    columns = {name: {MEAN_RATER: counts.means(name), **counts.values_by_rater(name)} for name in counts.better}
    first, *raters = columns[counts.target]
    for site in sorted(set(sites.values())):
        rows = [index for index, row in enumerate(counts.samples) if sites.get(row.pair.sample_id) == site]
        for rater in (first, *(raters if len(raters) > 1 else ())):
            of_rater = {name: [values[rater][row] for row in rows] for name, values in columns.items()}
            known = {name: [value for value in column if not math.isnan(value)] for name, column in of_rater.items()}
            sums = {name: math.fsum(column) for name, column in known.items() if column}
            totals.append(ErrorTotal(site, rater, len(known[counts.target]), sums))
    return totals


def totals_table(totals: Sequence[ErrorTotal], names: Sequence[str] | None = None) -> Table:
    names = names or list(dict.fromkeys(name for row in totals for name in row.totals))
    rows = [[row.site, row.rater, row.n, *map(row.totals.get, names)] for row in totals]
    return Table(["site", "expert", "candidates", *names], rows)


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
    rows: dict[tuple[str, str], list[Any]] = {}
    for row in results:
        rows.setdefault((row.score, row.style), [row.score, row.style]).extend((row.rho, row.n))
    headings = (heading for site in sites for heading in (site, f"{site} n"))
    return Table(["Metric", "Ground truth", *headings], list(rows.values()))


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


def _write(result: RexamineResult, folder: Path, record: Mapping[str, Any]) -> None:
    """Write `rexamine.json`, tables 2 and C, figure 3 and the page."""
    report, level = AnalysisReport(folder), significance_level(result.tests)
    report.section("table_2", table_2(result.tests), level=level, tests=len(result.tests))
    description, y = "Spearman's rho by metric and style, one point per site", "Spearman's rho over sites"
    images = report.draw("figure_3", description, plots.boxes, rho_by_style(result.rankings), y=y)
    report.section("table_c", *images, table_c(result.rankings))
    report.section("error_totals", totals_table(result.totals))
    add_raters(report, result.inter_rater)
    report.add("Excluded", Table(["report", "reason"], list(result.excluded.items())))
    fields = asdict(result)
    details = {"experts": result.experts, "threshold": level, "style_tests": fields.pop("tests"), **fields}
    details["notes"] = [*result.notes, *report.missing_plots]
    report.write("rexamine", "ReXamine-Global", {**record, **details}, result.notes)
