"""Read the studies of a results folder one at a time, in the form that the script of its page expects."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from radfact.errors import ErrorCode, InputError, check_unique_id
from radfact.findings.details import FindingDetails, FindingTable, read_details
from radfact.io.jsonl import CompressedRows, read_jsonl
from radfact.metrics.radfact.options import Compat, ScoringOptions
from radfact.metrics.radfact.regions import covered_share
from radfact.metrics.radfact.scores import PARTS, Side
from radfact.pages.findings import finding_keys, list_findings
from radfact.records import Sentence, parse_sentences, validate_model
from radfact.results.reader import iter_samples, read_run
from radfact.results.schema import METRICS_FOLDER, MetricCacheRow, NarrativeRow, RemovedRow, Row, RunFile, SentenceRow

_SHOWN = {"text", "boxes", "masks", "prior_boxes", "status", "spatial", "why", "relation"}
_IMAGES = ("frontal", "lateral", "prior_frontal")
_CONTEXT = ("indication", "technique", "comparison", "prior_report")

_RowT = TypeVar("_RowT", SentenceRow, MetricCacheRow, NarrativeRow, RemovedRow)


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


def scoring_of(run: RunFile) -> ScoringOptions | None:
    """Return geometry and threshold of the spatial scores of a run; None if it does not have them.

    Args:
        run: of a results folder.
    """
    recorded = {name: run.options[name] for name in ("compat", "threshold") if name in run.options}
    try:
        return ScoringOptions.model_validate(recorded) if len(recorded) == 2 else None
    except ValueError:
        return None


def iter_studies(
    folder: Path,
    names: Sequence[str],
    metrics: Sequence[str],
    sample_ids: Sequence[str],
    finding_tables: Mapping[str, FindingTable],
) -> Iterator[dict[str, Any]]:
    """Yield the samples in input order, each with its scores, the sentences of both sides and details of metrics.

    Args:
        folder: results folder.
        names: names of the scores.
        metrics: names of the metrics other than RadFact.
        sample_ids: of `samples.jsonl`, in its order.
        finding_tables: by metric, for each that compares findings; the findings of each study are added.

    Raises:
        InputError: a file does not match its schema, or has rows of another sample or in another order than
            `samples.jsonl`.
    """
    order = {sample_id: index for index, sample_id in enumerate(sample_ids)}
    scoring = scoring_of(read_run(folder))
    compat = None if scoring is None else scoring.compat
    sentences = _RowsBySample(folder / "sentences.jsonl", SentenceRow, order)
    narratives = _RowsBySample.of_file(folder / "narratives.jsonl", NarrativeRow, order)
    removed = _RowsBySample.of_file(folder / "removed.jsonl", RemovedRow, order)
    paths = {metric: folder / METRICS_FOLDER / f"{metric}.jsonl" for metric in metrics}
    details = {
        metric: rows for metric, path in paths.items() if (rows := _RowsBySample.of_file(path, MetricCacheRow, order))
    }
    for sample in iter_samples(folder, names):
        columns = sample.model_extra or {}
        study: dict[str, Any] = {
            "sample_id": sample.sample_id,
            "scored": True,
            "scores": {name: columns[name] for name in names if name in columns},
            "failure": sample.reason,
            **_sentences_by_side(sample.sample_id, sentences.take(sample.sample_id), sentences.path, compat),
        }
        study["kinds"] = _kinds(study)
        texts = {row.side: row.text for _, row in narratives.take(sample.sample_id)} if narratives else {}
        if removed is not None and (rows_removed := removed.take(sample.sample_id)):
            study["removed"] = _removed_by_side(rows_removed, texts, removed.path)
        details_by_metric = {metric: rows.take(sample.sample_id) for metric, rows in details.items()}
        for metric, records in details_by_metric.items():
            for line, record in records[:1]:
                shown = record.details
                if metric in finding_tables and (compared := read_details(shown, file=paths[metric], line=line)):
                    finding_tables[metric].add(compared)
                    study.setdefault("findings", {})[metric] = list_findings(compared, study)
                    shown = {name: value for name, value in shown.items() if name not in FindingDetails.model_fields}
                if shown:
                    study.setdefault("details", {})[metric] = shown
        yield study


class _RowsBySample(Generic[_RowT]):
    """Rows of a file with several rows per sample, in the order of `samples.jsonl`."""

    def __init__(self, path: Path, model: type[_RowT], order: Mapping[str, int]) -> None:
        self.path, self._order = path, order
        self._rows: Iterator[tuple[int, _RowT]] = (
            (line, validate_model(model, row, file=path, line=line)) for line, row in read_jsonl(path)
        )
        self._next: tuple[int, _RowT] | None = next(self._rows, None)

    @classmethod
    def of_file(cls, path: Path, model: type[_RowT], order: Mapping[str, int]) -> _RowsBySample[_RowT] | None:
        """Open a file that not every results folder has; None if there is none."""
        return cls(path, model, order) if path.is_file() else None

    def take(self, sample_id: str) -> list[tuple[int, _RowT]]:
        """Return the rows of the next sample with their lines.

        Raises:
            InputError: the row after them is of an earlier sample, or of none.
        """
        taken = []
        while self._next is not None and self._next[1].sample_id == sample_id:
            taken.append(self._next)
            self._next = next(self._rows, None)
        if self._next is not None and self._order.get(self._next[1].sample_id, -1) < self._order[sample_id]:
            raise InputError(
                f"expected the samples of samples.jsonl in its order, found {self._next[1].sample_id!r}",
                code=ErrorCode.MISMATCH,
                file=self.path,
                line=self._next[0],
                field="sample_id",
            )
        return taken


def _sentences_by_side(
    sample_id: str, rows: Sequence[tuple[int, SentenceRow]], path: Path, compat: Compat | None
) -> dict[str, Any]:
    """Return the sentences of both reports.

    Args:
        sample_id: of the rows.
        rows: of `sentences.jsonl`, with their lines.
        path: for errors.
        compat: geometry of the spatial scores; None if it is not known, and no overlap can be computed.

    Raises:
        InputError: a sentence is missing or a duplicate, or its evidence is missing.
    """
    sides: dict[str, list[dict[str, Any]]] = {side: [] for side in PARTS}
    lines: dict[tuple[str, int], int] = {}
    for line, row in rows:
        if (first := lines.setdefault((row.side, row.index), line)) != line:
            message = f"duplicate {row.side} sentence {row.index} of {sample_id!r}, first at line {first}"
            raise InputError(message, code=ErrorCode.DUPLICATE, file=path, line=line, field="index")
    by_index: dict[tuple[Side, int], SentenceRow] = {(row.side, row.index): row for _, row in rows}
    for line, row in sorted(rows, key=lambda item: (item[1].side, item[1].index)):
        sentences = sides[row.side]
        if row.index != len(sentences):
            message = f"expected {row.side} sentence {len(sentences)} of {sample_id!r}, found {row.index}"
            raise InputError(message, code=ErrorCode.MISMATCH, file=path, line=line, field="index")
        other: Side = "reference" if row.side == "candidate" else "candidate"
        for at in row.evidence:
            if (other, at) not in lines:
                message = f"expected a {other} sentence of {sample_id!r}, found index {at}"
                raise InputError(message, code=ErrorCode.MISMATCH, file=path, line=line, field="evidence")
        shown = {**row.model_dump(include=_SHOWN, exclude_none=True), "evidence": row.evidence}
        if compat is not None and row.status == "entailment" and (row.boxes or row.masks):
            own, *premises = map(_region, (row, *(by_index[other, at] for at in row.evidence)))
            overlap = covered_share(own, premises, compat=compat)
            if not math.isnan(overlap) and any(premise.has_region for premise in premises):
                shown["overlap"] = overlap
        sentences.append(shown)
    return sides


def _region(row: SentenceRow) -> Sentence:
    # The row is valid already, and only regions are compared.
    return Sentence.model_construct(text=row.text, boxes=row.boxes, masks=row.masks)


def _removed_by_side(
    rows: Sequence[tuple[int, RemovedRow]], narratives: Mapping[Side, str], path: Path
) -> dict[str, dict[str, Any]]:
    """Return the parts of each narrative from which something was removed, and what has no position in it.

    Args:
        rows: of `removed.jsonl`, of one sample, with their lines.
        narratives: by side; results of earlier versions have none.
        path: for errors.

    Raises:
        InputError: a position is outside of the narrative, or within another removed part.
    """
    sides: dict[str, dict[str, Any]] = {}
    for side in PARTS:
        removed = [(line, row) for line, row in rows if row.side == side]
        narrative = narratives.get(side)
        parts: list[dict[str, Any]] = []
        read = 0
        for line, row in sorted(removed, key=lambda item: item[1].start or 0):
            if narrative is None or row.start is None or row.end is None:
                continue
            if not read <= row.start < row.end <= len(narrative):
                message = f"expected a part between {read} and {len(narrative)}, found {row.start} to {row.end}"
                raise InputError(message, code=ErrorCode.MISMATCH, file=path, line=line, field="start")
            part = {"text": narrative[row.start : row.end], "reason": row.reason, "removed": True}
            parts += [{"text": narrative[read : row.start]}, part]
            read = row.end
        if removed:
            sides[side] = {
                "narrative": [] if narrative is None else [*parts, {"text": narrative[read:]}],
                "unlocated": [
                    {"text": row.text, "reason": row.reason}
                    for _, row in removed
                    if narrative is None or row.start is None
                ],
            }
    return sides


def _kinds(study: Mapping[str, Any]) -> list[str]:
    """Return the kinds by which the page selects and orders studies."""
    candidate, reference = study["candidate"], study["reference"]
    is_of_kind = {
        "unsupported": any(sentence.get("status") == "not_entailment" for sentence in candidate),
        "missed": any(sentence.get("status") == "not_entailment" for sentence in reference),
        "misplaced": any(
            sentence.get("status") == "entailment" and sentence.get("spatial") == "not_entailed"
            for sentence in (*candidate, *reference)
        ),
        "contradicted": any(sentence.get("relation") == "contradiction" for sentence in (*candidate, *reference)),
        "failed": bool(study["failure"]),
        "empty": not study["failure"] and not candidate and bool(reference),
    }
    return [kind for kind, applies in is_of_kind.items() if applies]


class StudyList:
    """Columns of the list of studies on the main page, when the studies are on separate pages."""

    def __init__(self, names: Sequence[str]) -> None:
        """Create an empty list with these scores as columns."""
        self.ids: list[str] = []
        self.scores: dict[str, list[float | None]] = {name: [] for name in names}
        self.failures: dict[int, str] = {}
        self.kinds: dict[str, list[int]] = {}
        self.findings: dict[str, list[int]] = {}

    def add(self, studies: Sequence[Mapping[str, Any]]) -> None:
        """Add studies; their scores are rounded to four decimal places."""
        for study in studies:
            for name, column in self.scores.items():
                value = study["scores"].get(name)
                column.append(None if value is None else round(value, 4))
            if study["failure"]:
                self.failures[len(self.ids)] = study["failure"]
            for kind in study["kinds"]:
                self.kinds.setdefault(kind, []).append(len(self.ids))
            for key in finding_keys(study):
                self.findings.setdefault(key, []).append(len(self.ids))
            self.ids.append(study["sample_id"])


def read_drafts(path: Path) -> list[dict[str, Any]]:
    """Return the drafts of a file as studies without a reference.

    Raises:
        InputError: a row does not match the schema.
    """
    drafts: dict[str, dict[str, Any]] = {}
    seen: dict[str, int] = {}
    for line, row in read_jsonl(path):
        draft = validate_model(_Draft, row, file=path, line=line)
        check_unique_id(seen, draft.sample_id, line, file=path)
        report = draft.report
        if isinstance(report, str):
            report = [{"text": report}] if report.strip() else []
        sentences = parse_sentences(report, file=path, line=line)
        drafts[draft.sample_id] = {
            "sample_id": draft.sample_id,
            "scored": False,
            "model": draft.model,
            "candidate": [{**s.model_dump(include=_SHOWN, exclude_none=True), "evidence": ()} for s in sentences],
        }
    return list(drafts.values())


class StudyContext:
    """Report sections and image paths of samples; the first manifest that contains a sample is used."""

    def __init__(self, manifests: Sequence[Path]) -> None:
        """Read the manifests.

        Raises:
            InputError: a manifest cannot be read, or a row does not match the schema.
        """
        self._places: dict[str, tuple[int, Path]] = {}
        self._rows = CompressedRows()
        for path in manifests:
            for line, row in read_jsonl(path):
                record = validate_model(ManifestRow, row, file=path, line=line)
                if record.sample_id not in self._places:
                    self._places[record.sample_id] = (len(self._rows), path.parent)
                    self._rows.append(record.model_dump())

    def add_to(self, studies: Sequence[dict[str, Any]]) -> None:
        """Add sections and image paths to the studies that a manifest contains, and which inputs they have."""
        for study in studies:
            if study["sample_id"] in self._places:
                index, folder = self._places[study["sample_id"]]
                record = self._rows[index]
                study.update({name: record[name] for name in _CONTEXT})
                study["images"] = {kind: folder / record[kind] if record[kind] else None for kind in _IMAGES}
                has_inputs = {
                    "inputs": True,
                    "lateral": record["lateral"],
                    "prior": record["prior_frontal"] or record["prior_report"],
                }
                study.setdefault("kinds", []).extend(kind for kind, is_present in has_inputs.items() if is_present)
