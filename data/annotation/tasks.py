"""Annotation tasks for Label Studio (labeling interface and tasks) or as a COCO dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

from maira.data.annotation.protocol import PhraseLabel, Progression, Quality
from maira.data.images import image_size
from maira.data.manifest import Failure
from maira.data.study import Study
from radfact.errors import ErrorCode, InputError
from radfact.io.yaml_files import read_yaml
from radfact.records import Sentence

CURRENT, PRIOR = "image", "prior_0"
"""Names of the two images in results; the prior image is the only item of a Repeater, which may be empty."""

SCENARIOS: Mapping[str, Sequence[str]] = read_yaml(Path(__file__).with_name("scenarios.yaml"))
"""Rules for cases that annotators meet, by topic."""

OTHER_VIEW = "Visible only in another view (name it in the comment)"


def image_address(image: Path, root: Path, prefix: str | None = None) -> str:
    """Return the address of an image for Label Studio: below a URL prefix, or below a folder that it serves."""
    path, root = (Path(os.path.normpath(path.absolute())) for path in (image, root))
    if not path.is_relative_to(root):
        message = f"expected an image below {root}; give a folder that contains all images"
        raise InputError(message, code=ErrorCode.INVALID_OPTION, file=image)
    name = quote(path.relative_to(root).as_posix())
    return f"/data/local-files/?d={name}" if prefix is None else f"{prefix.rstrip('/')}/{name}"


def phrases_of(study: Study) -> list[Sentence] | None:
    """Return the sentences to locate: the study's phrases, or else its grounded report."""
    return study.phrases if study.phrases is not None else study.grounded_findings


def numbered_phrases(study: Study) -> list[dict[str, str]]:
    """Return the phrases as shown to annotators and used in results: numbered, so that equal phrases differ."""
    return [{"value": f"{number}. {phrase.text}"} for number, phrase in enumerate(phrases_of(study) or (), start=1)]


def task_of(study: Study, root: Path, prefix: str | None = None) -> dict[str, Any]:
    """Return a task: images (see `image_address`), report (findings), phrases and known labels."""
    known = [f"{label.kind} ({label.side})" if label.side else label.kind for label in study.labels or ()]
    return {
        "data": {
            "sample_id": study.sample_id,
            CURRENT: image_address(study.frontal, root, prefix),
            "priors": [] if study.prior_frontal is None else [image_address(study.prior_frontal, root, prefix)],
            "report": study.findings or " ".join(phrase.text for phrase in phrases_of(study) or ()),
            "phrases": numbered_phrases(study),
            "known_labels": ", ".join(known) or "none",
        }
    }


def labeling_config(categories: Sequence[str] = ()) -> str:
    """Return the labeling interface (XML): quality control, phrase labels, boxes on both images, lines and polygons."""
    from jinja2 import Environment, StrictUndefined

    template = (resources.files("maira.data") / "static" / "labeling.xml").read_text("utf-8")
    values = {"Quality": Quality, "PhraseLabel": PhraseLabel, "Progression": Progression, "other_view": OTHER_VIEW}
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    return environment.from_string(template).render(values, categories=[*categories], scenarios=SCENARIOS)


def coco_dataset(studies: Sequence[Study], folder: Path, skipped: list[Failure]) -> dict[str, Any]:
    """Return a COCO dataset with the frontal and prior images of studies and the existing boxes of phrases."""
    categories: dict[str, int] = {}
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for study in studies:
        radiographs = {"current": study.frontal} | ({"prior": study.prior_frontal} if study.prior_frontal else {})
        try:
            sizes = {role: image_size(path) for role, path in radiographs.items()}
        except InputError as error:
            skipped.append(Failure(sample_id=study.sample_id, stage="export", reason=str(error)))
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
                    x, y = box.x_min * width, box.y_min * height
                    size = (box.x_max - box.x_min) * width, (box.y_max - box.y_min) * height
                    shape = {"bbox": [x, y, *size], "area": size[0] * size[1], "iscrowd": 0, "segmentation": []}
                    of = {"image_id": image_id, "category_id": category}
                    annotations.append({"id": len(annotations) + 1} | shape | of)
    category_list = [{"id": number, "name": text, "supercategory": "phrase"} for text, number in categories.items()]
    return {"images": images, "annotations": annotations, "categories": category_list}
