"""ReXamine-Global (paper 002): seven steps from reports of several sites to what style and site do to metrics."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from radfact.errors import Failure, InputError, RunError, list_some
from radfact.html import plots
from radfact.html.meta_page import Picture, Section, Table, write_page
from radfact.html.plot_files import Drawing
from radfact.io.csv_tables import read_csv
from radfact.io.jsonl import dumps, read_json, read_jsonl, write_json, write_jsonl
from radfact.meta.agreement.analysis import Figures
from radfact.meta.datasets.report_table import SiteReport
from radfact.meta.injection.perturb import Perturber
from radfact.meta.injection.records import Injected, read_injected, write_injected
from radfact.meta.injection.style import Styler
from radfact.meta.robustness.statistics import (
    Ranking,
    Style,
    StyleTest,
    by_style,
    rankings,
    style_tests,
    table_2,
    table_c,
    threshold,
)
from radfact.records import Pair

Score = Callable[[Sequence[Pair], Path], Figures]
"""Figures of pairs, kept in a folder."""

PER_SITE = 40
"""Reports of a site (paper 002, 2)."""


@dataclass(frozen=True, slots=True)
class Rexamined:
    """What came of the seven steps; `experts` says who counted the errors, None where nobody has yet."""

    tests: Sequence[StyleTest]
    rankings: Sequence[Ranking]
    experts: str | None
    notes: Sequence[str]
    left_out: Mapping[str, str]


def rexamine(
    reports: Sequence[SiteReport],
    folder: Path,
    *,
    styler: Styler,
    perturber: Perturber,
    score: Score,
    counts: Mapping[str, float] | None = None,
    per_site: int | None = PER_SITE,
    seed: int = 42,
    notes: Sequence[str] = (),
) -> Rexamined:
    """Do the seven steps; each is kept in the folder, and taken from there when its input and who does it are the same.

    A step in which some reports failed is done again, from the model's kept answers but for those.

    Args:
        reports: original references, by site (step 1).
        folder: of all that is written.
        styler: rewrites them in one style (step 2).
        perturber: puts errors into what comes of it (step 3).
        score: figures of pairs (step 4).
        counts: number of errors of each candidate by id, of experts (step 5); without it, the labels of a perturber
            that has them stand in, and the page says so.
        per_site: how many of each site are drawn; None for all.
        seed: of the draw.
        notes: further sentences for the page.

    Raises:
        InputError: a site has fewer than two reports, the experts counted none of the candidates, or the folder has
            their counts of others.
        RunError: nothing could be rewritten, perturbed or scored.
    """
    steps = _Steps(folder)
    drawn = _draw(reports, per_site, seed)
    standard, left_out = _standardise(drawn, styler, steps)
    candidates, failed = _perturb(standard, perturber, seed, steps)
    left_out |= failed
    originals = {one.sample_id: one.report for one in drawn}
    _write_for_experts(candidates, originals, folder / "for_experts.csv")
    experts, who = _experts(candidates, counts)
    sites = [str(one.site) for one in candidates]
    figures: dict[Style, Figures] = {
        "Original": score(
            [Pair(one.sample_id, one.candidate, originals[one.sample_id]) for one in candidates], folder / "original"
        ),
        "Standardised": score([one.pair for one in candidates], folder / "standardised"),
    }
    tests = style_tests(figures["Original"], figures["Standardised"], sites)
    ranked = rankings(figures, experts, sites) if who else []
    apart = _apart(candidates, counts)
    said = [*notes, *_said(candidates, who, apart, styler, perturber)]
    found = Rexamined(tests, ranked, who, said, left_out)
    drawn_of = {site: sites.count(site) for site in sorted(set(sites))}
    _write(found, folder, {"seed": seed, "per_site": per_site, "sites": drawn_of, **apart})
    return found


class _Steps:
    """Files of steps, each with a hash of what it was made from."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / "steps.json"

    def is_done(self, name: str, key: str) -> bool:
        return (self.folder / name).is_file() and self._keys().get(name) == key

    def done(self, name: str, key: str) -> None:
        write_json(self._path, {**self._keys(), name: key})

    def _keys(self) -> dict[str, Any]:
        if not self._path.is_file():
            return {}
        keys = read_json(self._path)
        return keys if isinstance(keys, dict) else {}


