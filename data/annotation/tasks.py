"""Annotation tasks for Label Studio (labeling interface and tasks) or as a COCO dataset.

Tags and parameters follow https://labelstud.io/tags, tested with Label Studio 1.23.2. Lines require VectorLabels, which
older versions do not have.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

from maira.data.annotation.protocol import PhraseLabel, Progression, Quality
from maira.data.images import image_size
from maira.data.manifest import Failure
from maira.data.study import Study
from radfact.errors import ErrorCode, InputError
from radfact.records import Box, Sentence

CURRENT, PRIOR = "image", "prior_0"
"""Names of the two images in results; the prior image is the only item of a Repeater, which may be empty."""

OTHER_VIEW = "Visible only in another view (name it in the comment)"

_HINTS = {
    Quality.NO_ISSUE: "Continue with the phrases.",
    Quality.IMAGE: "Wrong anatomy, key areas not imaged, or technical faults in one or both images.",
    Quality.PRIOR: "The prior image does not match the current image or the report.",
    Quality.REPORT: "Critical findings are omitted, a clear error, or another patient's report; not minor typos.",
    Quality.PHRASES: "A finding of the report that should be annotated is missing among the phrases.",
    Quality.UNACCEPTABLE: "Names or other health information of a person in the report, or the image of a child.",
    PhraseLabel.FINDING: "Something abnormal, also a misplaced device: draw boxes on the current image.",
    PhraseLabel.TEMPORAL: "Refers to the prior study: draw boxes on both images.",
    PhraseLabel.PLACED_NON_FINDING: "No pathology, or normal anatomy, in a place of less than half of the image.",
    PhraseLabel.NON_FINDING: "No pathology, in no place or nearly everywhere.",
    PhraseLabel.OTHER: "Technique, recommendations, talks with other clinicians.",
    PhraseLabel.ISSUE: "Malformed, or without sense.",
}


@dataclass(frozen=True, slots=True)
class ImageAddress:
    """How Label Studio addresses an image: below a folder that it serves, or below a URL.

    Attributes:
        root: base folder of image paths. Without a prefix it is the document root of Label Studio's local files
            (LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT). Label Studio serves only folders below it that are added to the
            project as local storage, not the root itself.
        prefix: URL prefix; None for Label Studio's address of local files.
    """

    root: Path
    prefix: str | None = None

    def of(self, image: Path) -> str:
        """Return the address of an image."""
        path, root = (Path(os.path.normpath(path.absolute())) for path in (image, self.root))
        if not path.is_relative_to(root):
            message = f"expected an image below {root}; give a folder that contains all images"
            raise InputError(message, code=ErrorCode.INVALID_OPTION, file=image)
        name = quote(path.relative_to(root).as_posix())
        return f"/data/local-files/?d={name}" if self.prefix is None else f"{self.prefix.rstrip('/')}/{name}"


def phrases_of(study: Study) -> list[Sentence] | None:
    """Return the sentences to locate: the study's phrases, or else its grounded report."""
    return study.phrases if study.phrases is not None else study.grounded_findings


def numbered_phrases(study: Study) -> list[str]:
    """Return the phrases as shown to annotators and used in results: numbered, so that equal phrases differ."""
    return [f"{number}. {phrase.text}" for number, phrase in enumerate(phrases_of(study) or (), start=1)]


def task_of(study: Study, address: ImageAddress) -> dict[str, Any]:
    """Return a task: images, report (findings), phrases and known labels."""
    phrases = numbered_phrases(study)
    known = [f"{label.kind} ({label.side})" if label.side else label.kind for label in study.labels or ()]
    return {
        "data": {
            "sample_id": study.sample_id,
            CURRENT: address.of(study.frontal),
            "priors": [] if study.prior_frontal is None else [address.of(study.prior_frontal)],
            "report": study.findings or " ".join(phrase.text for phrase in phrases_of(study) or ()),
            "phrases": [{"value": text} for text in phrases],
            "known_labels": ", ".join(known) or "none",
        }
    }


