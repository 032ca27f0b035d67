"""Files of a comparison of systems: JSON, CSV and a page."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from radfact.cache_folders import user_cache
from radfact.errors import InputError, RunError
from radfact.findings.details import FindingContrast, contrast_findings
from radfact.io.csv_tables import write_csv
from radfact.io.jsonl import dumps, read_json, write_json
from radfact.machine import project_version
from radfact.pages.meta_page import Plot, Section, Table, Tag, write_page
from radfact.pages.runs import OpenedRun
from radfact.pages.studies import StudyList
from radfact.results.compare import SCORE_COLUMNS, SIGNIFICANT, Comparison, Contrast, compare
from radfact.results.display import score_label, words
from radfact.results.reader import read_outcomes
from radfact.results.schema import RADFACT
from radfact.statistics.bootstrap import Summary
from radfact.statistics.correlation import Estimate

_FINDING_COLUMNS = ("system", "metric", "finding", "sample_id", "change", "baseline_verdict", "verdict")
_CHANGES = ("improved", "worse")
_MOST_STUDIES = 5
_SCORE_HINT = (
    "↑ higher is better, ↓ lower is better. Each score has one value per system, the one to report: over all shared "
    "samples for which the system has one, with its 95% interval. The difference to {first} has a 95% interval from "
    "{replicates} paired bootstrap replicates, and p of approximate randomization with {rounds} rounds; both are over "
    "the n samples for which both systems have a value. 'Holm' is p adjusted by Holm's method; 'better' and 'worse' "
    "mark an adjusted p of at most {significant}."
)
_OTHER_HINT = "These scores are not tested for significance as a family: their p is not adjusted."
_FINDING_HINT = (
    "Numbers of studies that both systems have scored. In references: the reference states the finding. Errors: the "
    "finding has another attribute, or is omitted, unsupported or contradicted. Improved and worse: the verdict is "
    "better or worse than that of the first system, in this order: correct, attribute error, omitted or unsupported, "
    "contradicted. Net: improved minus worse. These numbers have no test of significance."
)
_SYSTEMS_HINT = (
    "Empty candidates: drafts without text. Not scored: samples without a candidate, or that some metric could not "
    "score."
)


def write_comparison(comparison: Comparison, folder: Path) -> None:
    """Write `comparison.json`, `comparison.csv` (one row per score and system), `comparison.html` and its forest plot.

    Where the findings of two systems were compared, `comparison_findings.csv` has one row per finding and sample in
    which they differ.
    """
    write_json(folder / "comparison.json", asdict(comparison))
    write_csv(folder / "comparison.csv", SCORE_COLUMNS, comparison.score_rows())
    if any(comparison.findings):
        changes = [
            [system, contrast.metric, contrast.finding, change.sample_id, label, change.baseline, change.system]
            for system, contrasts in zip(comparison.systems, comparison.findings, strict=True)
            for contrast in contrasts
            for label in _CHANGES
            for change in getattr(contrast, label)
        ]
        Table(_FINDING_COLUMNS, changes).write(folder / "comparison_findings.csv")
    title = f"Comparison: {', '.join(comparison.systems)}"
    plot = _forest_plot(comparison, folder / "comparison_forest")
    write_page(folder / "comparison.html", title, comparison.results(words), _sections(comparison, plot))


def _sections(comparison: Comparison, plot: Plot | str) -> Iterator[Section]:
    first = comparison.systems[0]
    hint = _SCORE_HINT.format(first=first, significant=SIGNIFICANT, **comparison.options)
    compared = list(enumerate(comparison.systems))[1:]
    for index, name in compared:
        table = difference_table(comparison, index, comparison.main_scores, display=words)
        last = [plot, hint, *comparison.notes] if index == len(compared) else []
        yield Section(f"{name} compared with {first}", [table, *last])
    if others := [name for name in comparison.scores if name not in comparison.main_scores]:
        tables = (difference_table(comparison, index, others, display=words, is_tested=False) for index, _ in compared)
        yield Section("Other scores", [*tables, _OTHER_HINT], is_folded=True)
    for index, contrasts in enumerate(comparison.findings):
        if contrasts:
            yield _finding_section(comparison, index)
    yield Section("Systems", [systems_table(comparison), _SYSTEMS_HINT])


def _forest_plot(comparison: Comparison, path: Path) -> Plot | str:
    """Draw the differences of the main scores to the first system, or return what the plot needs."""
    from radfact.pages.plots import forest

    first, texts = comparison.systems[0], []
    panels: dict[str, list[tuple[str, str, Estimate]]] = defaultdict(list)
    for name in comparison.main_scores:
        direction = comparison.scores[name][0].summary.direction
        sign = -1 if direction == "lower" else 1
        for system, contrast in list(zip(comparison.systems, comparison.scores[name], strict=True))[1:]:
            if (difference := contrast.difference) is not None and difference.point is not None:
                low, high = (end and sign * end for end in (difference.low, difference.high)[::sign])
                estimate = Estimate(sign * difference.point, low, high, difference.n)
                unit = f" ({comparison.units[name]})" if name in comparison.units else ""
                panel = panels[f"Difference to {first}{unit}; right is better"]
                panel.append((score_label(words(name), direction, None), system, estimate))
                texts.append(f"{system}, {words(name)}: {with_interval(difference, '+')}")
    if not panels:
        return "No main score has a value in two systems on the same samples, so there is no plot of differences."
    try:
        return Plot(forest(panels, path), f"Differences to {first} with 95% intervals. {'; '.join(texts)}.")
    except InputError as error:
        return f"The forest plot {error.message}"


def difference_table(
    comparison: Comparison,
    index: int,
    names: Sequence[str] = (),
    *,
    display: Callable[[str], str] = str,
    is_tested: bool = True,
) -> Table:
    """Return scores of a system and of the first one, their difference on common samples, and p adjusted if tested."""
    rounds = comparison.options["rounds"]
    rows = []
    for name in names or comparison.scores:
        first, contrast = (comparison.scores[name][place] for place in (0, index))
        values = [with_interval(score.summary) for score in (first, contrast)]
        n = contrast.difference and contrast.difference.n
        p, holm = (_format_p(value, contrast.p, rounds) for value in (contrast.p, contrast.p_holm))
        label = score_label(display(name), contrast.summary.direction, comparison.units.get(name))
        rows.append([label, *values, with_interval(contrast.difference, "+"), n, p, holm, _verdict(contrast)])
    systems = [comparison.systems[0], comparison.systems[index]]
    table = Table(["Score", *systems, "difference [95% interval]", "n", "p", "Holm", "result"], rows)
    return table if is_tested else Table(table.headings[:-2], [row[:-2] for row in rows])


def finding_table(comparison: Comparison, index: int, *, most: int | None = None) -> Table:
    """Return the findings in which a system is better or worse than the first one, the largest improvement first."""
    changed = [contrast for contrast in comparison.findings[index] if contrast.improved or contrast.worse]
    if most is not None:
        better, worse = ([item for item in changed if item.net * sign > 0] for sign in (1, -1))
        changed = [*better[:most], *worse[-most:]]
    rows = [
        [
            _finding_name(comparison, contrast),
            *(contrast.support, contrast.baseline_errors, contrast.errors),
            *(len(contrast.improved), len(contrast.worse), f"{contrast.net:+d}" if contrast.net else "0"),
        ]
        for contrast in changed
    ]
    errors = [f"errors of {name}" for name in (comparison.systems[0], comparison.systems[index])]
    return Table(["Finding", "in references", *errors, "improved", "worse", "net"], rows)


def _finding_name(comparison: Comparison, contrast: FindingContrast) -> str:
    metrics = {other.metric for contrasts in comparison.findings for other in contrasts}
    return f"{contrast.name} ({contrast.metric})" if len(metrics) > 1 else contrast.name


def _finding_section(comparison: Comparison, index: int) -> Section:
    parts: list[Table | Plot | str] = [finding_table(comparison, index), _FINDING_HINT]
    for label in _CHANGES:
        table = _change_table(comparison, index, label)
        if table.rows:
            parts += [f"Studies with a finding that is {label}; comparison_findings.csv lists all:", table]
    heading = f"Findings of {comparison.systems[index]} compared with {comparison.systems[0]}"
    return Section(heading, parts, is_folded=True)


def _change_table(comparison: Comparison, index: int, label: str) -> Table:
    """Return the changes of verdicts by finding, the most frequent first, with some of their studies."""
    studies: dict[tuple[str, str], list[str]] = {}
    for contrast in comparison.findings[index]:
        for change in getattr(contrast, label):
            verdicts = [str(verdict or "not stated") for verdict in (change.baseline, change.system)]
            key = _finding_name(comparison, contrast), " → ".join(verdicts).replace("_", " ")
            studies.setdefault(key, []).append(change.sample_id)
    rows = [
        [*key, len(ids), ", ".join(ids[:_MOST_STUDIES]) + (" …" if len(ids) > _MOST_STUDIES else "")]
        for key, ids in sorted(studies.items(), key=lambda item: -len(item[1]))
    ]
    return Table(["Finding", f"{comparison.systems[0]} → {comparison.systems[index]}", "n", "studies"], rows)


def systems_table(comparison: Comparison) -> Table:
    """Return what the scores of each system were computed from."""
    columns = (comparison.own, comparison.empty_candidates, comparison.excluded, comparison.models)
    rows = [
        [name, own, comparison.shared, empty, excluded, "; ".join(f"{m}: {model}" for m, model in models.items())]
        for name, own, empty, excluded, models in zip(comparison.systems, *columns, strict=True)
    ]
    return Table(["System", "samples", "shared", "empty candidates", "not scored", "judge or model"], rows)


def with_interval(summary: Summary | None, sign: str = "") -> str | None:
    """Format a value with its interval; with the sign "+", positive numbers have a sign as well."""
    if summary is None or summary.point is None:
        return None
    has_interval = summary.low is not None and summary.high is not None
    interval = f" [{summary.low:{sign}.3f}, {summary.high:{sign}.3f}]" if has_interval else ""
    return f"{summary.point:{sign}.3f}{interval}"


def _format_p(value: float | None, p: float | None, rounds: int) -> str | None:
    """Format a p-value with the decimals that the rounds resolve; from the smallest possible raw `p`, as a bound."""
    if value is None or p is None:
        return None
    decimals = max(3, math.ceil(math.log10(rounds + 1) - 0.01))
    if p * (rounds + 1) > 1.5 or value == 1:
        return f"{value:.{decimals}f}"
    return f"≤ {math.ceil(round(value * 10**decimals, 6)) / 10**decimals:.{decimals}f}"


def _verdict(contrast: Contrast) -> Tag | str:
    """Return whether the system is significantly better or worse; empty for neither, and without a direction."""
    verdict = contrast.verdict
    return "" if verdict is None or verdict == "different" else Tag(verdict, "yes" if verdict == "better" else "no")


SIDES = ("baseline", "candidate")
"""Names of the drafts of the first and of the second run."""

_VERDICT = ("status", "relation", "spatial", "overlap", "evidence", "why", "error")
_OF_BOTH = ("images", "indication", "technique", "comparison", "prior_report")


class RunPair(StudyList):
    """Two runs and the studies that both have; scores of their list are those of the second run minus the first."""

    def __init__(self, first: OpenedRun, second: OpenedRun) -> None:
        """Compare two runs study by study."""
        self.runs = (first, second)
        ids = [sample_id for sample_id in first.studies.indices if sample_id in second.studies.indices]
        self._rows = [(first.studies.indices[sample_id], second.studies.indices[sample_id]) for sample_id in ids]
        columns = [run.studies.scores for run in self.runs]
        scores = {
            name: [_difference(columns[0][name][a], columns[1][name][b]) for a, b in self._rows]
            for name in columns[0]
            if name in columns[1]
        }
        failures: dict[int, str] = {}
        for index, rows in enumerate(self._rows):
            known = [(run.name, run.studies.failures.get(row)) for run, row in zip(self.runs, rows, strict=True)]
            if reasons := [f"{name}: {reason}" for name, reason in known if reason is not None]:
                failures[index] = "; ".join(reasons)
        super().__init__(ids, scores, failures)
        self._add_kinds()
        self._add_findings()

    @property
    def short_names(self) -> tuple[str, str]:
        """Files of both runs if they differ, or else the names of the runs without the folders that they share."""
        first, second = (run.file for run in self.runs)
        if first and second and first != second:
            return first, second
        parts = [run.name.split("/") for run in self.runs]
        shared = 0
        while parts[0][shared] == parts[1][shared] and shared + 1 < min(map(len, parts)):
            shared += 1
        return "/".join(parts[0][shared:]), "/".join(parts[1][shared:])

    def describe_counts(self) -> str:
        """Return sentences with the numbers of shared studies and of the others."""
        shared = len(self.indices)
        text = f"{shared} studies are in both runs"
        for run in self.runs:
            if count := len(run.studies.indices) - shared:
                text += f"; {count} {'is' if count == 1 else 'are'} only in {run.label}"
        if differing := len(self.kinds.get("other_reference", ())):
            text += f". In {differing} of them the reference differs or was split into other sentences"
        return f"{text}."

    def _of_both(self, groups: Sequence[Mapping[str, Collection[int]]]) -> list[dict[str, set[int]]]:
        """Return groups of studies of each run with the indices of those that both have."""
        index_of = [{rows[run]: index for index, rows in enumerate(self._rows)} for run in (0, 1)]
        return [
            {key: {known[row] for row in rows if row in known} for key, rows in own.items()}
            for known, own in zip(index_of, groups, strict=True)
        ]

    def _add_kinds(self) -> None:
        """Select the studies by their kinds in each run, and by how drafts and verdicts on the reference differ."""
        first, second = (defaultdict(set, kinds) for kinds in self._of_both([run.studies.kinds for run in self.runs]))
        for side, kinds in zip(SIDES, (first, second), strict=True):
            self.kinds.update({f"{side}:{kind}": indices for kind, indices in kinds.items()})
        self.kinds.update({kind: first[kind] | second[kind] for kind in ("inputs", "lateral", "prior")})
        self.kinds["emptied"] = second["empty"] - first["empty"]
        self.kinds["filled"] = first["empty"] - second["empty"]
        for index, rows in enumerate(self._rows):
            before, after = (run.studies.reports[row] for run, row in zip(self.runs, rows, strict=True))
            if _contents(before["candidate"]) != _contents(after["candidate"]):
                self.kinds["changed"].add(index)
            if _contents(before["reference"]) != _contents(after["reference"]):
                self.kinds["other_reference"].add(index)
                continue
            for at, (*_, status) in before["reference"].items():
                statuses = (status, after["reference"][at][-1])
                if None not in statuses and statuses.count("entailment") == 1:
                    self.kinds["lost" if status == "entailment" else "gained"].add(index)

    def _add_findings(self) -> None:
        """Add the findings of both runs, and of each finding whether the second run is better or worse."""
        tiers: dict[str, list[tuple[str, set[int]]]] = defaultdict(list)
        for own in self._of_both([run.studies.findings for run in self.runs]):
            for key, indices in own.items():
                self.findings[key] |= indices
        for key, indices in self.findings.items():
            concept, tier, _ = key.split("\t")
            tiers[concept].append((tier, indices))
        outcomes = [read_outcomes(run.folder, self.indices) for run in self.runs]
        for contrast in contrast_findings(*outcomes):
            for label in _CHANGES:
                changed = {self.indices[change.sample_id] for change in getattr(contrast, label)}
                for tier, indices in tiers[contrast.finding]:
                    self.findings[f"{contrast.finding}\t{tier}\t{label}"] |= changed & indices

    def study(self, sample_id: str) -> dict[str, Any] | None:
        """Return a study of both runs for the page's script, or None; `separate` if the references differ."""
        if sample_id not in self.indices:
            return None
        first, second = studies = [study for run in self.runs if (study := run.study(sample_id)) is not None]
        by_side = dict(zip(SIDES, studies, strict=True))
        merged: dict[str, Any] = {
            "sample_id": sample_id,
            "scored": True,
            "scores": {name: [study["scores"][name] for study in studies] for name in self.scores},
            "failures": {side: study["failure"] for side, study in by_side.items() if study["failure"]},
        }
        if self.indices[sample_id] in self.kinds.get("other_reference", ()):
            judged = (RADFACT in run.scores.metrics for run in self.runs)
            own = [{**study, "judged": is_judged} for study, is_judged in zip(studies, judged, strict=True)]
            return {**merged, "separate": dict(zip(SIDES, own, strict=True))}
        removed = [study.get("removed", {}) for study in studies]
        return {
            **merged,
            **{name: second.get(name) or first.get(name) for name in _OF_BOTH if name in first or name in second},
            "baseline": first["candidate"],
            "candidate": second["candidate"],
            "reference": list(map(_with_verdicts, first["reference"], second["reference"])),
            "removed": removed[1] | ({"baseline": removed[0]["candidate"]} if "candidate" in removed[0] else {}),
            "findings": second.get("findings", {}),
            "baseline_findings": first.get("findings", {}),
            "details": second.get("details", {}),
            "baseline_details": first.get("details", {}),
        }

    def search(self, text: str) -> list[int]:
        """Return the indices of the studies that contain every word of a text in one of the runs."""
        first, second = self._of_both([{text: run.studies.search(text)} for run in self.runs])
        return sorted(first[text] | second[text])

    @cached_property
    def compared_scores(self) -> dict[str, Any]:
        """Scores of both runs on the shared studies with intervals and tests, as texts; computed as `radfact compare`.

        `main` has the indices of the main scores among the rows. The result is kept in the user's cache until the files
        of a run change.
        """
        versions = [(str(run.folder.resolve()), run.version) for run in self.runs]
        key = hashlib.sha256(dumps([project_version(), versions, self.short_names]).encode()).hexdigest()
        file = user_cache() / "radfact" / "comparisons" / f"{key}.json"
        with suppress(InputError, RunError):
            return dict(read_json(file))
        comparison = replace(compare([run.folder for run in self.runs]), systems=self.short_names)
        table = difference_table(comparison, 1, display=words)
        compared = {
            "headings": list(table.headings),
            "rows": table.cells,
            "main": [index for index, name in enumerate(comparison.scores) if name in comparison.main_scores],
            "notes": [*comparison.results(words), *comparison.notes],
        }
        # The cache may be read-only or full.
        with suppress(InputError, RunError, OSError):
            write_json(file, compared)
        return compared


def _difference(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else second - first


def _contents(report: Mapping[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """Return text and regions of each sentence."""
    return {index: tuple(content) for index, (*content, _) in report.items()}


def _with_verdicts(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sentence of the reference with the verdicts of both runs."""
    verdicts = [{name: sentence[name] for name in _VERDICT if name in sentence} for sentence in (first, second)]
    text = {name: value for name, value in second.items() if name not in _VERDICT}
    return {**text, "verdicts": dict(zip(SIDES, verdicts, strict=True))}
