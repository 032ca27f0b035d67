"""MS-CXR: phrases of MIMIC-CXR's reports with their boxes on a frontal image (Boecking et al. 2022).

The layout is from the release's PhysioNet page, from the script in it that makes the CSV of the JSON, and from public
code that reads both. Release 0.1 has `MS_CXR_Local_Alignment_v1.0.0.{json,csv}`, release 1.1.0 has
`MS_CXR_Local_Alignment_v1.1.0.{json,csv}` with a split by patient (train, val, test). Both list a box a row, in pixels
of the original image: a phrase with several boxes is several rows. In the JSON the split has been seen on the
annotation; on the image it is accepted too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from data.archive import Archive, ArchiveStudy, Radiograph
from data.manifest import Failure
from data.study import Label
from radfact.errors import InputError, brief
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
    """One box. `line` and `place` say where it stands in the file; x, y, w, h and the image's size are as written."""

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
    """An annotated image; boxes by (category, phrase) in the file's order."""

    path: str
    patient_id: str
    split: str | None
    phrases: dict[tuple[str, str], list[Box]] = field(default_factory=dict)


def read_ms_cxr(root: Path, images: Path) -> Archive:
    """Read MS-CXR as phrase grounding studies: each annotated image is one, with its phrases.

    There is one record an image and not a MIMIC-CXR study, since boxes belong to an image; its `study_id` is the
    `dicom_id`. It has neither lateral nor prior nor sections, as phrase grounding takes none (paper 004, table B.1). A
    phrase is one (image, category, text) with all its boxes; a category is a label of the image.

    Args:
        root: folder of the release, or its CSV or JSON. The latest version is taken, its CSV before its JSON.
        images: folder of mimic-cxr-jpg or mimic-cxr, the one that has `files`. An image that it lacks is listed.

    Raises:
        InputError: no such file, or it cannot be used, with line and field.
    """
    path = _annotations(root)
    failures: list[Failure] = []
    studies: list[ArchiveStudy] = []
    for dicom_id, image in _read_images(path, failures).items():
        if not image.phrases:
            continue
        radiograph = _radiograph(dicom_id, image.path, images)
        if radiograph is None:
            failures.append(_failure(dicom_id, f"no image {image.path} (nor .dcm) below {images.name}"))
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
    """MIMIC-CXR without the training studies of patients that MS-CXR tests and validates on.

    Paper 004 (B.1): studies in MS-CXR's test and validation folds are not used in training, otherwise the official
    MIMIC-CXR split is followed. Both that split and MS-CXR's are by patient, and one model learns from both; so all
    studies of such a patient are left out here, if the official split has them in training. They are listed. The
    official test and validation studies stay as they are, also those of patients in MS-CXR's training fold.

    Args:
        archive: MIMIC-CXR, with its official split.
        root: folder of MS-CXR 1.1.0 (release 0.1 has no split), or its CSV or JSON.

    Raises:
        InputError: no such file, it has no split, or it cannot be used.
    """
    path = _annotations(root)
    annotated = _read_images(path, []).values()
    if all(image.split is None for image in annotated):
        raise InputError("has no split; MS-CXR has one from release 1.1.0 on", file=path, field="split")
    folds = {image.patient_id: image.split for image in annotated if image.split in ("validate", "test")}
    kept: list[ArchiveStudy] = []
    failures = list(archive.failures)
    for study in archive.studies:
        fold = None if study.patient_id is None else folds.get(study.patient_id)
        if study.split == "train" and fold is not None:
            reason = f"held out of training: its patient is in MS-CXR's {fold} fold"
            failures.append(Failure(source=study.study_id, stage="select", reason=reason))
        else:
            kept.append(study)
    return replace(archive, studies=kept, failures=failures)


