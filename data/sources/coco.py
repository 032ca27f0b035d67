"""Any COCO file with its images: detections become grounded findings, captions without boxes narrative ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from data.archive import Archive, ArchiveStudy, Radiograph, radiograph_below
from data.manifest import Failure
from radfact.errors import InputError
from radfact.io.coco import read_coco
from radfact.io.jsonl import read_json
from radfact.records import Sentence


def read_coco_studies(path: Path, images: Path | None = None) -> Archive:
    """Read a COCO dataset (`images` with `file_name`, `annotations`, `categories`); each image is a study's frontal.

    The sentences are the annotations' captions, or else the names of their categories (`radfact.io.coco.read_coco`). Where
    the file has any region, they are grounded findings, and those with a region phrases to ground as well; in a file
    of captions alone they are the narrative. An image without annotations has no findings, and so gives no sample.

    Boxes are placed by the `width` and `height` of their image, so a radiograph of another size is not converted. An image
    with an annotation that cannot be used is left out and listed.

    Args:
        path: the file.
        images: folder that file names are relative to; None is the file's own.

    Raises:
        InputError: the file is no dataset; with the field of what is wrong.
    """
    faults: dict[str, str] = {}
    reports = read_coco(path, faults=faults)
    folder = (images or path.parent).absolute()
    radiographs = _radiographs(read_json(path)["images"], folder, path)
    is_grounded = any(sentence.boxes or sentence.masks for report in reports.values() for sentence in report)
    studies = [_study(key, radiographs[key], report, is_grounded) for key, report in reports.items()]
    return Archive("coco", studies, [Failure(source=key, stage="read", reason=why) for key, why in faults.items()])


def _radiographs(images: Sequence[Mapping[str, Any]], folder: Path, path: Path) -> dict[str, Radiograph]:
    """By the keys that `read_coco` gives to reports."""
    radiographs = {}
    for index, image in enumerate(images):
        name = image.get("file_name")
        if not isinstance(name, str) or not name.strip():
            raise InputError("expected the name of the image's file", file=path, field=f"images[{index}].file_name")
        key = str(image.get("sample_id") or image["id"]).strip()
        radiographs[key] = radiograph_below(
            folder, Path(name), "frontal", (int(float(image["width"])), int(float(image["height"])))
        )
    return radiographs


def _study(key: str, radiograph: Radiograph, report: Sequence[Sentence], is_grounded: bool) -> ArchiveStudy:
    located = tuple(sentence for sentence in report if sentence.boxes or sentence.masks)
    return ArchiveStudy(
        study_id=key,
        radiographs=(radiograph,),
        findings=" ".join(s.text for s in report) or None if not is_grounded else None,
        grounded_findings=tuple(report) or None if is_grounded else None,
        phrases=located or None,
    )
