"""The studies of a results folder or of a result in memory, in the form that the script of a page expects."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from radfact.errors import ErrorCode, InputError, check_unique_id
from radfact.findings.details import FindingDetails, FindingTable, read_details
from radfact.io.jsonl import read_jsonl
from radfact.metrics.radfact.options import Compat
from radfact.metrics.radfact.regions import covered_share
from radfact.metrics.radfact.scores import PARTS, Side
from radfact.pages.findings import finding_keys, list_findings
from radfact.pages.rows import FileRows, MemoryRows, Rows
from radfact.records import Sentence, parse_sentences, validate_model
from radfact.results.evaluation import EvaluationResult
from radfact.results.reader import finding_metrics_of, iter_samples
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
)

_SHOWN = {"text", "boxes", "masks", "prior_boxes", "status", "spatial", "why", "relation"}
_IMAGES = ("frontal", "lateral", "prior_frontal")
_CONTEXT = ("indication", "technique", "comparison", "prior_report")
_KINDS = ("unsupported", "missed", "misplaced", "contradicted", "failed", "empty")


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


class _FindingRow(Row):
    details: FindingDetails


class _Draft(Row):
    sample_id: str
    report: Any
    model: str | None = None


class StudyList:
    """Columns of the list of studies, the text of each study for the search, and its reports for a comparison.

    `reports` has content and status of each sentence by its index and side.
    """

    def __init__(self, names: Sequence[str]) -> None:
        """Create an empty list with these scores as columns."""
        self.ids: list[str] = []
        self.scores: dict[str, list[float | None]] = {name: [] for name in names}
        self.failures: dict[int, str] = {}
        self.kinds: dict[str, set[int]] = {}
        self.findings: dict[str, set[int]] = {}
        self.reports: list[dict[str, dict[int, tuple[str, str | None]]]] = []
        self.texts: list[list[str]] = []
        self.has_regions = False
        self.indices: dict[str, int] = {}

    @property
    def columns(self) -> dict[str, Any]:
        """The columns as JSON values."""
        kinds, findings = ({key: sorted(group) for key, group in of.items()} for of in (self.kinds, self.findings))
        return {"ids": self.ids, "scores": self.scores, "failures": self.failures, "kinds": kinds, "findings": findings}

    def add_samples(self, samples: Iterable[SampleRow]) -> None:
        """Add samples; their scores are rounded to four decimal places."""
        for sample in samples:
            self.indices[sample.sample_id] = len(self.ids)
            for name, column in self.scores.items():
                value = (sample.model_extra or {}).get(name)
                column.append(None if value is None else round(value, 4))
            if sample.reason:
                self.failures[len(self.ids)] = sample.reason
            self.ids.append(sample.sample_id)
            self.reports.append({side: {} for side in PARTS})
            self.texts.append([sample.sample_id, sample.reason or ""])
        self.kinds = {kind: set() for kind in _KINDS}
        self.kinds["failed"].update(self.failures)

    def add_sentence(self, sample_id: str, row: Mapping[str, Any]) -> None:
        """Add a sentence of a sample: its text and the kinds of study that it makes."""
        index, side, text = self.indices[sample_id], str(row.get("side")), str(row.get("text"))
        for kind in _sentence_kinds(side, row):
            self.kinds[kind].add(index)
        content = f"{text} {row.get('boxes') or None} {row.get('masks') or None}"
        self.reports[index].setdefault(side, {})[row.get("index", 0)] = (content, row.get("status"))
        self.texts[index].append(text)
        self.has_regions |= bool(row.get("boxes") or row.get("masks"))

    def finish(self) -> None:
        """Select the studies with an empty candidate, and drop the kinds without a study."""
        for index, sides in enumerate(self.reports):
            if sides["reference"] and not sides["candidate"] and index not in self.failures:
                self.kinds["empty"].add(index)
        self.kinds = {kind: indices for kind, indices in self.kinds.items() if indices}

    def add_findings(self, sample_id: str, details: FindingDetails) -> None:
        """Add the keys by which a page selects studies by finding."""
        for key in finding_keys(details):
            self.findings.setdefault(key, set()).add(self.indices[sample_id])

    def add_context(self, sample_id: str, record: Mapping[str, Any]) -> None:
        """Add sections and inputs from a record in a manifest, if its sample is listed."""
        if (index := self.indices.get(sample_id)) is not None:
            for kind in _input_kinds(record):
                self.kinds.setdefault(kind, set()).add(index)
            self.texts[index] += [str(record[name]) for name in _CONTEXT if record.get(name)]

    def search(self, text: str) -> list[int]:
        """Return the indices of the studies that contain every word of a text, in reports or context."""
        words = text.lower().split()
        found = []
        for index, parts in enumerate(self.texts):
            searched = "\n".join(parts).lower()
            if all(word in searched for word in words):
                found.append(index)
        return found


def _sentence_kinds(side: str, sentence: Mapping[str, Any]) -> Iterator[str]:
    status = sentence.get("status")
    if status == "not_entailment":
        yield "unsupported" if side == "candidate" else "missed"
    if status == "entailment" and sentence.get("spatial") == "not_entailed":
        yield "misplaced"
    if sentence.get("relation") == "contradiction":
        yield "contradicted"


def _input_kinds(record: Mapping[str, Any]) -> Iterator[str]:
    yield "inputs"
    if record.get("lateral"):
        yield "lateral"
    if record.get("prior_frontal") or record.get("prior_report"):
        yield "prior"


@dataclass(frozen=True, slots=True)
class Studies:
    """The studies of a set in input order: their scores, what else is known of each, and counts by finding."""

    samples: Sequence[SampleRow]
    sentences: Rows[SentenceRow]
    narratives: Rows[NarrativeRow]
    removed: Rows[RemovedRow]
    details: Mapping[str, Rows[MetricRow]]
    finding_tables: Mapping[str, FindingTable]

    def show(self, sample: SampleRow, names: Sequence[str], compat: Compat | None) -> dict[str, Any]:
        """Return a study with the sentences of both reports, what a splitter removed, and details of metrics."""
        sample_id, columns = sample.sample_id, sample.model_extra or {}
        sides = _sentences_by_side(sample_id, self.sentences, compat)
        kinds = {kind for side, rows in sides.items() for row in rows for kind in _sentence_kinds(side, row)}
        if sample.reason:
            kinds.add("failed")
        elif sides["reference"] and not sides["candidate"]:
            kinds.add("empty")
        study: dict[str, Any] = {
            "sample_id": sample_id,
            "scored": True,
            "scores": {name: columns[name] for name in names if name in columns},
            "failure": sample.reason,
            **sides,
            "kinds": [kind for kind in _KINDS if kind in kinds],
        }
        if removed := _removed_by_side(sample_id, self.removed, self.narratives):
            study["removed"] = removed
        for metric, rows in self.details.items():
            for line, row in rows.take(sample_id)[:1]:
                shown: Mapping[str, Any] = row.details
                if metric in self.finding_tables and (compared := read_details(shown, file=rows.path, line=line)):
                    study.setdefault("findings", {})[metric] = list_findings(compared, study)
                    shown = {name: value for name, value in shown.items() if name not in FindingDetails.model_fields}
                if shown:
                    study.setdefault("details", {})[metric] = shown
        return study


def studies_of(result: EvaluationResult) -> Studies:
    """Return the studies of a result in memory."""
    samples = [SampleRow.model_validate(sample.row()) for sample in result.iter_samples()]
    details = {
        metric: MemoryRows(
            MetricRow,
            (
                {"sample_id": pair.sample_id, "details": dict(record)}
                for pair, record in zip(result.pairs, run.result.details, strict=False)
            ),
        )
        for metric, run in result.runs.items()
        if metric != RADFACT
    }
    return Studies(
        samples,
        MemoryRows(SentenceRow, result.sentence_rows()),
        MemoryRows(NarrativeRow, result.narrative_rows()),
        MemoryRows(RemovedRow, result.removed_rows()),
        details,
        result.findings,
    )


def read_studies(folder: Path, scores: ScoresFile, listed: StudyList | None = None) -> Studies:
    """Find the studies of a results folder; the rows of each are read when it is shown."""
    samples = list(iter_samples(folder, SampleRow, list(scores.scores)))
    if (expected := scores.counts.get("samples", len(samples))) != len(samples):
        message = f"expected {expected} samples as in scores.json, found {len(samples)}"
        raise InputError(message, code=ErrorCode.MISMATCH, file=folder / "samples.jsonl")
    known = {sample.sample_id for sample in samples}
    sentences = FileRows(folder / "sentences.jsonl", SentenceRow)
    narratives = FileRows(folder / "narratives.jsonl", NarrativeRow)
    removed = FileRows(folder / "removed.jsonl", RemovedRow)
    paths = {metric: folder / METRICS_FOLDER / f"{metric}.jsonl" for metric in scores.metrics if metric != RADFACT}
    details = {metric: FileRows(path, MetricRow) for metric, path in paths.items() if path.is_file()}
    tables = {metric: FindingTable() for metric in finding_metrics_of(scores)}
    if listed is not None:
        listed.add_samples(samples)
    for sample_id, line, raw in _scan(sentences, known):
        if listed is not None:
            listed.add_sentence(sample_id, sentences.parse(raw, line))
    for optional in (narratives, removed):
        if optional.path.is_file():
            deque(_scan(optional, known), 0)
    for metric, rows in details.items():
        for sample_id, line, raw in _scan(rows, known):
            compared = _findings_of(rows, raw, line) if metric in tables else None
            if compared is not None:
                tables[metric].add(compared)
                if listed is not None:
                    listed.add_findings(sample_id, compared)
    return Studies(samples, sentences, narratives, removed, details, tables)


def _findings_of(rows: FileRows[MetricRow], raw: bytes, line: int) -> FindingDetails | None:
    try:
        # Twice as fast as Python's JSON.
        return _FindingRow.model_validate_json(raw).details
    except ValidationError:
        return read_details(rows.parse(raw, line).get("details", {}), file=rows.path, line=line)


def _scan(rows: FileRows[Any], known: Collection[str]) -> Iterator[tuple[str, int, bytes]]:
    for sample_id, line, raw in rows.scan():
        if sample_id not in known:
            raise InputError(
                f"expected a sample of samples.jsonl, found {sample_id!r}",
                code=ErrorCode.MISMATCH,
                file=rows.path,
                line=line,
                field="sample_id",
            )
        yield sample_id, line, raw


def _sentences_by_side(sample_id: str, source: Rows[SentenceRow], compat: Compat | None) -> dict[str, Any]:
    """Return the sentences of both reports in order, each with the share of its region that the score compares."""
    sides: dict[str, list[dict[str, Any]]] = {side: [] for side in PARTS}
    rows = source.take(sample_id)
    by_index: dict[tuple[Side, int], SentenceRow] = {}

    def refuse(line: int | None, message: str, field: str, code: ErrorCode = ErrorCode.MISMATCH) -> None:
        raise InputError(f"{message} of {sample_id!r}", code=code, file=source.path, line=line, field=field)

    for line, row in rows:
        if by_index.setdefault((row.side, row.index), row) is not row:
            refuse(line, f"duplicate {row.side} sentence {row.index}", "index", ErrorCode.DUPLICATE)
    for line, row in sorted(rows, key=lambda item: (item[1].side, item[1].index)):
        other: Side = "reference" if row.side == "candidate" else "candidate"
        if row.index != len(sides[row.side]):
            refuse(line, f"expected {row.side} sentence {len(sides[row.side])}, found {row.index}", "index")
        for at in row.evidence:
            if (other, at) not in by_index:
                refuse(line, f"evidence {at} is no {other} sentence", "evidence")
        shown = {**row.model_dump(include=_SHOWN, exclude_none=True), "evidence": row.evidence}
        if compat is not None and row.status == "entailment" and (row.boxes or row.masks):
            own, *premises = map(_region, (row, *(by_index[other, at] for at in row.evidence)))
            overlap = covered_share(own, premises, compat=compat)
            if not math.isnan(overlap) and any(premise.has_region for premise in premises):
                shown["overlap"] = overlap
        sides[row.side].append(shown)
    return sides


def _region(row: SentenceRow) -> Sentence:
    # The row is valid already, and only regions are compared.
    return Sentence.model_construct(text=row.text, boxes=row.boxes, masks=row.masks)


def _removed_by_side(sample_id: str, source: Rows[RemovedRow], narratives: Rows[NarrativeRow]) -> dict[str, Any]:
    """Return the parts of each narrative from which something was removed, and what has no position in it."""
    texts: dict[str, str] = {row.side: row.text for _, row in narratives.take(sample_id)}
    sides: dict[str, dict[str, Any]] = {}
    for line, row in sorted(source.take(sample_id), key=lambda item: item[1].start or 0):
        narrative = texts.get(row.side)
        side = sides.setdefault(row.side, {"narrative": [], "unlocated": []})
        if narrative is None or row.start is None or row.end is None:
            side["unlocated"].append({"text": row.text, "reason": row.reason})
            continue
        read = sum(len(part["text"]) for part in side["narrative"])
        if not read <= row.start < row.end <= len(narrative):
            message = f"expected a part between {read} and {len(narrative)}, found {row.start} to {row.end}"
            raise InputError(message, code=ErrorCode.MISMATCH, file=source.path, line=line, field="start")
        part = {"text": narrative[row.start : row.end], "reason": row.reason, "removed": True}
        side["narrative"] += [{"text": narrative[read : row.start]}, part]
    for name, side in sides.items():
        if narrative := texts.get(name):
            side["narrative"].append({"text": narrative[sum(len(part["text"]) for part in side["narrative"]) :]})
    return {side: sides[side] for side in PARTS if side in sides}


def read_drafts(path: Path) -> list[dict[str, Any]]:
    """Return the drafts of a file as studies without a reference."""
    drafts: list[dict[str, Any]] = []
    seen: dict[str, int] = {}
    for line, row in read_jsonl(path):
        draft = validate_model(_Draft, row, file=path, line=line)
        check_unique_id(seen, draft.sample_id, line, file=path)
        report = draft.report
        if isinstance(report, str):
            report = [{"text": report}] if report.strip() else []
        sentences = parse_sentences(report, file=path, line=line)
        candidate = [{**s.model_dump(include=_SHOWN, exclude_none=True), "evidence": ()} for s in sentences]
        drafts.append({"sample_id": draft.sample_id, "scored": False, "model": draft.model, "candidate": candidate})
    return drafts


class StudyContext:
    """Report sections and image paths of samples; the first manifest that contains a sample is used."""

    def __init__(self, manifests: Sequence[Path], listed: StudyList | None = None) -> None:
        """Find the records of the manifests, and add them to a list of studies."""
        self._manifests = [FileRows(path, ManifestRow) for path in manifests]
        self.ids: set[str] = set()
        for manifest in self._manifests:
            for sample_id, line, raw in manifest.scan():
                if listed is not None and sample_id not in self.ids:
                    listed.add_context(sample_id, manifest.parse(raw, line))
                self.ids.add(sample_id)

    def record(self, sample_id: str) -> tuple[Path, ManifestRow] | None:
        """Return the folder and the record of a sample; None if no manifest has it."""
        for manifest in self._manifests:
            for _, row in manifest.take(sample_id)[:1]:
                return manifest.path.parent, row
        return None

    def images(self, sample_id: str) -> dict[str, Path | None]:
        """Return the paths of the images of a sample by kind; empty if no manifest has it."""
        if (found := self.record(sample_id)) is None:
            return {}
        folder, record = found
        return {kind: folder / path if (path := getattr(record, kind)) else None for kind in _IMAGES}

    def add_to(self, study: dict[str, Any]) -> None:
        """Add sections and image paths to a study that a manifest contains, and which inputs it has."""
        if (found := self.record(study["sample_id"])) is not None:
            record = found[1].model_dump()
            study.update({name: record[name] for name in _CONTEXT})
            study["images"] = self.images(study["sample_id"])
            study.setdefault("kinds", []).extend(_input_kinds(record))
