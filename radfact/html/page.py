"""The results page: one HTML file with scores, studies, boxes and verdicts that needs no network."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from radfact.errors import ErrorCode, InputError, check_unique_id
from radfact.html.green_summary import green_section
from radfact.html.images import MAX_EMBEDDED, load_images, remove_unused_images
from radfact.html.markup import render
from radfact.io.jsonl import open_atomic, read_jsonl
from radfact.records import parse_sentences, validate_model
from radfact.results.options import ImagePlace, PageOptions
from radfact.results.reader import read_run, read_samples, read_scores
from radfact.results.schema import (
    METRICS_FOLDER,
    RADFACT,
    MetricCacheRow,
    PageRecord,
    Row,
    SentenceRow,
)

_IMAGE_FOLDER = "report_images"
_IMAGES = ("frontal", "lateral", "prior_frontal")
_SHOWN = {"text", "boxes", "masks", "prior_boxes", "status", "spatial", "why"}
_CONTEXT = ("indication", "technique", "comparison", "prior_report")


class _Study(Row):
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


def page_record(options: PageOptions, folder: Path) -> PageRecord:
    """Return the record in `run.json` from which the page can be drawn again.

    Args:
        options: of the page.
        folder: results folder, to which the paths of the record are relative.
    """
    return PageRecord(
        manifest=None if options.manifest is None else os.path.relpath(options.manifest, folder),
        unscored=None if options.unscored is None else os.path.relpath(options.unscored, folder),
        drafts=options.drafts,
        notes=options.notes,
        images=options.images,
    )


def write_page(
    folder: Path,
    *,
    manifest: Path | None = None,
    notes: Sequence[str] | None = None,
    unscored: Path | None = None,
    images: ImagePlace | None = None,
) -> Path:
    """Write `report.html` into a results folder: its scores, and each study as in MAIRA-2, figure E.1.

    Images are inside the page or in `report_images/`, and are written before the page that shows them. An image that
    cannot be read is shown as missing. Text of reports is data and cannot become markup. Options that are not given
    come from `page` in `run.json`; a file named there that no longer exists is mentioned on the page.

    Args:
        folder: results folder.
        manifest: records by `sample_id` with images (paths relative to the manifest, or absolute) and context.
        notes: sentences for the banner, such as a limitation of the scores.
        unscored: drafts without a reference, shown apart and not scored; their images come from the `manifest.jsonl`
            in the same folder, or else from `manifest`.
        images: where the images go; by default inside the page for up to `MAX_EMBEDDED` studies.

    Returns:
        The path of the page.

    Raises:
        InputError: a file is missing or does not match its schema, or the manifest has none of the studies; nothing is
            written then.
    """
    folder, given_manifest = Path(folder), manifest
    scores, run = read_scores(folder), read_run(folder)
    record = run.page or PageRecord()
    shown_drafts = set(record.drafts if unscored is None else ())
    manifest, notes, unscored = _sources(folder, record, manifest, notes, unscored)
    studies = _read_studies(folder, list(scores.scores), [name for name in scores.metrics if name != RADFACT])
    drafts = _read_drafts(Path(unscored)) if unscored else []
    drafts = [draft for draft in drafts if not shown_drafts or draft["sample_id"] in shown_drafts]
    if given_manifest is not None and (studies or drafts):
        check_manifest(Path(given_manifest), [study["sample_id"] for study in (*studies, *drafts)])

    sources = [] if manifest is None else [Path(manifest)]
    neighbor = Path(unscored).parent / "manifest.jsonl" if unscored else None
    own = [neighbor] if neighbor is not None and neighbor.exists() else []
    _attach(studies, sources)
    _attach(drafts, own + sources)
    few = len(studies) + len(drafts) <= MAX_EMBEDDED
    inside = (images or record.images or ("inside" if few else "beside")) == "inside"
    load_images([*studies, *drafts], None if inside else folder / _IMAGE_FOLDER)

    page = render(
        f"{'RadFact results' if list(scores.metrics) == [RADFACT] else 'Results'}: {folder.resolve().name}",
        scores,
        run.model_dump(mode="json", exclude_unset=True),
        studies,
        drafts,
        notes,
        green_section(folder),
    )
    with open_atomic(folder / "report.html", "wb") as handle:
        # JSON can hold half a surrogate pair, which UTF-8 cannot.
        handle.write(page.encode("utf-8", "replace"))
    remove_unused_images([*studies, *drafts], folder / _IMAGE_FOLDER)
    return folder / "report.html"


def check_manifest(manifest: Path, sample_ids: Sequence[str]) -> None:
    """Check that a manifest has images for a page.

    Args:
        manifest: as for `write_page`.
        sample_ids: of the studies on the page.

    Raises:
        InputError: the manifest has none of these studies, or cannot be read.
    """
    known = (validate_model(_Study, row, file=manifest, line=line).sample_id for line, row in read_jsonl(manifest))
    if set(sample_ids).isdisjoint(known):
        raise InputError(
            f"expected records of the studies of the page, such as '{sample_ids[0]}', found none",
            code=ErrorCode.MISMATCH,
            file=manifest,
            field="sample_id",
        )


def _sources(
    folder: Path,
    record: PageRecord,
    manifest: Path | None,
    notes: Sequence[str] | None,
    unscored: Path | None,
) -> tuple[Path | None, list[str], Path | None]:
    """Return manifest, notes and unscored drafts: as given, or else from the record of the run."""
    shown_notes = list(record.notes if notes is None else notes)
    paths = []
    for option, recorded, label in (
        (manifest, record.manifest, "The manifest with the images"),
        (unscored, record.unscored, "The drafts without a reference"),
    ):
        path = folder / recorded if option is None and recorded is not None else option
        if option is None and path is not None and not path.is_file():
            shown_notes.append(f"{label} ({path.name}) is no longer where it was during the run.")
            path = None
        paths.append(path)
    return paths[0], shown_notes, paths[1]


def _read_studies(folder: Path, names: Sequence[str], metrics: Sequence[str]) -> list[dict[str, Any]]:
    """Return the samples in input order, each with its scores, the sentences of both sides and details of metrics."""
    studies: dict[str, dict[str, Any]] = {}
    for sample in read_samples(folder, names):
        columns = sample.model_extra or {}
        studies[sample.sample_id] = {
            "sample_id": sample.sample_id,
            "scored": True,
            "scores": {name: columns[name] for name in names if name in columns},
            "failure": sample.reason,
            "candidate": [],
            "reference": [],
        }
    _add_sentences(studies, folder / "sentences.jsonl")
    for metric in metrics:
        path = folder / METRICS_FOLDER / f"{metric}.jsonl"
        for line, row in read_jsonl(path) if path.is_file() else ():
            detail = validate_model(MetricCacheRow, row, file=path, line=line)
            if detail.details and detail.sample_id in studies:
                studies[detail.sample_id].setdefault("details", {})[metric] = detail.details
    return list(studies.values())


def _add_sentences(studies: Mapping[str, dict[str, Any]], path: Path) -> None:
    lines: dict[tuple[str, str, int], int] = {}
    rows: dict[tuple[str, str, int], SentenceRow] = {}
    for line, row in read_jsonl(path):
        sentence = validate_model(SentenceRow, row, file=path, line=line)
        key: tuple[str, str, int] = (sentence.sample_id, sentence.side, sentence.index)
        if sentence.sample_id not in studies:
            raise InputError(
                f"expected a sample of samples.jsonl, found {key[0]!r}",
                code=ErrorCode.MISMATCH,
                file=path,
                line=line,
                field="sample_id",
            )
        if key in rows:
            message = f"duplicate {key[1]} sentence {key[2]} of {key[0]!r}, first at line {lines[key]}"
            raise InputError(message, code=ErrorCode.DUPLICATE, file=path, line=line, field="index")
        rows[key], lines[key] = sentence, line
    for key in sorted(rows):
        sample_id, side, index = key
        sentences = studies[sample_id][side]
        if index != len(sentences):
            message = f"expected {side} sentence {len(sentences)} of {sample_id!r}, found {index}"
            raise InputError(message, code=ErrorCode.MISMATCH, file=path, line=lines[key], field="index")
        evidence = rows[key].evidence
        other = "reference" if side == "candidate" else "candidate"
        for at in evidence:
            if (sample_id, other, at) not in rows:
                message = f"expected a {other} sentence of {sample_id!r}, found index {at}"
                raise InputError(message, code=ErrorCode.MISMATCH, file=path, line=lines[key], field="evidence")
        shown = rows[key].model_dump(include=_SHOWN, exclude_none=True)
        sentences.append({**shown, "evidence": evidence})


def _read_drafts(path: Path) -> list[dict[str, Any]]:
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


def _attach(studies: Sequence[dict[str, Any]], manifests: Iterable[Path]) -> None:
    """Add context and image paths to each study, from the first manifest that has it."""
    missing = {study["sample_id"]: study for study in studies}
    for path in manifests:
        for line, row in read_jsonl(path):
            record = validate_model(_Study, row, file=path, line=line)
            study = missing.pop(record.sample_id, None)
            if study is None:
                continue
            study.update(record.model_dump(include=set(_CONTEXT)))
            named = {kind: getattr(record, kind) for kind in _IMAGES}
            study["images"] = {kind: path.parent / name if name else None for kind, name in named.items()}
