"""Studies of an archive with their radiographs, report sections and split, before samples are made of them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from maira.data.manifest import Failure
from maira.data.study import Label
from radfact.records import Sentence

View = Literal["frontal", "lateral"]
HEAD_BYTES = 132
# Without the preamble: an element of group 2 or 8 with a short length, or with the two letters of its type.
_FIRST_ELEMENT = re.compile(rb"[\2\10]\0.\0(?:..\0\0|[A-Z]{2})|\0[\2\10]\0.[A-Z]{2}", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Radiograph:
    """One image of a study.

    Attributes:
        key: name, unique in the archive and safe as a file name; also the name of its PNG.
        path: the file (DICOM, PNG, JPEG), or the zip file that contains it.
        view: frontal or lateral; radiographs of other views are not part of a study.
        member: name within the zip file; None if `path` is the file itself.
        size: (width, height) in pixels on which the archive defines boxes, if known; a file of another size is refused.
        is_inverted: low values are bright. Only for PNG and JPEG; a DICOM file states it in its header.
    """

    key: str
    path: Path
    view: View
    member: str | None = None
    size: tuple[int, int] | None = None
    is_inverted: bool = False

    @property
    def location(self) -> Path:
        """Path of the file, or of the member below its zip file, for error messages."""
        return self.path if self.member is None else self.path / self.member


@dataclass(frozen=True, slots=True)
class ArchiveStudy:
    """One study of an archive. Sections are prose on one line; a missing section is None, never blank.

    Attributes:
        study_id: unique in the archive.
        patient_id: None if the archive does not identify patients.
        timestamp: sortable time of the study, of one type per archive. None if unknown; the study then has no prior
            and is not used as one.
        radiographs: frontal and lateral radiographs, in the archive's order.
        findings, indication, technique, comparison: sections of the report.
        report: text that a later study shows as its prior report; None if there is none.
        grounded_findings: the grounded report, boxes as shares of the original frontal image.
        phrases: sentences to ground on the frontal image.
        labels: labels that do not come from reading the report.
        split: "train", "validate" or "test"; None if the archive has no split.
        sample_ids: sample names by the keys of the frontal radiographs; None to name samples after the study.
        is_prior_only: the study serves as a prior of another one and gives no sample itself.
    """

    study_id: str
    patient_id: str | None = None
    timestamp: Any = None
    radiographs: tuple[Radiograph, ...] = ()
    findings: str | None = None
    indication: str | None = None
    technique: str | None = None
    comparison: str | None = None
    report: str | None = None
    grounded_findings: tuple[Sentence, ...] | None = None
    phrases: tuple[Sentence, ...] | None = None
    labels: tuple[Label, ...] | None = None
    split: str | None = None
    sample_ids: Mapping[str, str] | None = None
    is_prior_only: bool = False


@dataclass(frozen=True)
class Archive:
    """Content of an archive.

    Attributes:
        source: name of the archive, written to `Study.source`.
        studies: all studies in the archive's order, also those that give no sample (no findings, no frontal).
        failures: radiographs, table rows and reports that could not be read (stage "read") or that a rule skips
            ("select"), with the reason.
    """

    source: str
    studies: list[ArchiveStudy]
    failures: list[Failure] = field(default_factory=list)


def radiograph_below(folder: Path, image: Path, view: View, size: tuple[int, int] | None = None) -> Radiograph:
    """Return the radiograph at a path."""
    # Images in different folders may share a name.
    digest = hashlib.sha256(image.as_posix().encode()).hexdigest()[:10]
    return Radiograph(f"{image.stem}-{digest}", folder / image, view, size=size)


def is_dicom(head: bytes) -> bool:
    """Return whether the first `HEAD_BYTES` of a file are those of a DICOM file, with or without the preamble."""
    return head[128:] == b"DICM" or _FIRST_ELEMENT.match(head) is not None


def read_failure(source: str, reason: str) -> Failure:
    """Return the record of something in an archive that cannot be read."""
    return Failure(source=source, stage="read", reason=reason)


def prose(text: str | None) -> str | None:
    """Return a text on one line; None if it contains no word."""
    text = " ".join((text or "").split())
    return text if re.search(r"\w", text) else None


def section_text(text: str) -> str | None:
    """Return a section as `prose`, with de-identified words ("XXXX") as "___", as in MIMIC-CXR."""
    return prose(re.sub("X{4,}", "___", text))