def _key(*parts: Any) -> str:
    # Rules may be others in another version of this package; a model's answers are kept by its client anyway.
    return hashlib.sha256(dumps([version("maira-radfact"), *parts]).encode(errors="replace")).hexdigest()


def _draw(reports: Sequence[SiteReport], per_site: int | None, seed: int) -> list[SiteReport]:
    by_site: dict[str, list[SiteReport]] = {}
    for one in reports:
        by_site.setdefault(one.site, []).append(one)
    drawn = []
    for site, here in sorted(by_site.items()):
        if len(here) < 2:
            raise InputError(f"site '{site}' has fewer than two reports")
        wanted = len(here) if per_site is None else min(per_site, len(here))
        drawn += random.Random(f"{seed}/{site}").sample(here, wanted)
    return drawn


def _standardise(drawn: Sequence[SiteReport], styler: Styler, steps: _Steps) -> tuple[list[SiteReport], dict[str, str]]:
    name, key = "standardised.jsonl", _key(styler.describe(), [[one.sample_id, one.site, one.report] for one in drawn])
    if not steps.is_done(name, key):
        answers = styler.standardise([one.report for one in drawn])
        rows = [
            {"sample_id": one.sample_id, "site": one.site, "original": one.report, **_outcome(answer)}
            for one, answer in zip(drawn, answers, strict=True)
        ]
        write_jsonl(steps.folder / name, rows)
        if not any(isinstance(answer, Failure) for answer in answers):
            steps.done(name, key)
    kept, failed = [], {}
    for _, row in read_jsonl(steps.folder / name):
        if row["failure"] is None:
            kept.append(SiteReport(row["sample_id"], row["site"], row["report"]))
        else:
            failed[row["sample_id"]] = f"not standardised: {row['failure']}"
    if not kept:
        raise RunError(f"no report could be standardised: {next(iter(failed.values()))}")
    return kept, failed


def _outcome(answer: str | Failure) -> dict[str, str | None]:
    failed = isinstance(answer, Failure)
    return {
        "report": None if failed else str(answer),
        "failure": answer.reason if isinstance(answer, Failure) else None,
    }


def _perturb(
    standard: Sequence[SiteReport], perturber: Perturber, seed: int, steps: _Steps
) -> tuple[list[Injected], dict[str, str]]:
    name = "candidates.jsonl"
    key = _key(perturber.describe(), seed, [[one.sample_id, one.report] for one in standard])
    failures = steps.folder / "not_perturbed.json"
    if not steps.is_done(name, key):
        answers = perturber.perturb(standard)
        kept = [one for one in answers if isinstance(one, Injected)]
        failed = {
            source.sample_id: f"no errors put in: {one.reason}"
            for source, one in zip(standard, answers, strict=True)
            if isinstance(one, Failure)
        }
        if not kept:
            raise RunError(next(iter(failed.values()), "no report to put errors into"))
        write_json(failures, failed)
        write_injected(steps.folder / name, kept)
        if not failed:
            steps.done(name, key)
    return read_injected(steps.folder / name), dict(read_json(failures))


def _write_for_experts(candidates: Sequence[Injected], originals: Mapping[str, str], path: Path) -> None:
    """The candidates to be counted; what experts have filled in is never lost."""
    rows = [[one.sample_id, one.site, originals[one.sample_id], one.candidate, None] for one in candidates]
    if path.is_file():
        there = [row for _, row in read_csv(path)[1]]
        if {(row.get("id"), row.get("candidate")) for row in there} == {(row[0], row[3]) for row in rows}:
            return
        if any((row.get("errors") or "").strip() for row in there):
            raise InputError(
                "holds counts of other candidates than those of this run; move it, or take another folder", file=path
            )
    Table(["id", "site", "reference", "candidate", "errors"], rows).write(path)