def labeling_config(categories: Sequence[str] = ()) -> str:
    """Return the labeling interface (XML): quality control, phrase labels, boxes on both images, lines and polygons."""
    view = ElementTree.Element("View")
    _header(view, "Findings of the report")
    _add(view, "Text", name="report", value="$report")
    _header(view, "Labels known before")
    _add(view, "Text", name="known_labels", value="$known_labels")
    _header(view, "1. Quality of the sample: with any issue, stop here")
    _choices(view, "quality", CURRENT, list(Quality), required="true")
    _comment(view, "comment", CURRENT)
    images = _add(view, "View", style="display: flex; gap: 1em; flex-wrap: wrap")
    current = _add(images, "View", style="flex: 1; min-width: 30em")
    _header(current, "Current image")
    _regions(current, "RectangleLabels", "box", CURRENT)
    _regions(_collapsible(current, "Polygons (misplaced devices)"), "PolygonLabels", "polygon", CURRENT)
    _regions(_collapsible(current, "Lines (cables and tubes)"), "VectorLabels", "line", CURRENT)
    _image(current, CURRENT, f"${CURRENT}")
    repeated = _add(images, "Repeater", on="$priors", indexFlag="{{idx}}")
    prior = _add(repeated, "View", style="flex: 1; min-width: 30em")
    _header(prior, "Prior image")
    _regions(prior, "RectangleLabels", "prior_box_{{idx}}", "prior_{{idx}}")
    _image(prior, "prior_{{idx}}", "$priors[{{idx}}]")
    _phrase(_add(view, "Repeater", on="$phrases", indexFlag="{{idx}}"), categories)
    ElementTree.indent(view)
    return ElementTree.tostring(view, encoding="unicode") + "\n"


def _phrase(view: ElementTree.Element, categories: Sequence[str]) -> None:
    name = "phrase_{{idx}}"
    _add(view, "Text", name=name, value="$phrases[{{idx}}].value")
    _choices(view, "label_{{idx}}", name, list(PhraseLabel))
    when = {"visibleWhen": "choice-selected", "whenTagName": "label_{{idx}}"}
    temporal = when | {"whenChoiceValue": PhraseLabel.TEMPORAL.value}
    finding = when | {"whenChoiceValue": ",".join((PhraseLabel.FINDING, PhraseLabel.TEMPORAL))}
    _choices(view, "progression_{{idx}}", name, list(Progression), **temporal)
    if categories:
        _choices(view, "category_{{idx}}", name, categories, **finding)
    _choices(view, "view_{{idx}}", name, [OTHER_VIEW], choice="multiple", **finding)
    _comment(view, "comment_{{idx}}", name)


def _regions(view: ElementTree.Element, tag: str, name: str, image: str) -> None:
    """Add a control whose labels are the task's phrases."""
    # Rotated and curved shapes cannot be imported.
    fixed = {"RectangleLabels": {"canRotate": "false"}, "VectorLabels": {"curves": "false", "closable": "false"}}
    _add(view, tag, name=name, toName=image, value="$phrases", **fixed.get(tag, {}))


def _collapsible(view: ElementTree.Element, title: str) -> ElementTree.Element:
    return _add(_add(view, "Collapse"), "Panel", value=title)


def _image(view: ElementTree.Element, name: str, value: str) -> None:
    _add(view, "Image", name=name, value=value, zoom="true", zoomControl="true", rotateControl="false")


def _choices(view: ElementTree.Element, name: str, to: str, values: Sequence[str], **more: str) -> None:
    attributes = {"choice": "single-radio", "showInline": "true"} | more
    choices = _add(view, "Choices", name=name, toName=to, **attributes)
    for value in values:
        hint = {"hint": _HINTS[value]} if isinstance(value, Quality | PhraseLabel) else {}
        _add(choices, "Choice", value=str(value), **hint)


def _comment(view: ElementTree.Element, name: str, to: str) -> None:
    _add(view, "TextArea", name=name, toName=to, placeholder="Comment", maxSubmissions="1", rows="1", editable="true")


def _header(view: ElementTree.Element, text: str) -> None:
    _add(view, "Header", value=text, size="4")


def _add(parent: ElementTree.Element, tag: str, **attributes: str) -> ElementTree.Element:
    return ElementTree.SubElement(parent, tag, attributes)


def coco_dataset(studies: Sequence[Study], folder: Path, skipped: list[Failure]) -> dict[str, Any]:
    """Return a COCO dataset with the frontal and prior images of studies and the existing boxes of phrases.

    Images have the additional fields `sample_id`, `role` ("current", "prior") and `phrase_ids`, the categories to
    annotate. A phrase is a category; equal phrases are one category.
    """
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
                    annotation = _coco_annotation(box, width, height) | {"image_id": image_id, "category_id": category}
                    annotations.append({"id": len(annotations) + 1} | annotation)
    category_list = [{"id": number, "name": text, "supercategory": "phrase"} for text, number in categories.items()]
    return {"images": images, "annotations": annotations, "categories": category_list}


def _coco_annotation(box: Box, width: int, height: int) -> dict[str, Any]:
    x, y = box.x_min * width, box.y_min * height
    size = (box.x_max - box.x_min) * width, (box.y_max - box.y_min) * height
    return {"bbox": [x, y, *size], "area": size[0] * size[1], "iscrowd": 0, "segmentation": []}
