"""COCO files with images: detections become grounded findings, captions without boxes become narrative findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from maira.data.archive import Archive, ArchiveStudy, Radiograph, radiograph_below, read_failure
from radfact.errors import InputError
from radfact.io.coco import read_coco
from radfact.io.jsonl import read_json
from radfact.records import Sentence


def read_coco_studies(root: Path, images: Path | None = None) -> Archive:
    """Read a COCO dataset (`images` with `file_name`, `annotations`, `categories`); each image is one study.

    Sentences are the annotations' captions, or else their categories' names (`radfact.io.coco.read_coco`). If the file
    has any region, they are grounded findings, and those with a region also phrases to ground; otherwise they are the
    narrative. An image without annotations has no findings and gives no sample.

    Boxes refer to the `width` and `height` of their image, so a radiograph of another size is not converted. An image
    with an invalid annotation is skipped and listed.
    """
    invalid: dict[str, str] = {}
    reports = read_coco(root, faults=invalid)
    folder = (images or root.parent).absolute()
    radiographs = _radiographs(read_json(root)["images"], folder, root)
    is_grounded = any(sentence.boxes or sentence.masks for report in reports.values() for sentence in report)
    studies = [_study(key, radiographs[key], report, is_grounded) for key, report in reports.items()]
    return Archive("coco", studies, [read_failure(key, reason) for key, reason in invalid.items()])


def _radiographs(images: Sequence[Mapping[str, Any]], folder: Path, path: Path) -> dict[str, Radiograph]:
    """Return the radiographs by the keys that `read_coco` uses."""
    radiographs = {}
    for index, image in enumerate(images):
        name = image.get("file_name")
        if not isinstance(name, str) or not name.strip():
            raise InputError("expected a file name", file=path, field=f"images[{index}].file_name")
        key = str(image.get("sample_id") or image["id"]).strip()
        size = int(float(image["width"])), int(float(image["height"]))
        radiographs[key] = radiograph_below(folder, Path(name), "frontal", size)
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