def _experts(candidates: Sequence[Injected], counts: Mapping[str, float] | None) -> tuple[list[float], str | None]:
    if counts is not None:
        found = [counts.get(one.sample_id, math.nan) for one in candidates]
        if all(math.isnan(one) for one in found):
            raise InputError("has none of the candidates; see for_experts.csv in the results", field="counts")
        return found, "experts"
    if any(one.changes for one in candidates):
        return [float(len(one.changes)) for one in candidates], "labels"
    return [math.nan] * len(candidates), None


def _apart(candidates: Sequence[Injected], counts: Mapping[str, float] | None) -> dict[str, list[str]]:
    """The ids of candidates that experts have not counted, and of counts of something else."""
    ids = [one.sample_id for one in candidates]
    counted = ids if counts is None else counts
    return {
        "uncounted": [key for key in ids if key not in counted],
        "unknown_counts": [key for key in counted if key not in ids],
    }


def _said(
    candidates: Sequence[Injected],
    who: str | None,
    apart: Mapping[str, Sequence[str]],
    styler: Styler,
    perturber: Perturber,
) -> list[str]:
    said = [
        f"{len(candidates)} candidates. Standard style by {styler.name}, errors by {perturber.name}. All figures are "
        "turned so that higher is worse; t = standardised minus original, so a negative t means that a candidate in "
        "the style of its reference is rewarded."
    ]
    if who == "labels":
        said.append(
            "No expert has counted errors here: the number of errors that were put in stands in for the experts' "
            "scores. Counts by experts go into for_experts.csv."
        )
    elif who is None:
        said.append(
            "Errors are not counted yet, so nothing is ranked: fill in for_experts.csv, and run again with --counts "
            "for_experts.csv."
        )
    if ids := apart["uncounted"]:
        said.append(
            f"Candidates without a count by experts, which are not ranked: {len(ids)} of {len(candidates)} "
            f"({list_some(ids)})."
        )
    if ids := apart["unknown_counts"]:
        said.append(f"Counts of other ids than those of the candidates: {len(ids)} ({list_some(ids)}).")
    return said


def _write(found: Rexamined, folder: Path, record: Mapping[str, Any]) -> None:
    second, appendix = table_2(found.tests), table_c(found.rankings)
    second.write(folder / "table_2.csv")
    notes, sections = list(found.notes), []
    level = threshold(found.tests)
    said = (
        f"Paired t-tests a site; significant below {level:.2g}, which is 0.05 by Bonferroni over {len(found.tests)} "
        "tests (figures times sites). Without a t: style changes no score, or none by another amount."
    )
    sections.append(Section("Does style change the scores? (table 2)", [second, said]))
    if found.rankings:
        appendix.write(folder / "table_c.csv")
        drawing, columns = Drawing(folder), by_style(found.rankings)
        drawing.add(
            "figure_3",
            "Spearman's rho by metric and style, a point a site",
            lambda path: plots.boxes(columns, path, y="Spearman's rho over sites"),
        )
        notes += drawing.notes
        said = "Spearman's rho with the number of errors; n: candidates that have both the figure and that number."
        parts: list[Table | Picture | str] = [*drawing.taken(), appendix, said]
        sections.append(Section("Are reports ranked as by the experts? (figure 3, appendix C)", parts))
    if found.left_out:
        rows = [[key, why] for key, why in found.left_out.items()]
        sections.append(Section("Left out", [Table(["report", "why"], rows)]))
    write_json(
        folder / "rexamine.json",
        {
            **record,
            "experts": found.experts,
            "threshold": level,
            "style_tests": [asdict(one) for one in found.tests],
            "rankings": [asdict(one) for one in found.rankings],
            "left_out": dict(found.left_out),
            "notes": notes,
        },
    )
    write_page(folder / "rexamine.html", "ReXamine-Global", notes, sections)
