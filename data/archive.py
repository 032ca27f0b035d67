"""What every archive comes down to before samples are made of it: studies with their radiographs, sections and split."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from data.manifest import Failure
from data.study import Label
from radfact.records import Sentence

View = Literal["frontal", "lateral"]


@dataclass(frozen=True, slots=True)
class Radiograph:
    """One image of a study.

    Attributes:
        key: its name, unique in the archive and safe as a file name; the PNG made of it is called so.
        path: the file (DICOM, PNG, JPEG), or the zip archive that holds it.
        view: from the front or from the side; radiographs of other views are no part of a study here.
        member: name within the zip archive, None where `path` is the file itself.
        size: (width, height) in pixels by which the archive places boxes on it, where it says so; a file of another
            size is not the radiograph that was meant.
        is_inverted: the file's low values are bright, which a DICOM file says itself and a picture cannot.
    """

    key: str
    path: Path
    view: View
    member: str | None = None
    size: tuple[int, int] | None = None
    is_inverted: bool = False

    @property
    def name(self) -> Path:
        """What errors name it by."""
        return self.path if self.member is None else self.path / self.member


@dataclass(frozen=True, slots=True)
class ArchiveStudy:
    """One study as its archive has it. Sections are prose; missing is None, never blank.

    Attributes:
        study_id: unique in the archive.
        patient_id: None where the archive does not tell patients apart.
        when: the study's place in its patient's time; any values that sort, of one type in an archive. None where the
            archive does not say, and then the study neither has a prior nor is one.
        radiographs: frontal and lateral ones, in the archive's order.
        findings, indication, technique, comparison: sections of the report.
        report: what a later study shows as its prior report; None where there is none.
        grounded_findings: the grounded report, boxes as shares of the original frontal image.
        phrases: sentences to ground on the frontal image.
        labels: what is known of the study without reading its report.
        split: "train", "validate" or "test"; None where the archive has none.
        sample_ids: names of the samples by the keys of their frontal radiographs; None where they are named after the study.
        only_prior: known from a later study alone, whose prior it is; it gives no sample, which is no lack.
    """

    study_id: str
    patient_id: str | None = None
    when: Any = None
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
    only_prior: bool = False


@dataclass(frozen=True)
class Archive:
    """What a reader found in an archive.

    Attributes:
        source: name of the archive, as `Study.source` has it.
        studies: in the archive's order; those that will give no sample (no findings, no frontal) among them.
        failures: what is not among them, and why: radiographs, rows of tables, reports that could not be read (`stage`
            "read"), and what rules leave out, which is no fault of the archive ("select").
    """

    source: str
    studies: list[ArchiveStudy]
    failures: list[Failure] = field(default_factory=list)


def radiograph_below(folder: Path, image: Path, view: View, size: tuple[int, int] | None = None) -> Radiograph:
    """A radiograph that a file names by its path, relative to a folder."""
    # Two images can have one name in different folders.
    where = hashlib.sha256(image.as_posix().encode()).hexdigest()[:10]
    return Radiograph(f"{image.stem}-{where}", folder / image, view, size=size)
