"""Two runs side by side: the columns of the list of shared studies, and each study with both drafts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from radfact.findings.contrasts import contrast_findings
from radfact.pages.comparison_page import difference_table
from radfact.pages.markup import words
from radfact.pages.opened_run import OpenedRun
from radfact.pages.runs import main_scores
from radfact.pages.studies import StudyList
from radfact.results.compare import compare
from radfact.results.reader import read_outcomes
from radfact.results.schema import RADFACT

SIDES = ("baseline", "candidate")
"""Names of the drafts of the first and of the second run."""

_VERDICT = ("status", "relation", "spatial", "overlap", "evidence", "why")
_OF_BOTH = ("images", "indication", "technique", "comparison", "prior_report")


class RunPair:
    """Two runs and the studies that both have; scores of their list are those of the second run minus the first."""

    def __init__(self, first: OpenedRun, second: OpenedRun) -> None:
        """Compare two runs study by study."""
        self.runs = (first, second)
        lists = (first.columns, second.columns)
        self.names = [name for name in lists[0].scores if name in lists[1].scores]
        self.columns = StudyList(self.names)
        second_rows = lists[1].indices
        self._rows = [(row, second_rows[key]) for key, row in lists[0].indices.items() if key in second_rows]
        self.columns.ids = [lists[0].ids[row] for row, _ in self._rows]
        self.columns.indices = {sample_id: index for index, sample_id in enumerate(self.columns.ids)}
        self._add_scores()
        self._add_kinds()
        self._add_findings()

    @property
    def short_names(self) -> tuple[str, str]:
        """Names of both runs without the folders that they share."""
        parts = [run.name.split("/") for run in self.runs]
        shared = 0
        while parts[0][shared] == parts[1][shared] and shared + 1 < min(map(len, parts)):
            shared += 1
        return "/".join(parts[0][shared:]), "/".join(parts[1][shared:])

    def describe_counts(self) -> str:
        """Return sentences with the numbers of shared studies and of the others."""
        shared = len(self.columns.ids)
        text = f"{shared} studies are in both runs"
        for run in self.runs:
            if count := len(run.columns.ids) - shared:
                text += f"; {count} {'is' if count == 1 else 'are'} only in {run.name}"
        if differing := len(self.columns.kinds.get("other_reference", ())):
            text += f". In {differing} of them the reference differs or was split into other sentences"
        return f"{text}."

    def _add_scores(self) -> None:
        first, second = (run.columns for run in self.runs)
        for name in self.names:
            pairs = ((first.scores[name][a], second.scores[name][b]) for a, b in self._rows)
            self.columns.scores[name] = [None if a is None or b is None else round(b - a, 4) for a, b in pairs]
        for index, rows in enumerate(self._rows):
            reasons = [
                f"{run.name}: {run.columns.failures[row]}"
                for run, row in zip(self.runs, rows, strict=True)
                if row in run.columns.failures
            ]
            if reasons:
                self.columns.failures[index] = "; ".join(reasons)

    def _add_kinds(self) -> None:
        of_runs = [run.columns.kinds for run in self.runs]
        for index, rows in enumerate(self._rows):
            first, second = (
                {kind for kind, indices in kinds.items() if row in indices}
                for kinds, row in zip(of_runs, rows, strict=True)
            )
            kinds = {f"{side}:{kind}" for side, own in zip(SIDES, (first, second), strict=True) for kind in own}
            kinds |= (first | second) & {"inputs", "lateral", "prior"}
            if "empty" in first ^ second:
                kinds.add("emptied" if "empty" in second else "filled")
            for kind in kinds | set(self._changes(rows)):
                self.columns.kinds.setdefault(kind, set()).add(index)

    def _changes(self, rows: tuple[int, int]) -> Iterator[str]:
        """Yield how the drafts and the verdicts on the reference differ."""
        first, second = (run.columns.reports[row] for run, row in zip(self.runs, rows, strict=True))
        if _contents(first["candidate"]) != _contents(second["candidate"]):
            yield "changed"
        if _contents(first["reference"]) != _contents(second["reference"]):
            yield "other_reference"
            return
        for at, (_, status) in first["reference"].items():
            statuses = (status, second["reference"][at][1])
            if None not in statuses and statuses.count("entailment") == 1:
                yield "lost" if statuses[0] == "entailment" else "gained"

    def _add_findings(self) -> None:
        """Add the findings of both runs, and of each finding whether the second run is better or worse."""
        findings = self.columns.findings
        for run, rows in zip(self.runs, zip(*self._rows, strict=True), strict=False):
            index_of = {row: index for index, row in enumerate(rows)}
            for key, indices in run.columns.findings.items():
                if shared := {index_of[row] for row in indices if row in index_of}:
                    findings.setdefault(key, set()).update(shared)
        tiers: dict[str, list[tuple[str, set[int]]]] = {}
        for key, indices in findings.items():
            concept, tier, _ = key.split("\t")
            tiers.setdefault(concept, []).append((tier, indices))
        outcomes = [read_outcomes(run.folder, self.columns.ids) for run in self.runs]
        for contrast in contrast_findings(*outcomes):
            for label, changes in (("improved", contrast.improved), ("worse", contrast.worse)):
                changed = {self.columns.indices[change.sample_id] for change in changes}
                for tier, indices in tiers.get(contrast.finding, ()):
                    if common := changed & indices:
                        findings.setdefault(f"{contrast.finding}\t{tier}\t{label}", set()).update(common)

    def study(self, sample_id: str) -> dict[str, Any] | None:
        """Return a study with the drafts of both runs in the form of the page's script; None if not both have it.

        Where the reference reports differ, `separate` has the study of each run.
        """
        if sample_id not in self.columns.indices:
            return None
        studies = [study for run in self.runs if (study := run.study(sample_id)) is not None]
        first, second = studies
        by_side = dict(zip(SIDES, studies, strict=True))
        merged: dict[str, Any] = {
            "sample_id": sample_id,
            "scored": True,
            "scores": {name: [study["scores"].get(name) for study in studies] for name in self.names},
            "failures": {side: study["failure"] for side, study in by_side.items() if study["failure"]},
        }
        if _texts(first["reference"]) != _texts(second["reference"]):
            judged = (RADFACT in run.content.scores.metrics for run in self.runs)
            own = [{**study, "judged": is_judged} for study, is_judged in zip(studies, judged, strict=True)]
            return {**merged, "separate": dict(zip(SIDES, own, strict=True))}
        for name in _OF_BOTH:
            if any(study.get(name) for study in studies):
                merged[name] = second.get(name) or first.get(name)
        removed = {side: study.get("removed", {}) for side, study in by_side.items()}
        return {
            **merged,
            **{side: study["candidate"] for side, study in by_side.items()},
            "reference": [
                _with_verdicts(*sentences) for sentences in zip(*(s["reference"] for s in studies), strict=True)
            ],
            "removed": {
                **{side: parts["candidate"] for side, parts in removed.items() if "candidate" in parts},
                **({"reference": removed["candidate"]["reference"]} if "reference" in removed["candidate"] else {}),
            },
            "findings": second.get("findings", {}),
            "baseline_findings": first.get("findings", {}),
            "details": second.get("details", {}),
            "baseline_details": first.get("details", {}),
        }

    def search(self, text: str) -> list[int]:
        """Return the indices of the studies that contain every word of a text in one of the runs."""
        matches = [set(run.search(text)) for run in self.runs]
        return [
            index
            for index, rows in enumerate(self._rows)
            if any(row in own for row, own in zip(rows, matches, strict=True))
        ]

    @cached_property
    def scores(self) -> dict[str, Any]:
        """Scores of both runs on the shared studies with intervals and tests, as texts; computed as `radfact compare`.

        `main` has the indices of the main scores among the rows.
        """
        comparison = replace(compare([run.folder for run in self.runs]), systems=self.short_names)
        table = difference_table(comparison, 1, display=words)
        main = main_scores(self.runs[1].content.scores)
        return {
            "headings": list(table.headings),
            "rows": table.cells,
            "main": [index for index, name in enumerate(comparison.scores) if name in main],
            "notes": list(comparison.notes),
        }


def _texts(sentences: Sequence[Mapping[str, Any]]) -> list[Any]:
    return [[sentence.get(name) for name in ("text", "boxes", "masks")] for sentence in sentences]


def _contents(report: Mapping[int, tuple[str, str | None]]) -> dict[int, str]:
    return {index: content for index, (content, _) in report.items()}


def _with_verdicts(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sentence of the reference with the verdicts of both runs."""
    verdicts = [{name: sentence[name] for name in _VERDICT if name in sentence} for sentence in (first, second)]
    text = {name: value for name, value in second.items() if name not in _VERDICT}
    return {**text, "verdicts": dict(zip(SIDES, verdicts, strict=True))}
