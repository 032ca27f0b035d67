"""Annotation tasks as a COCO dataset, for tools that take no other: an image a radiograph, a category a phrase."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data.annotation.label_studio import phrases_of
from data.images import image_size
from data.manifest import Failure
from data.study import Study
from radfact.errors import InputError
from radfact.records import Box


def coco_dataset(studies: Sequence[Study], folder: Path, left_out: list[Failure]) -> dict[str, Any]:
    """A dataset with the frontal and the prior image of each study, and the boxes that its phrases have already.

    `sample_id` and `role` ("current", "prior") tell whose image one is, `phrase_ids` which categories are to be
    annotated on it; equal phrases are one category.

    Args:
        studies: with phrases or a grounded report.
        folder: that the images' file names are relative to where they lie below it.
        left_out: takes the studies with an image that cannot be opened.
    """
    categories: dict[str, int] = {}
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for study in studies:
        radiographs = {"current": study.frontal} | ({"prior": study.prior_frontal} if study.prior_frontal else {})
        try:
            sizes = {role: image_size(path) for role, path in radiographs.items()}
        except InputError as error:
            left_out.append(Failure(sample_id=study.sample_id, stage="export", reason=str(error)))
            continue
        phrases = phrases_of(study) or []
        ids = [categories.setdefault(phrase.text, len(categories) + 1) for phrase in phrases]
        for role, path in radiographs.items():
            width, height = sizes[role]
            image_id = len(images) + 1
            name = path.relative_to(folder) if path.is_relative_to(folder) else path
            image = {"id": image_id, "file_name": name.as_posix(), "width": width, "height": height}
            report = {"report": study.findings} if role == "current" else {}
            images.append(image | {"sample_id": study.sample_id, "role": role, "phrase_ids": ids} | report)
            for phrase, category in zip(phrases, ids, strict=True):
                for box in (phrase.boxes if role == "current" else phrase.prior_boxes) or ():
                    known = _annotation(box, width, height) | {"image_id": image_id, "category_id": category}
                    annotations.append({"id": len(annotations) + 1} | known)
    named = [{"id": number, "name": text, "supercategory": "phrase"} for text, number in categories.items()]
    return {"images": images, "annotations": annotations, "categories": named}


def _annotation(box: Box, width: int, height: int) -> dict[str, Any]:
    x, y = box.x_min * width, box.y_min * height
    size = (box.x_max - box.x_min) * width, (box.y_max - box.y_min) * height
    return {"bbox": [x, y, *size], "area": size[0] * size[1], "iscrowd": 0, "segmentation": []}
