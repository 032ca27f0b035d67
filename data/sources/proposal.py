"""Propose a table of studies for a folder of radiographs, by DICOM tags or the names of files and folders."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from maira.data.archive import View
from maira.data.dicom.reader import read_tags
from maira.data.sources.dicom import find_radiographs, unused_name
from maira.data.sources.table import DATE, REPORT
from maira.data.sources.table_records import VIEWS
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import reading

COLUMNS = ("sample_id", "study_id", "patient_id", DATE, "frontal", "lateral", REPORT)

_TAGS = (
    "PatientID",
    "StudyInstanceUID",
    "AccessionNumber",
    "StudyDate",
    "StudyTime",
    "ViewPosition",
    "SeriesDescription",
)
_SUFFIXES = (".png", ".jpg", ".jpeg")
_VIEW = re.compile(rf"(?<![A-Z])({'|'.join(name for name in VIEWS if name.isalpha() and name[1:])})(?![A-Z])", re.I)
_COUNTED = re.compile(r"(?<![A-Z])(?:view|image|img)[ _-]*\d*", re.I)


@dataclass(frozen=True)
class _Image:
    """An image, the key of its study, the name that the study can have, and views, patient and date that it states."""

    path: Path
    key: tuple[str, ...]
    name: str
    views: frozenset[View | None]
    patient: str = ""
    date: str = ""


def propose_table(folder: Path) -> tuple[list[dict[str, str]], list[str]]:
    """Return a row with `COLUMNS` for each frontal radiograph of a folder, and what to look at.

    Images of a study share the patient and the study instance UID, or the path but for the view.
    """
    studies: dict[tuple[str, ...], list[_Image]] = {}
    remarks = Counter[str]()
    for image in _images(folder, remarks):
        studies.setdefault(image.key, []).append(image)
    rows: list[dict[str, str]] = []
    names: set[str] = set()
    for images in studies.values():
        laterals = [str(image.path) for image in images if image.views == {"lateral"}]
        frontals = [image for image in images if image.views != {"lateral"} and None not in image.views]
        remarks["images without one view, taken for frontal"] += sum(image.views != {"frontal"} for image in frontals)
        remarks["images neither frontal nor lateral, left out"] += sum(None in image.views for image in images)
        kind = "further laterals of a study" if frontals else "lateral without a frontal of its study"
        remarks[f"{kind}, left out"] += len(laterals[1:] if frontals else laterals)
        study, lateral = unused_name(images[0].name, names), laterals[0] if laterals else ""
        for image in frontals:
            name = study if image is frontals[0] else unused_name(study, names)
            names.add(name)
            values = (name, study, image.patient, image.date, str(image.path), lateral, "")
            rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows, [f"{remark}: {count}" for remark, count in (+remarks).items()]


def _images(folder: Path, remarks: Counter[str]) -> Iterator[_Image]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith(".")]
    for path in (path for path in files if path.suffix.lower() in _SUFFIXES):
        place = path.relative_to(folder)
        words = (*place.parent.parts, path.stem)
        # The nearest name of a view counts: s1/PA/1.png, or PA_0001_LAT.png.
        named = next((word for word in reversed(words) if _VIEW.search(word)), "")
        rest = [_COUNTED.sub("", _VIEW.sub("", word)) if word == named else word for word in words]
        key = tuple(word for part in rest if (word := part.strip(" _-.")))
        views = frozenset(VIEWS[view.upper()] for view in _VIEW.findall(named)[-1:])
        yield _Image(place, key or words, "-".join(key) or path.stem, views)
    try:
        found = find_radiographs([folder])
    except InputError as error:
        if error.code is not ErrorCode.EMPTY_INPUT:
            raise
        others = [path for path in files if path.suffix.lower() not in _SUFFIXES]
        remarks["files that are no PNG, JPEG or DICOM images, left out"] += len(others)
        return
    for failure in found.skipped:
        reason, _, count = failure.reason.rpartition(": ")
        if not reason.lower().endswith(_SUFFIXES):
            remarks[f"left out, {reason}"] += int(count.split()[0])
    for file in found.values():
        try:
            with reading(file), file.open("rb") as content:
                tags = read_tags(content, file, *_TAGS)
        except InputError:
            remarks["DICOM files that cannot be read, left out"] += 1
            continue
        patient, uid, accession, date, time = (tags.get(tag, "") for tag in _TAGS[:5])
        name = accession or (hashlib.sha256(uid.encode()).hexdigest()[:16] if uid else file.stem)
        position, described = (
            frozenset(VIEWS[view.upper()] for view in _VIEW.findall(tags.get(tag, ""))) for tag in _TAGS[5:]
        )
        moment = f"{date}T{time[:4]}" if date and re.match(r"\d{4}", time) else date
        key = (patient, uid or accession or str(file))
        yield _Image(file.relative_to(folder.absolute()), key, name, position or described, patient, moment)
