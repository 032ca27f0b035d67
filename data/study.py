"""Study: the record of one sample, from the archive to the model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, model_validator

from radfact.records import Box, Record, Sentence, Text


def _blank_is_none(value: Any) -> Any:
    return None if isinstance(value, str) and not value.strip() else value


def _required_path(value: Any) -> Any:
    if _blank_is_none(value) is None:
        raise ValueError("a study needs the path of its frontal image")
    return value


# Archives and tables spell a missing section in several ways; inside the project there is one, None.
OptionalText = Annotated[Text | None, BeforeValidator(_blank_is_none)]
OptionalPath = Annotated[Path | None, BeforeValidator(_blank_is_none)]
ImagePath = Annotated[Path, BeforeValidator(_required_path)]

Side = Literal["left", "right", "both"]

IMAGE_COLUMNS = ("frontal", "lateral", "prior_frontal")
"""The fields of a Study that are paths of images."""


class Label(Record):
    """One finding known without any judge: a category of PadChest-GR or MS-CXR, or a phantom's own truth.

    `side` is the patient's, None where the finding has none or it is not known. No boxes is None, never an empty list.
    """

    kind: Text
    side: Side | None = None
    boxes: tuple[Box, ...] | None = None

    @model_validator(mode="before")
    @classmethod
    def _empty_is_none(cls, value: Any) -> Any:
        if isinstance(value, dict) and isinstance(boxes := value.get("boxes"), list | tuple) and not boxes:
            value = value | {"boxes": None}
        return value


class Study(Record):
    """One sample: the images and sections that go into the model, and the answers known for it (paper 004, table 1).

    A study with two frontals or several priors is several samples with one `study_id`. Missing is None: a blank string
    in an optional field becomes None, and so does a report (`grounded_findings`, `phrases`) without any sentence. An
    empty `labels` stays: it says that the study was labelled and nothing was found. Boxes are shares of the ORIGINAL
    image.

    Attributes:
        frontal, lateral, prior_frontal: paths of the images; a relative one is relative to the manifest's folder.
        prior_report, indication, technique, comparison: sections as prose, input of the model.
        findings: the narrative to be generated.
        grounded_findings: the grounded report to be generated.
        phrases: sentences to be located, one by one (phrase grounding).
    """

    sample_id: Text
    study_id: OptionalText = None
    patient_id: OptionalText = None
    frontal: ImagePath
    lateral: OptionalPath = None
    prior_frontal: OptionalPath = None
    prior_report: OptionalText = None
    indication: OptionalText = None
    technique: OptionalText = None
    comparison: OptionalText = None
    findings: OptionalText = None
    grounded_findings: list[Sentence] | None = None
    phrases: list[Sentence] | None = None
    split: OptionalText = None
    source: OptionalText = None
    labels: list[Label] | None = None

    @model_validator(mode="before")
    @classmethod
    def _empty_report_is_none(cls, value: Any) -> Any:
        if isinstance(value, dict):
            value = {
                k: None if k in ("grounded_findings", "phrases") and v in ([], ()) else v for k, v in value.items()
            }
        return value