def _annotations(root: Path) -> Path:
    if root.is_file():
        if root.suffix not in (".csv", ".json"):
            raise InputError("expected a .csv or .json file", file=root)
        return root
    found = [(match, path) for path in root.glob("MS_CXR_*") if (match := _NAME.fullmatch(path.name))]
    if not found:
        raise InputError("no MS_CXR_Local_Alignment_v1.1.0.csv (nor .json, nor v1.0.0)", file=root)
    return max(found, key=lambda pair: (*(int(n) for n in pair[0].groups()[:3]), pair[0][4] == "csv"))[1]


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
            message = f"'{row.split}' is none of train, val, test"
            raise InputError(message, file=path, line=row.line, field=row.place + "split")
        if image is None:
            image = images[row.dicom_id] = _Image(row.path, match["patient"], _SPLITS[row.split])
        elif image.split != _SPLITS[row.split]:
            message = f"image {row.dicom_id} is in '{image.split}' above"
            raise InputError(message, file=path, line=row.line, field=row.place + "split")
        if not row.phrase or not row.category:
            name = "label_text" if row.category else "category_name"
            raise InputError("is empty", file=path, line=row.line, field=row.place + name)
        box = _box(row, path)
        if box is None:
            where = f"line {row.line}" if row.line is not None else row.place.rstrip(".")
            failures.append(_failure(row.dicom_id, f"the box in {where} of {path.name} covers nothing of the image"))
            continue
        boxes = image.phrases.setdefault((row.category, row.phrase), [])
        if box not in boxes:
            boxes.append(box)
    return images


def _csv_rows(path: Path) -> Iterator[_Row]:
    for line, cells in stream_columns(path, _COLUMNS, optional=("split",)):
        dicom_id, category, phrase, image, x, y, w, h, width, height, split = (cell or "" for cell in cells)
        yield _Row(line, "", dicom_id, category, _prose(phrase), image, (x, y, w, h), (width, height), split)


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
                raise InputError(f"there is no such {name[:-3]}: {annotation[name]}", file=path, field=place + name)
        image = images[annotation["image_id"]]
        if not isinstance(box := annotation["bbox"], list) or len(box) != 4:
            raise InputError("expected [x, y, width, height]", file=path, field=place + "bbox")
        yield _Row(
            line=None,
            place=place,
            dicom_id=Path(image.get("file_name") or image["path"]).stem,
            category=names[annotation["category_id"]].strip(),
            phrase=_prose(annotation["label_text"]),
            path=image["path"],
            box=tuple(box),
            size=(image["width"], image["height"]),
            split=annotation.get("split") or image.get("split") or "",
        )


def _entries(
    coco: dict[str, Any], name: str, path: Path, required: tuple[str, ...], optional: tuple[str, ...] = ()
) -> list[dict[str, Any]]:
    """Records of one kind. Required fields named in `_TEXTS` hold texts, optional ones texts or null."""
    entries = coco.get(name)
    if not isinstance(entries, list):
        raise InputError("expected a list", file=path, field=name)
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise InputError("expected an object", file=path, field=f"{name}[{number}]")
        if lacking := next((key for key in required if key not in entry), None):
            raise InputError("is missing", file=path, field=f"{name}[{number}].{lacking}")
        if bad := next(
            (k for k in required if k == "id" or k.endswith("_id") if not isinstance(entry[k], int | str)), ""
        ):
            raise InputError("expected a number", file=path, field=f"{name}[{number}].{bad}")
        texts = [key for key in required if key in _TEXTS] + [key for key in optional if entry.get(key) is not None]
        if bad := next((key for key in texts if not isinstance(entry[key], str)), ""):
            message = f"expected a text, found {brief(entry[bad])}"
            raise InputError(message, file=path, field=f"{name}[{number}].{bad}")
    return entries


def _box(row: _Row, path: Path) -> Box | None:
    """The box as shares of the image, cut at its borders; None where nothing is left."""
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
            f"expected a number of pixels, found '{value}'", file=path, line=row.line, field=row.place + name
        )
    return number


def _radiograph(dicom_id: str, path: str, images: Path) -> Radiograph | None:
    """The image of a release that has it as JPEG or as DICOM; the paths in MS-CXR are those of mimic-cxr-jpg."""
    listed = images / path
    for candidate in (listed, listed.with_suffix(".dcm")):
        if candidate.is_file():
            return Radiograph(dicom_id, candidate, "frontal")
    return None


def _prose(text: str) -> str:
    return " ".join(text.split())


def _failure(source: str, reason: str) -> Failure:
    return Failure(source=source, stage="read", reason=reason)
