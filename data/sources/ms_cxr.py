"""MS-CXR: phrases of MIMIC-CXR's reports with their boxes on a frontal image (Boecking et al. 2022).

The layout follows the release's PhysioNet page, its script that converts the JSON to CSV, and public readers. Release
0.1 has `MS_CXR_Local_Alignment_v1.0.0.{json,csv}`, release 1.1.0 has `MS_CXR_Local_Alignment_v1.1.0.{json,csv}` with a
split by patient (train, val, test). Both list one box per row, in pixels of the original image: a phrase with several
boxes has several rows. In the JSON, the split is read from the annotation or the image.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from maira.data.archive import Archive, ArchiveStudy, Radiograph, prose, read_failure
from maira.data.manifest import Failure
from maira.data.study import Label
from radfact.errors import ErrorCode, InputError, describe, describe_choice
from radfact.io.csv_tables import stream_columns
from radfact.io.jsonl import read_json
from radfact.records import Box, Sentence

SOURCE = "ms-cxr"

_NAME = re.compile(r"MS_CXR_Local_Alignment_v(\d+)\.(\d+)\.(\d+)\.(csv|json)")
# files/p10/p10233088/s54276838/<dicom_id>.jpg
_PATH = re.compile(r"(?:^|/)p(?P<patient>\d+)/s(?P<study>\d+)/[^/]+$")
_SPLITS = {"train": "train", "val": "validate", "validate": "validate", "test": "test", "": None}
_COLUMNS = ("dicom_id", "category_name", "label_text", "path", "x", "y", "w", "h", "image_width", "image_height")
_TEXTS = ("path", "name", "label_text")


@dataclass(frozen=True, slots=True)
class _Row:
    """One box as written in the file; `line` and `place` are its location there."""

    line: int | None
    place: str
    dicom_id: str
    category: str
    phrase: str
    path: str
    box: tuple[Any, ...]
    size: tuple[Any, Any]
    split: str


@dataclass(slots=True)
class _Image:
    """An annotated image, with boxes by (category, phrase) in the file's order."""

    path: str
    patient_id: str
    split: str | None
    phrases: dict[tuple[str, str], list[Box]] = field(default_factory=dict)


def read_ms_cxr(root: Path, images: Path) -> Archive:
    """Read MS-CXR as phrase grounding studies, one per annotated image.

    Boxes refer to an image, so a study here is an image and not a study of MIMIC-CXR; its `study_id` is the `dicom_id`.
    It has no lateral, prior or sections, since phrase grounding uses none (MAIRA-2, table B.1). A phrase is one (image,
    category, text) with all its boxes; a category is a label of the image.
    """
    path = _annotations(root)
    failures: list[Failure] = []
    studies: list[ArchiveStudy] = []
    for dicom_id, image in _read_images(path, failures).items():
        if not image.phrases:
            continue
        radiograph = _radiograph(dicom_id, image.path, images)
        if radiograph is None:
            failures.append(read_failure(dicom_id, f"no image {image.path} (nor .dcm) below {images.name}"))
            continue
        boxes_of: dict[str, dict[Box, None]] = {}
        for (category, _), boxes in image.phrases.items():
            boxes_of.setdefault(category, {}).update(dict.fromkeys(boxes))
        study = ArchiveStudy(
            study_id=dicom_id,
            patient_id=image.patient_id,
            radiographs=(radiograph,),
            phrases=tuple(Sentence(text=phrase, boxes=tuple(boxes)) for (_, phrase), boxes in image.phrases.items()),
            labels=tuple(Label(kind=category, boxes=tuple(boxes)) for category, boxes in boxes_of.items()),
            split=image.split,
        )
        studies.append(study)
    return Archive(SOURCE, studies, failures)


def hold_out(archive: Archive, root: Path) -> Archive:
    """Remove the training studies of patients in MS-CXR's test and validation folds from MIMIC-CXR.

    MAIRA-2 (appendix B.1) does not train on studies in MS-CXR's test and validation folds and otherwise follows the
    official MIMIC-CXR split. Both splits are by patient, so all training studies of such a patient are skipped and
    listed. Official test and validation studies stay, also those of patients in MS-CXR's training fold.
    """
    path = _annotations(root)
    annotated = _read_images(path, []).values()
    if all(image.split is None for image in annotated):
        message = "no split; use MS-CXR from release 1.1.0 on"
        raise InputError(message, code=ErrorCode.MISSING_FIELD, file=path, field="split")
    folds = {image.patient_id: image.split for image in annotated if image.split in ("validate", "test")}
    studies: list[ArchiveStudy] = []
    failures = list(archive.failures)
    for study in archive.studies:
        fold = None if study.patient_id is None else folds.get(study.patient_id)
        if study.split == "train" and fold is not None:
            reason = f"held out of training: its patient is in MS-CXR's {fold} fold"
            failures.append(Failure(source=study.study_id, stage="select", reason=reason))
        else:
            studies.append(study)
    return replace(archive, studies=studies, failures=failures)


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
    rows = _csv_rows(path) if path.suffix == ".csv" else _json_rows(path)
    images: dict[str, _Image] = {}
    for row in rows:
        image = images.get(row.dicom_id)
        match = _PATH.search(row.path)
        if match is None or Path(row.path).stem != row.dicom_id:
            message = f"expected files/p1x/p<patient>/s<study>/{row.dicom_id}.jpg, found '{row.path}'"
            raise InputError(message, file=path, line=row.line, field=row.place + "path")
        if row.split not in _SPLITS:
            message = f"expected train, val or test, found {describe_choice(row.split)}"
            raise InputError(message, file=path, line=row.line, field=row.place + "split")
        if image is None:
            image = images[row.dicom_id] = _Image(row.path, match["patient"], _SPLITS[row.split])
        elif image.split != _SPLITS[row.split]:
            message = f"image {row.dicom_id} is in two splits, '{image.split}' and '{row.split}'"
            raise InputError(message, code=ErrorCode.MISMATCH, file=path, line=row.line, field=row.place + "split")
        if not row.phrase or not row.category:
            name = "label_text" if row.category else "category_name"
            message = "expected a value, found none"
            raise InputError(message, code=ErrorCode.MISSING_FIELD, file=path, line=row.line, field=row.place + name)
        box = _box(row, path)
        if box is None:
            location = f"line {row.line}" if row.line is not None else row.place.rstrip(".")
            reason = f"the box in {location} of {path.name} lies outside the image"
            failures.append(read_failure(row.dicom_id, reason))
            continue
        boxes = image.phrases.setdefault((row.category, row.phrase), [])
        if box not in boxes:
            boxes.append(box)
    return images


