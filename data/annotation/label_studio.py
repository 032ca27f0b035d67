"""Annotation tasks for Label Studio: the labelling interface, and a task a sample.

The tags and their parameters are those of its documentation (https://labelstud.io/tags). The interface was tried in
Label Studio 1.23.2; lines need its VectorLabels, which older versions do not have.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

from data.annotation.protocol import PhraseLabel, Progression, Quality
from data.study import Study
from radfact.errors import InputError
from radfact.records import Sentence

CURRENT, PRIOR = "image", "prior_0"
"""Names of the two images in results; the prior one is the only item of a Repeater, which may be empty."""

OTHER_VIEW = "Visible only in another view (name it in the comment)"

_HINTS = {
    Quality.NO_ISSUE: "Go on with the phrases.",
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
    """How Label Studio finds an image: below a folder that it serves itself, or below a URL.

    Attributes:
        root: the folder that image paths are relative to. Without a prefix it is the document root of Label Studio's
            local files (LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT). Label Studio serves only folders below it that are
            added to the project as local storage, not the root itself.
        prefix: of the URL; None is Label Studio's own address of local files.
    """

    root: Path
    prefix: str | None = None

    def of(self, image: Path) -> str:
        """The address of an image.

        Raises:
            InputError: the image does not lie below the root.
        """
        path, root = (Path(os.path.normpath(one.absolute())) for one in (image, self.root))
        if not path.is_relative_to(root):
            raise InputError(f"does not lie below {root}; name a folder that holds all images", file=image)
        name = quote(path.relative_to(root).as_posix())
        return f"/data/local-files/?d={name}" if self.prefix is None else f"{self.prefix.rstrip('/')}/{name}"


def phrases_of(study: Study) -> list[Sentence] | None:
    """The sentences that annotators locate: the study's phrases, or else its grounded report."""
    return study.phrases if study.phrases is not None else study.grounded_findings


def shown_phrases(study: Study) -> list[str]:
    """The phrases as annotators see them and as results name them: numbered, so that equal ones differ."""
    return [f"{number}. {phrase.text}" for number, phrase in enumerate(phrases_of(study) or (), start=1)]


def task_of(study: Study, address: ImageAddress) -> dict[str, Any]:
    """One task: images, report (its findings), phrases, and what labels are known already.

    Raises:
        InputError: an image has no address.
    """
    shown = shown_phrases(study)
    known = [f"{label.kind} ({label.side})" if label.side else label.kind for label in study.labels or ()]
    return {
        "data": {
            "sample_id": study.sample_id,
            CURRENT: address.of(study.frontal),
            "priors": [] if study.prior_frontal is None else [address.of(study.prior_frontal)],
            "report": study.findings or " ".join(phrase.text for phrase in phrases_of(study) or ()),
            "phrases": [{"value": text} for text in shown],
            "known_labels": ", ".join(known) or "none",
        }
    }


def labelling_config(categories: Sequence[str] = ()) -> str:
    """The labelling interface (XML): quality control, a label a phrase, boxes on both images, lines and polygons.

    Args:
        categories: of findings, for those who want them.
    """
    view = ElementTree.Element("View")
    _quality(view)
    images = _add(view, "View", style="display: flex; gap: 1em; flex-wrap: wrap")
    current = _add(images, "View", style="flex: 1; min-width: 30em")
    _header(current, "Current image")
    _regions(current, "RectangleLabels", "box", CURRENT)
    _regions(_folded(current, "Polygons (misplaced devices)"), "PolygonLabels", "polygon", CURRENT)
    _regions(_folded(current, "Lines (cables and tubes)"), "VectorLabels", "line", CURRENT)
    _image(current, CURRENT, f"${CURRENT}")
    repeated = _add(images, "Repeater", on="$priors", indexFlag="{{idx}}")
    prior = _add(repeated, "View", style="flex: 1; min-width: 30em")
    _header(prior, "Prior image")
    _regions(prior, "RectangleLabels", "prior_box_{{idx}}", "prior_{{idx}}")
    _image(prior, "prior_{{idx}}", "$priors[{{idx}}]")
    _phrase(_add(view, "Repeater", on="$phrases", indexFlag="{{idx}}"), categories)
    ElementTree.indent(view)
    return ElementTree.tostring(view, encoding="unicode") + "\n"


def _quality(view: ElementTree.Element) -> None:
    _header(view, "Findings of the report")
    _add(view, "Text", name="report", value="$report")
    _header(view, "Labels known before")
    _add(view, "Text", name="known_labels", value="$known_labels")
    _header(view, "1. Quality of the sample: with any issue, stop here")
    _choices(view, "quality", CURRENT, list(Quality), required="true")
    _comment(view, "comment", CURRENT)


def _phrase(view: ElementTree.Element, categories: Sequence[str]) -> None:
    name = "phrase_{{idx}}"
    _add(view, "Text", name=name, value="$phrases[{{idx}}].value")
    _choices(view, "label_{{idx}}", name, list(PhraseLabel))
    when = {"visibleWhen": "choice-selected", "whenTagName": "label_{{idx}}"}
    temporal = when | {"whenChoiceValue": PhraseLabel.TEMPORAL.value}
    finding = when | {"whenChoiceValue": ",".join(label.value for label in PhraseLabel if label.is_finding)}
    _choices(view, "progression_{{idx}}", name, list(Progression), **temporal)
    if categories:
        _choices(view, "category_{{idx}}", name, categories, **finding)
    _choices(view, "view_{{idx}}", name, [OTHER_VIEW], choice="multiple", **finding)
    _comment(view, "comment_{{idx}}", name)


def _regions(view: ElementTree.Element, tag: str, name: str, image: str) -> None:
    """A control whose labels are the task's phrases."""
    # What is rotated or curved cannot be read back.
    fixed = {"RectangleLabels": {"canRotate": "false"}, "VectorLabels": {"curves": "false", "closable": "false"}}
    _add(view, tag, name=name, toName=image, value="$phrases", **fixed.get(tag, {}))


def _folded(view: ElementTree.Element, title: str) -> ElementTree.Element:
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
