"""The studies of a results folder: columns for the list of a page, and each study as the page's script expects it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from radfact.errors import ErrorCode, InputError, check_unique_id
from radfact.findings.details import FindingDetails, FindingTable, read_details
from radfact.io.jsonl import read_jsonl
from radfact.metrics.radfact.options import Compat
from radfact.metrics.radfact.regions import covered_share
from radfact.metrics.radfact.scores import PARTS, Side
from radfact.pages.findings import finding_keys, list_findings, name_errors
from radfact.pages.rows import FileRows
from radfact.records import Sentence, is_missing, parse_sentences, validate_model
from radfact.results.reader import iter_samples
from radfact.results.schema import (
    METRICS_FOLDER,
    RADFACT,
    MetricRow,
    NarrativeRow,
    RemovedRow,
    Row,
    SampleRow,
    ScoresFile,
    SentenceRow,
    finding_metrics,
    scores_with_value,
)

_SHOWN = {"text", "boxes", "masks", "prior_boxes", "status", "spatial", "why", "relation", "polarity"}
_IMAGES = ("frontal", "lateral", "prior_frontal")
_CONTEXT = ("indication", "technique", "comparison", "prior_report")


class ManifestRow(Row):
    """Fields of a manifest record that a page shows."""

    sample_id: str
    frontal: str | None = None
    lateral: str | None = None
    prior_frontal: str | None = None
    indication: str | None = None
    technique: str | None = None
    comparison: str | None = None
    prior_report: str | None = None


class _Draft(Row):
    sample_id: str
    report: Any
    model: str | None = None


class StudyList:
    """Columns of the list of studies on a page, in which studies are known by their indices."""

    def __init__(
        self, ids: Sequence[str], scores: Mapping[str, Sequence[float | None]], failures: Mapping[int, str]
    ) -> None:
        self.indices = {sample_id: index for index, sample_id in enumerate(ids)}
        self.scores, self.failures = scores, failures
        self.kinds: dict[str, set[int]] = defaultdict(set)
        self.findings: dict[str, set[int]] = defaultdict(set)  # by concept, tier and kind as one text

    @property
    def columns(self) -> dict[str, Any]:
        """The columns as JSON values; scores are rounded to four decimal places."""
        rounded = {
            name: [None if value is None else round(value, 4) for value in column]
            for name, column in self.scores.items()
        }
        kinds, findings = (
            {key: sorted(group) for key, group in groups.items() if group} for groups in (self.kinds, self.findings)
        )
        columns = {"scores": rounded, "failures": self.failures, "kinds": kinds, "findings": findings}
        return {"ids": list(self.indices), **columns}


class Studies(StudyList):
    """The studies of a results folder; the rows of each are read from disk when it is shown."""

    def __init__(self, folder: Path, scores: ScoresFile, compat: Compat | None) -> None:
        """Find the studies; with `compat`, a sentence is shown with the share of its region that the score compares."""
        samples = list(iter_samples(folder, SampleRow, list(scores.scores)))
        if (expected := scores.counts.get("samples", len(samples))) != len(samples):
            message = f"expected {expected} samples as in scores.json, found {len(samples)}"
            raise InputError(message, code=ErrorCode.MISMATCH, file=folder / "samples.jsonl")
        super().__init__(
            [sample.sample_id for sample in samples],
            {
                name: [(sample.model_extra or {}).get(name) for sample in samples]
                for name in scores_with_value(scores.scores)
            },
            {index: sample.reason for index, sample in enumerate(samples) if sample.reason},
        )
        self._compat = compat
        self._context: list[list[str]] = [[] for _ in samples]
        # Text, regions and status of each sentence by its index, by side.
        self.reports: list[dict[str, dict[str, tuple[Any, ...]]]] = [{side: {} for side in PARTS} for _ in samples]
        self.has_regions = False
        self.finding_tables = {metric: FindingTable() for metric in finding_metrics(scores)}
        self._sentences = FileRows(folder / "sentences.jsonl", SentenceRow, self.indices, self._add_sentence)
        self._narratives = self._removed = None
        if (path := folder / "narratives.jsonl").is_file():
            self._narratives = FileRows(path, NarrativeRow, self.indices)
        if (path := folder / "removed.jsonl").is_file():
            self._removed = FileRows(path, RemovedRow, self.indices)
        self._details = {
            metric: FileRows(path, MetricRow, self.indices, partial(self._add_details, metric, path))
            for metric in scores.metrics
            if metric != RADFACT and (path := folder / METRICS_FOLDER / f"{metric}.jsonl").is_file()
        }
        self.kinds["failed"].update(self.failures)
        for index, sides in enumerate(self.reports):
            if sides["reference"] and not sides["candidate"] and index not in self.failures:
                self.kinds["empty"].add(index)

    def _add_sentence(self, sample_id: str, _: int, row: Mapping[str, Any]) -> None:
        """Add the content of a sentence and the kinds of study that it makes."""
        index, side, status = self.indices[sample_id], str(row.get("side")), row.get("status")
        if status == "not_entailment":
            self.kinds["unsupported" if side == "candidate" else "missed"].add(index)
        if status == "entailment" and row.get("spatial") == "not_entailed":
            self.kinds["misplaced"].add(index)
        if row.get("relation") == "contradiction":
            self.kinds["contradicted"].add(index)
        regions = [row.get(name) or None for name in ("boxes", "masks")]
        self.has_regions |= any(regions)
        # Compared as text, which takes less memory.
        content = (str(row.get("text")), str(regions), status)
        self.reports[index].setdefault(side, {})[str(row.get("index"))] = content

    def _add_details(self, metric: str, path: Path, sample_id: str, line: int, values: Mapping[str, Any]) -> None:
        """Count the findings of a sample, and add the keys by which a page selects studies by finding."""
        if metric in self.finding_tables:
            row = validate_model(MetricRow, values, file=path, line=line)
            if (compared := read_details(row.details, file=path, line=line)) is not None:
                self.finding_tables[metric].add(compared)
                for key in finding_keys(compared):
                    self.findings[key].add(self.indices[sample_id])

    def add_context(self, sample_id: str, record: Mapping[str, Any]) -> None:
        """Add sections and inputs from a record in a manifest, if it is of one of the studies."""
        if (index := self.indices.get(sample_id)) is not None:
            self._context[index] += [str(record[name]) for name in _CONTEXT if record.get(name)]
            self.kinds["inputs"].add(index)
            if record.get("lateral"):
                self.kinds["lateral"].add(index)
            if record.get("prior_frontal") or record.get("prior_report"):
                self.kinds["prior"].add(index)

    def search(self, text: str) -> list[int]:
        """Return the indices of the studies that contain every word of a text, in reports or context."""
        words = text.lower().split()
        found = []
        for sample_id, index in self.indices.items():
            reports = [content[0] for report in self.reports[index].values() for content in report.values()]
            searched = "\n".join([sample_id, self.failures.get(index, ""), *self._context[index], *reports]).lower()
            if all(word in searched for word in words):
                found.append(index)
        return found

    def show(self, sample_id: str) -> dict[str, Any]:
        """Return a study with the sentences of both reports, what a splitter removed, and details of metrics."""
        index = self.indices[sample_id]
        study: dict[str, Any] = {
            "sample_id": sample_id,
            "scored": True,
            "scores": {name: column[index] for name, column in self.scores.items()},
            "failure": self.failures.get(index),
            **self._sentences_by_side(sample_id),
        }
        if removed := self._removed_by_side(sample_id):
            study["removed"] = removed
        for metric, rows in self._details.items():
            for line, row in rows.take(sample_id)[:1]:
                shown: Mapping[str, Any] = row.details
                if metric in self.finding_tables and (compared := read_details(shown, file=rows.path, line=line)):
                    study.setdefault("findings", {})[metric] = list_findings(compared, study)
                    shown = {name: value for name, value in shown.items() if name not in FindingDetails.model_fields}
                if shown:
                    study.setdefault("details", {})[metric] = shown
        name_errors(study)
        return study

    def _sentences_by_side(self, sample_id: str) -> dict[str, Any]:
        """Return the sentences of both reports in order, each with the share of its region that the score compares."""
        rows = self._sentences.take(sample_id)
        sides: dict[str, list[dict[str, Any]]] = {side: [] for side in PARTS}
        by_index = {(row.side, row.index): row for _, row in rows}
        for line, row in sorted(rows, key=lambda item: (item[1].side, item[1].index)):
            other: Side = "reference" if row.side == "candidate" else "candidate"
            number = len(sides[row.side])
            if row.index != number:
                message = f"expected {row.side} sentence {number} of {sample_id!r}, found {row.index}"
                code = ErrorCode.DUPLICATE if row.index < number else ErrorCode.MISMATCH
                raise self._sentences.error(message, line, "index", code)
            for at in row.evidence:
                if (other, at) not in by_index:
                    message = f"evidence {at} is no {other} sentence of {sample_id!r}"
                    raise self._sentences.error(message, line, "evidence")
            shown = {**row.model_dump(include=_SHOWN, exclude_none=True), "evidence": row.evidence}
            if self._compat is not None and row.status == "entailment" and (row.boxes or row.masks):
                own, *premises = map(_region, (row, *(by_index[other, at] for at in row.evidence)))
                overlap = covered_share(own, premises, compat=self._compat)
                if not math.isnan(overlap) and any(premise.has_region for premise in premises):
                    shown["overlap"] = overlap
            sides[row.side].append(shown)
        return sides

    def _removed_by_side(self, sample_id: str) -> dict[str, Any]:
        """Return the parts of each narrative from which something was removed, and what has no position in it."""
        if self._removed is None:
            return {}
        narratives = self._narratives.take(sample_id) if self._narratives else []
        texts: dict[str, str] = {row.side: row.text for _, row in narratives}
        sides: dict[str, dict[str, Any]] = {}
        ends: dict[str, int] = dict.fromkeys(PARTS, 0)
        for line, row in sorted(self._removed.take(sample_id), key=lambda item: item[1].start or 0):
            side = sides.setdefault(row.side, {"narrative": [], "unlocated": []})
            narrative, end = texts.get(row.side), ends[row.side]
            if narrative is None or row.start is None or row.end is None:
                side["unlocated"].append({"text": row.text, "reason": row.reason})
                continue
            if not end <= row.start < row.end <= len(narrative):
                message = f"expected a part between {end} and {len(narrative)}, found {row.start} to {row.end}"
                raise self._removed.error(message, line, "start")
            part = {"text": narrative[row.start : row.end], "reason": row.reason, "removed": True}
            side["narrative"] += [{"text": narrative[end : row.start]}, part]
            ends[row.side] = row.end
        for name, side in sides.items():
            if narrative := texts.get(name):
                side["narrative"].append({"text": narrative[ends[name] :]})
        return {side: sides[side] for side in PARTS if side in sides}


def _region(row: SentenceRow) -> Sentence:
    # The row is valid already, and only regions are compared.
    return Sentence.model_construct(text=row.text, boxes=row.boxes, masks=row.masks)


def read_drafts(path: Path) -> list[dict[str, Any]]:
    """Return the drafts of a file as studies without a reference, except those whose report is missing."""
    drafts: list[dict[str, Any]] = []
    seen: dict[str, int] = {}
    for line, row in read_jsonl(path):
        draft = validate_model(_Draft, row, file=path, line=line)
        check_unique_id(seen, draft.sample_id, line, file=path)
        report = draft.report
        if is_missing(report):
            continue
        if isinstance(report, str):
            report = [{"text": report}] if report.strip() else []
        sentences = parse_sentences(report, file=path, line=line)
        candidate = [{**s.model_dump(include=_SHOWN, exclude_none=True), "evidence": ()} for s in sentences]
        drafts.append({"sample_id": draft.sample_id, "scored": False, "model": draft.model, "candidate": candidate})
    return drafts


class StudyContext:
    """Report sections and image paths of samples; the first manifest that contains a sample is used."""

    def __init__(self, manifests: Sequence[Path], studies: Studies | None = None) -> None:
        """Find the records of the manifests, and add them to the columns of studies."""
        self.ids: set[str] = set()

        def visit(sample_id: str, _: int, record: Mapping[str, Any]) -> None:
            if studies is not None and sample_id not in self.ids:
                studies.add_context(sample_id, record)
            self.ids.add(sample_id)

        self._manifests = [FileRows(path, ManifestRow, visit=visit) for path in manifests]

    def of(self, sample_id: str) -> dict[str, Any]:
        """Return sections and image paths of a sample, in the form of a study; empty if no manifest has it."""
        for manifest in self._manifests:
            for _, row in manifest.take(sample_id)[:1]:
                record, folder = row.model_dump(), manifest.path.parent
                images = {kind: record[kind] and folder / record[kind] for kind in _IMAGES}
                return {**{name: record[name] for name in _CONTEXT}, "images": images}
        return {}