def _csv_rows(path: Path) -> Iterator[_Row]:
    for line, cells in stream_columns(path, _COLUMNS, optional=("split",)):
        dicom_id, category, phrase, image, x, y, w, h, width, height, split = (cell or "" for cell in cells)
        yield _Row(line, "", dicom_id, category, prose(phrase) or "", image, (x, y, w, h), (width, height), split)


def _json_rows(path: Path) -> Iterator[_Row]:
    coco = read_json(path)
    if not isinstance(coco, dict):
        raise InputError("expected a COCO object with images, annotations and categories", file=path)
    sized = ("id", "path", "width", "height")
    images = {image["id"]: image for image in _entries(coco, "images", path, sized, ("file_name", "split"))}
    names = {category["id"]: category["name"] for category in _entries(coco, "categories", path, ("id", "name"))}
    required = ("image_id", "category_id", "label_text", "bbox")
    for number, annotation in enumerate(_entries(coco, "annotations", path, required, ("split",))):
        place = f"annotations[{number}]."
        for name, known in (("image_id", images), ("category_id", names)):
            if annotation[name] not in known:
                message = f"unknown {name[:-3]} {annotation[name]}"
                raise InputError(message, code=ErrorCode.MISMATCH, file=path, field=place + name)
        image = images[annotation["image_id"]]
        if not isinstance(box := annotation["bbox"], list) or len(box) != 4:
            raise InputError("expected [x, y, width, height]", file=path, field=place + "bbox")
        yield _Row(
            line=None,
            place=place,
            dicom_id=Path(image.get("file_name") or image["path"]).stem,
            category=names[annotation["category_id"]].strip(),
            phrase=prose(annotation["label_text"]) or "",
            path=image["path"],
            box=tuple(box),
            size=(image["width"], image["height"]),
            split=annotation.get("split") or image.get("split") or "",
        )


def _entries(
    coco: dict[str, Any], name: str, path: Path, required: tuple[str, ...], optional: tuple[str, ...] = ()
) -> list[dict[str, Any]]:
    """Return checked records: required fields in `_TEXTS` are strings, optional fields strings or null."""
    entries = coco.get(name)
    if not isinstance(entries, list):
        raise InputError("expected a list", file=path, field=name)
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise InputError("expected an object", file=path, field=f"{name}[{number}]")
        if missing := next((key for key in required if key not in entry), None):
            raise InputError("missing", code=ErrorCode.MISSING_FIELD, file=path, field=f"{name}[{number}].{missing}")
        if bad := next(
            (k for k in required if k == "id" or k.endswith("_id") if not isinstance(entry[k], int | str)), ""
        ):
            raise InputError("expected a number", file=path, field=f"{name}[{number}].{bad}")
        texts = [key for key in required if key in _TEXTS] + [key for key in optional if entry.get(key) is not None]
        if bad := next((key for key in texts if not isinstance(entry[key], str)), ""):
            message = f"expected a string, found {describe(entry[bad])}"
            raise InputError(message, file=path, field=f"{name}[{number}].{bad}")
    return entries


def _box(row: _Row, path: Path) -> Box | None:
    """Return the box in shares of the image, clipped to it; None if it lies outside."""
    x, y, w, h, width, height = (
        _number(value, path, row, name)
        for value, name in zip((*row.box, *row.size), ("x", "y", "w", "h", "image_width", "image_height"), strict=True)
    )
    for value, name in ((width, "image_width"), (height, "image_height")):
        if value <= 0:
            message = f"expected a size in pixels, found {value:g}"
            raise InputError(message, file=path, line=row.line, field=row.place + name)
    x_min, x_max = max(x / width, 0.0), min((x + w) / width, 1.0)
    y_min, y_max = max(y / height, 0.0), min((y + h) / height, 1.0)
    if x_min >= x_max or y_min >= y_max:
        return None
    return Box(x_min=x_min, y_min=y_min, x_max=x_max, y_max=y_max)


def _number(value: Any, path: Path, row: _Row, name: str) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(
            f"expected a number of pixels, found {describe_choice(value)}",
            file=path,
            line=row.line,
            field=row.place + name,
        )
    return number


def _radiograph(dicom_id: str, path: str, images: Path) -> Radiograph | None:
    """Find an image as JPEG or DICOM; the paths in MS-CXR are those of mimic-cxr-jpg."""
    for candidate in (images / path, (images / path).with_suffix(".dcm")):
        if candidate.is_file():
            return Radiograph(dicom_id, candidate, "frontal")
    return None
