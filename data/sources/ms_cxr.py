"""MS-CXR: phrases of MIMIC-CXR's reports with their boxes on a frontal image (Boecking et al. 2022)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from maira.data.archive import Archive, ArchiveStudy, Radiograph, read_failure
from maira.data.manifest import Failure
from maira.data.sources.table_records import TableRecord, table_records
from maira.data.study import Label
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import read_json
from radfact.records import Box, Id, Row, Sentence, Text, validate_model

_NAME = re.compile(r"MS_CXR_Local_Alignment_v(\d+)\.(\d+)\.(\d+)\.(csv|json)")
# files/p10/p10233088/s54276838/<dicom_id>.jpg
_PATH = re.compile(r"(?:^|/)p(?P<patient>\d+)/s(?P<study>\d+)/[^/]+$")
_Number = Annotated[float, Field(allow_inf_nan=False)]
_Side = Annotated[_Number, Field(gt=0)]


class _Box(Row):
    """One box of a phrase, as a row of the CSV file; a column `split` is optional."""

    dicom_id: str
    category_name: Text
    label_text: Text
    path: str
    x: _Number
    y: _Number
    w: _Number
    h: _Number
    image_width: _Side
    image_height: _Side


class _JsonImage(Row):
    id: Id
    path: str
    image_width: _Side = Field(alias="width")
    image_height: _Side = Field(alias="height")
    file_name: str | None = None
    split: str | None = None


class _JsonCategory(Row):
    id: Id
    name: Text


class _JsonAnnotation(Row):
    image_id: Id
    category_id: Id
    label_text: Text
    bbox: tuple[_Number, _Number, _Number, _Number]
    split: str | None = None


class _Json(Row):
    images: list[_JsonImage]
    categories: list[_JsonCategory]
    annotations: list[_JsonAnnotation]


@dataclass(slots=True)
class _Image:
    """An annotated image, with boxes by (category, phrase) in the file's order."""

    path: str
    patient_id: str
    split: str | None
    phrases: dict[tuple[str, str], dict[Box, None]] = field(default_factory=dict)


def read_ms_cxr(root: Path, images: Path) -> Archive:
    """Read MS-CXR as phrase grounding studies, one per annotated image."""
    path = _annotations(root)
    failures: list[Failure] = []
    studies: list[ArchiveStudy] = []
    for dicom_id, image in _read_images(path, failures).items():
        if not image.phrases:
            continue
        # The paths in MS-CXR are those of mimic-cxr-jpg.
        candidates = (images / image.path, (images / image.path).with_suffix(".dcm"))
        if (file := next(filter(Path.is_file, candidates), None)) is None:
            failures.append(read_failure(dicom_id, f"no image {image.path} (nor .dcm) below {images.name}"))
            continue
        boxes_of: dict[str, dict[Box, None]] = {}
        for (category, _), boxes in image.phrases.items():
            boxes_of.setdefault(category, {}).update(boxes)
        phrases = tuple(Sentence(text=text, boxes=tuple(boxes)) for (_, text), boxes in image.phrases.items())
        labels = tuple(Label(kind=category, boxes=tuple(boxes)) for category, boxes in boxes_of.items())
        study = ArchiveStudy(dicom_id, image.patient_id, phrases=phrases, labels=labels, split=image.split)
        studies.append(replace(study, radiographs=(Radiograph(dicom_id, file, "frontal"),)))
    return Archive("ms-cxr", studies, failures)


def hold_out(archive: Archive, root: Path) -> Archive:
    """Remove the training studies of patients in MS-CXR's test and validation folds from MIMIC-CXR."""
    path = _annotations(root)
    annotated = _read_images(path, []).values()
    if all(image.split is None for image in annotated):
        message = "no split; use MS-CXR from release 1.1.0 on"
        raise InputError(message, code=ErrorCode.MISSING_FIELD, file=path, field="split")
    folds: dict[str | None, str | None] = {i.patient_id: i.split for i in annotated if i.split in ("validate", "test")}
    held_out = {
        s.study_id: folds[s.patient_id] for s in archive.studies if s.split == "train" and s.patient_id in folds
    }
    skipped = [
        Failure(source=name, stage="select", reason=f"held out of training: its patient is in MS-CXR's {fold} fold")
        for name, fold in held_out.items()
    ]
    studies = [study for study in archive.studies if study.study_id not in held_out]
    return replace(archive, studies=studies, failures=[*archive.failures, *skipped])


def _annotations(root: Path) -> Path:
    if root.is_file():
        if root.suffix not in (".csv", ".json"):
            raise InputError("expected a .csv or .json file", code=ErrorCode.INVALID_FORMAT, file=root)
        return root
    versions = [(match, path) for path in root.glob("MS_CXR_*") if (match := _NAME.fullmatch(path.name))]
    if not versions:
        message = "no MS_CXR_Local_Alignment_v1.1.0.csv (nor .json, nor v1.0.0)"
        raise InputError(message, code=ErrorCode.FILE_NOT_FOUND, file=root)
    return max(versions, key=lambda pair: (*(int(n) for n in pair[0].groups()[:3]), pair[0][4] == "csv"))[1]


def _read_images(path: Path, failures: list[Failure]) -> dict[str, _Image]:
    images: dict[str, _Image] = {}
    for record in table_records(path, tuple(_Box.model_fields)) if path.suffix == ".csv" else _json_records(path):
        cells = {column: record.text(column) for column in _Box.model_fields}
        row = validate_model(_Box, cells, file=path, line=record.line, field=record.key)
        match = _PATH.search(row.path)
        if match is None or Path(row.path).stem != row.dicom_id:
            raise record.error("path", f"expected files/p1x/p<patient>/s<study>/{row.dicom_id}.jpg, found '{row.path}'")
        split = None if (name := record.text("split")) is None else record.split(name)
        image = images.setdefault(row.dicom_id, _Image(row.path, match["patient"], split))
        if image.split != split:
            message = f"image {row.dicom_id} is in two splits, '{image.split}' and '{split}'"
            raise record.error("split", message, ErrorCode.MISMATCH)
        # Shares of the image, clipped to it.
        x_min, x_max = max(row.x / row.image_width, 0.0), min((row.x + row.w) / row.image_width, 1.0)
        y_min, y_max = max(row.y / row.image_height, 0.0), min((row.y + row.h) / row.image_height, 1.0)
        if x_min >= x_max or y_min >= y_max:
            failures.append(read_failure(row.dicom_id, f"the box in {record.location} lies outside the image"))
            continue
        box = Box(x_min=x_min, y_min=y_min, x_max=x_max, y_max=y_max)
        image.phrases.setdefault((row.category_name, " ".join(row.label_text.split())), {})[box] = None
    return images


def _json_records(path: Path) -> Iterator[TableRecord]:
    """Yield the annotations of a JSON file as rows of the CSV file."""
    coco = validate_model(_Json, read_json(path), file=path)
    images = {image.id: image for image in coco.images}
    names = {category.id: category.name for category in coco.categories}
    for number, annotation in enumerate(coco.annotations):
        record = TableRecord(path, {}, key=f"annotations[{number}]")
        for column, known in (("image_id", images), ("category_id", names)):
            if (key := getattr(annotation, column)) not in known:
                raise record.error(column, f"no such entry, {key}", ErrorCode.MISMATCH)
        image = images[annotation.image_id]
        cells = image.model_dump() | annotation.model_dump() | dict(zip("xywh", annotation.bbox, strict=True))
        cells |= {"dicom_id": Path(image.file_name or image.path).stem, "category_name": names[annotation.category_id]}
        yield replace(record, cells=cells | {"split": annotation.split or image.split})
