"""Study: the record of one sample (images, report sections, reference reports, labels)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from radfact.records import Box, Record, Sentence, Text


def _empty_is_none(value: Any) -> Any:
    """Archives and tables write a missing value in several ways; inside the project it is always None."""
    return None if isinstance(value, str) and not value.strip() else _empty_list_is_none(value)


def _empty_list_is_none(value: Any) -> Any:
    return None if isinstance(value, list | tuple) and not value else value


def _required_path(value: Any) -> Any:
    if _empty_is_none(value) is None:
        raise ValueError("expected the path of the frontal image")
    return value


OptionalText = Annotated[Text | None, BeforeValidator(_empty_is_none)]
OptionalPath = Annotated[Path | None, BeforeValidator(_empty_is_none)]
OptionalSentences = Annotated[list[Sentence] | None, BeforeValidator(_empty_list_is_none)]
ImagePath = Annotated[Path, BeforeValidator(_required_path)]

Side = Literal["left", "right", "both"]
IMAGE_COLUMNS = ("frontal", "lateral", "prior_frontal")
"""Fields of a Study that are image paths."""


def _require_image_column(value: str) -> str:
    if value not in IMAGE_COLUMNS:
        raise ValueError(f"expected one of {', '.join(IMAGE_COLUMNS)}, found {value!r:.40}")
    return value


ImageColumn = Annotated[str, AfterValidator(_require_image_column)]


class Label(Record):
    """One finding known without a judge: a category of PadChest-GR or MS-CXR, or the ground truth of a phantom.

    Attributes:
        kind: name of the finding.
        side: the patient's side; None if the finding has no side or it is unknown.
        boxes: boxes on the original image; None for no boxes, never empty.
    """

    kind: Text
    side: Side | None = None
    boxes: Annotated[tuple[Box, ...] | None, BeforeValidator(_empty_is_none)] = None


class Original(Record):
    """The file that an image was converted from.

    Attributes:
        path: DICOM, PNG or JPEG file, or the zip file that contains it; absolute or relative to the manifest's folder.
        member: name within the zip file; None if `path` is the file itself.
        is_inverted: low values are bright. Only for PNG and JPEG; a DICOM file states it in its header.
    """

    path: Path
    member: OptionalText = None
    is_inverted: bool = False


class Study(Record):
    """One sample: images and report sections as model input, and the reference reports (MAIRA-2, table 1).

    A study with two frontals or several priors gives several samples with the same `study_id`. Missing values are
    None: blank strings in optional fields and reports without sentences become None. An empty `labels` stays empty:
    the study was labeled and has no finding. Boxes are shares of the original image.

    Attributes:
        frontal, lateral, prior_frontal: image paths, absolute or relative to the manifest's folder.
        originals: original files of the images, by image column.
        prior_report, indication, technique, comparison: sections as prose, input of the model.
        findings: the narrative report to generate.
        grounded_findings: the grounded report to generate.
        phrases: sentences to locate one at a time (phrase grounding).
    """

    sample_id: Text
    study_id: OptionalText = None
    patient_id: OptionalText = None
    frontal: ImagePath
    lateral: OptionalPath = None
    prior_frontal: OptionalPath = None
    originals: dict[ImageColumn, Original] | None = None
    prior_report: OptionalText = None
    indication: OptionalText = None
    technique: OptionalText = None
    comparison: OptionalText = None
    findings: OptionalText = None
    grounded_findings: OptionalSentences = None
    phrases: OptionalSentences = None
    split: OptionalText = None
    source: OptionalText = None
    labels: list[Label] | None = None
