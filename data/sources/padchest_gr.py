"""PadChest-GR (Castro et al. 2024, arXiv:2411.05085): 4,555 frontal radiographs of PadChest with grounded reports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from maira.data.archive import Archive, ArchiveStudy, prose, read_failure
from maira.data.manifest import Failure
from maira.data.sources.padchest import Language, find_images, read_padchest
from maira.data.sources.table_records import find_table, join_sections, parse_date, table_records
from maira.data.study import Label, Side
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import read_json
from radfact.records import Box, Id, Row, Sentence, validate_model

_REPORTS = "grounded_reports_20240819.json"
_TABLE = "master_table.csv"
# Boxes slightly beyond the edge of the image are clipped; coordinates further outside are invalid.
_EDGE_TOLERANCE = 0.01
_Corner = Annotated[float, Field(ge=-_EDGE_TOLERANCE, le=1 + _EDGE_TOLERANCE, strict=True)]


class _Finding(Row):
    sentence_en: Any = None
    sentence_es: Any = None
    abnormal: Any = None
    boxes: list[tuple[_Corner, _Corner, _Corner, _Corner]] | None = None
    labels: list[Any] | None = None
    locations: list[Any] | None = None


class _Entry(Row):
    study: Id = Field(alias="StudyID")
    image: Id = Field(alias="ImageID")
    previous_study: Any = Field(None, alias="PreviousStudyID")
    previous_image: Any = Field(None, alias="PreviousImageID")
    findings: Annotated[list[_Finding], Field(min_length=1)]


def read_padchest_gr(
    root: Path, *, padchest: Path | None = None, reports: Path | None = None, language: Language = "en"
) -> Archive:
    """Read PadChest-GR: each study is one frontal radiograph with its grounded report."""
    if reports is not None and padchest is None:
        message = "reports of PadChest require the folder of PadChest"
        raise InputError(message, code=ErrorCode.MISSING_OPTION, file=reports)
    studies = _read_metadata(find_table([root], _TABLE))
    entries = read_json(root / _REPORTS)
    if not isinstance(entries, list):
        raise InputError(f"expected a list of studies, found {type(entries).__name__}", file=root / _REPORTS)
    images = find_images(root, _TABLE)
    full_archive = read_padchest(padchest, reports=reports, language=language, pediatric=True) if padchest else None
    full_studies = {study.study_id: study for study in full_archive.studies} if full_archive else {}
    failures: list[Failure] = []
    grounded: dict[str, ArchiveStudy] = {}
    previous: dict[str, ArchiveStudy] = {}
    for index, value in enumerate(entries):
        try:
            entry = validate_model(_Entry, value)
            if entry.study in grounded:
                raise InputError(f"duplicate study {entry.study}", code=ErrorCode.DUPLICATE)
            if entry.study not in studies:
                raise InputError(f"not in {_TABLE}, so its patient and split are unknown", code=ErrorCode.MISMATCH)
            study = _add_report(studies[entry.study], entry, language)
        except InputError as error:
            name = value.get("StudyID") if isinstance(value, dict) else None
            failures.append(read_failure(str(name or f"{_REPORTS}[{index}]"), str(error)))
            continue
        frontals = [images[entry.image]] if entry.image in images else []
        if not frontals:
            failures.append(read_failure(entry.image, "no such image below the folder"))
        laterals = [image for image in full_studies.get(entry.study, study).radiographs if image.view == "lateral"]
        grounded[entry.study] = replace(study, radiographs=(*frontals, *laterals))
        prior = full_studies.get(str(entry.previous_study))
        if prior is not None and prior.report is not None:
            image = images.get(str(entry.previous_image))
            frontals = [image] if image else [image for image in prior.radiographs if image.view == "frontal"]
            # A study that serves as a prior only, just before its successor.
            earlier = None if study.timestamp is None else (study.timestamp[0], 0)
            moved = replace(prior, patient_id=study.patient_id, timestamp=earlier, split=study.split)
            prior = replace(moved, radiographs=tuple(frontals), findings=None, is_prior_only=True)
            previous.setdefault(prior.study_id, prior)
    if grounded and not any(image.view == "frontal" for study in grounded.values() for image in study.radiographs):
        message = "expected images of the studies below this folder, found none"
        raise InputError(message, code=ErrorCode.FILE_NOT_FOUND, file=root)
    only_priors = [study for name, study in previous.items() if name not in grounded]
    return Archive("padchest-gr", [*grounded.values(), *only_priors], failures)


def _read_metadata(table: Path) -> dict[str, ArchiveStudy]:
    """Return studies with patient, time and split; a time is followed by 1, since previous studies get 0."""
    studies: dict[str, ArchiveStudy] = {}
    for record in table_records(table, ("StudyID", "PatientID", "split")):
        name, patient = record.require("StudyID"), record.require("PatientID")
        split = record.split(record.text("split"))
        date = parse_date(record.text("StudyDate_DICOM"))
        study = ArchiveStudy(name, patient, None if date is None else (date, 1), split=split)
        first = studies.setdefault(name, study)
        if (first.patient_id, first.split) != (patient, split):
            message = f"study {name} is of '{first.patient_id}' in '{first.split}' in an earlier line"
            raise record.error("split", message, ErrorCode.MISMATCH)
    return studies


def _add_report(study: ArchiveStudy, entry: _Entry, language: Language) -> ArchiveStudy:
    sentences: list[Sentence] = []
    labels: list[Label] = []
    for number, finding in enumerate(entry.findings):
        text = prose(finding.sentence_en if language == "en" else finding.sentence_es)
        if text is None:
            field = f"findings[{number}].sentence_{language}"
            raise InputError("expected text in this language, found none", field=field)
        clipped = [[min(max(corner, 0), 1) for corner in corners] for corners in finding.boxes or ()]
        named = [dict(zip(Box.model_fields, corners, strict=True)) for corners in clipped]
        boxes = tuple(validate_model(Box, box, field=f"findings[{number}].boxes[{i}]") for i, box in enumerate(named))
        sentences.append(Sentence(text=text, boxes=boxes))
        if finding.abnormal:
            kinds = finding.labels or []
            # The boxes of a sentence with several labels cannot be attributed to one of them.
            label_boxes = boxes if len(kinds) == 1 else None
            side = _side(finding.locations or [])
            labels += [Label(kind=str(kind), side=side, boxes=label_boxes) for kind in kinds]
    report = join_sections(" ".join(sentence.text for sentence in sentences), None)
    return replace(study, report=report, grounded_findings=tuple(sentences), labels=tuple(labels))


def _side(locations: list[Any]) -> Side | None:
    """Return the side that locations mention; None if they mention none."""
    names = {str(place).removeprefix("loc ").strip().lower() for place in locations}
    if "bilateral" in names or {"left", "right"} <= names:
        return "both"
    return "left" if "left" in names else "right" if "right" in names else None
