"""Two runs side by side: the columns of the list of shared studies, and each study with both drafts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from radfact.findings.contrasts import contrast_findings
from radfact.pages.comparison_page import difference_table
from radfact.pages.markup import words
from radfact.pages.meta_page import Tag, format_cell
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
_INPUT_KINDS = ("inputs", "lateral", "prior")


class RunPair:
    """Two runs and the studies that both have.

    Attributes:
        runs: (baseline, system).
        names: of the scores that both have.
        columns: of the list of shared studies, in the order of the first run; scores are the second minus the first.
    """

    def __init__(self, first: OpenedRun, second: OpenedRun) -> None:
        """Compare two runs study by study.

        Raises:
            InputError: a file does not match its schema.
        """
        self.runs = (first, second)
        self.names = [name for name in first.columns.scores if name in second.columns.scores]
        self.columns = StudyList(self.names)
        rows = [{sample_id: index for index, sample_id in enumerate(run.columns.ids)} for run in self.runs]
        self._rows = [(rows[0][key], rows[1][key]) for key in first.columns.ids if key in rows[1]]
        self.columns.ids = [first.columns.ids[index] for index, _ in self._rows]
        self._add_scores()
        self._add_kinds()
        self._add_findings()

    @property
    def title(self) -> str:
        """Names of both runs."""
        return f"{self.runs[1].name} compared with {self.runs[0].name}"

    @property
    def short_names(self) -> tuple[str, str]:
        """Names of both runs without the folders that they share."""
        parts = [run.name.split("/") for run in self.runs]
        shared = 0
        while parts[0][shared] == parts[1][shared] and shared + 1 < min(map(len, parts)):
            shared += 1
        return "/".join(parts[0][shared:]), "/".join(parts[1][shared:])

    def _add_scores(self) -> None:
        first, second = (run.columns for run in self.runs)
        for name in self.names:
            pairs = ((first.scores[name][a], second.scores[name][b]) for a, b in self._rows)
            self.columns.scores[name] = [None if None in (a, b) else round(b - a, 4) for a, b in pairs]  # type: ignore[operator]
        for index, rows in enumerate(self._rows):
            reasons = [
                f"{run.name}: {run.columns.failures[row]}"
                for run, row in zip(self.runs, rows, strict=True)
                if row in run.columns.failures
            ]
            if reasons:
                self.columns.failures[index] = "; ".join(reasons)

    def _add_kinds(self) -> None:
        of_runs = [{kind: set(indices) for kind, indices in run.columns.kinds.items()} for run in self.runs]
        for index, rows in enumerate(self._rows):
            both = [
                {kind for kind, indices in kinds.items() if row in indices}
                for kinds, row in zip(of_runs, rows, strict=True)
            ]
            kinds = [f"{side}:{kind}" for side, own in zip(SIDES, both, strict=True) for kind in own]
            kinds += [kind for kind in _INPUT_KINDS if any(kind in own for own in both)]
            if "empty" in both[1] - both[0]:
                kinds.append("emptied")
            if "empty" in both[0] - both[1]:
                kinds.append("filled")
            for kind in (*kinds, *self._changes(self.columns.ids[index])):
                self.columns.kinds.setdefault(kind, []).append(index)

    def _changes(self, sample_id: str) -> Iterator[str]:
        """Yield how the drafts and the verdicts on the reference differ."""
        first, second = self._studies(sample_id)
        if _texts(first["candidate"]) != _texts(second["candidate"]):
            yield "changed"
        if not _is_same_reference(first, second):
            yield "other_reference"
            return
        statuses = ([sentence.get("status") for sentence in study["reference"]] for study in (first, second))
        known = [pair for pair in zip(*statuses, strict=True) if None not in pair]
        changes = {pair.index("entailment") for pair in known if pair.count("entailment") == 1}
        yield from (kind for index, kind in enumerate(("lost", "gained")) if index in changes)

    def _add_findings(self) -> None:
        """Add the findings of both runs, and of each finding whether the second run is better or worse."""
        keys: list[dict[str, None]] = [{} for _ in self._rows]
        for run, rows in zip(self.runs, zip(*self._rows, strict=True), strict=False):
            index_of = {row: index for index, row in enumerate(rows)}
            for key, indices in run.columns.findings.items():
                for row in indices:
                    if row in index_of:
                        keys[index_of[row]][key] = None
        index_by_id = {sample_id: index for index, sample_id in enumerate(self.columns.ids)}
        outcomes = [read_outcomes(run.folder, self.columns.ids) for run in self.runs]
        for contrast in contrast_findings(*outcomes):
            for label, changes in (("improved", contrast.improved), ("worse", contrast.worse)):
                for change in changes:
                    own = keys[index_by_id[change.sample_id]]
                    tiers = {
                        tier for concept, tier, _ in (key.split("\t") for key in own) if concept == contrast.finding
                    }
                    own.update(dict.fromkeys(f"{contrast.finding}\t{tier}\t{label}" for tier in tiers))
        for index, own in enumerate(keys):
            for key in own:
                self.columns.findings.setdefault(key, []).append(index)

    def _studies(self, sample_id: str) -> list[dict[str, Any]]:
        return [study for run in self.runs if (study := run.study(sample_id)) is not None]

    @cached_property
    def _shared(self) -> frozenset[str]:
        return frozenset(self.columns.ids)

    def study(self, sample_id: str) -> dict[str, Any] | None:
        """Return a study with the drafts of both runs in the form of the page's script; None if not both have it.

        Where the reference reports differ, `separate` has the study of each run.
        """
        if sample_id not in self._shared:
            return None
        first, second = studies = self._studies(sample_id)
        by_side = dict(zip(SIDES, studies, strict=True))
        merged: dict[str, Any] = {
            "sample_id": sample_id,
            "scored": True,
            "scores": {name: [study["scores"].get(name) for study in studies] for name in self.names},
            "failures": {side: study["failure"] for side, study in by_side.items() if study["failure"]},
        }
        if not _is_same_reference(first, second):
            judged = (RADFACT in run.head.scores.metrics for run in self.runs)
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

        Raises:
            InputError: the runs have no score in common.
        """
        comparison = replace(compare([run.folder for run in self.runs]), systems=self.short_names)
        table = difference_table(comparison, 1, display=words)
        main = main_scores(self.runs[1].head.scores)
        return {
            "headings": list(table.headings),
            "rows": [[_cell(cell) for cell in row] for row in table.rows],
            "main": [index for index, name in enumerate(comparison.scores) if name in main],
            "notes": list(comparison.notes),
        }


def _cell(cell: Any) -> tuple[str, str]:
    """Return the text of a cell, and the kind of a tag or an empty text."""
    return (str(cell), cell.kind) if isinstance(cell, Tag) else (format_cell(cell, missing="–"), "")


def _texts(sentences: Sequence[Mapping[str, Any]]) -> list[Any]:
    return [[sentence.get(name) for name in ("text", "boxes", "masks")] for sentence in sentences]


def _is_same_reference(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    return _texts(first["reference"]) == _texts(second["reference"])


def _with_verdicts(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sentence of the reference with the verdicts of both runs."""
    verdicts = [{name: sentence[name] for name in _VERDICT if name in sentence} for sentence in (first, second)]
    text = {name: value for name, value in second.items() if name not in _VERDICT}
    return {**text, "verdicts": dict(zip(SIDES, verdicts, strict=True))}
