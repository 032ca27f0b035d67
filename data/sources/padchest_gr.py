"""PadChest-GR (Castro et al. 2024, arXiv:2411.05085): 4,555 frontal radiographs of PadChest with grounded reports.

Layout of the release, as public code that reads it has it:

    grounded_reports_20240819.json
        [{"StudyID", "ImageID", "PreviousStudyID", "PreviousImageID", "findings": [{"sentence_en", "sentence_es",
        "abnormal", "boxes", "extra_boxes", "labels", "locations", "progression"}]}], where a sentence of something
        normal may have no more than its texts; boxes are [x_min, y_min, x_max, y_max] in shares of the image
    master_table.csv[.zip]
        one row a study and label, with PatientID, StudyDate_DICOM and split (train, validation, test)
    Padchest_GR_files/PadChest_GR/*.png
        16 bit; downloaded as PadChest_GR.zip.001 to .037, the parts of one zip
    PadChest_GR_progression_prior_studies/
        1,446 frontal radiographs of previous studies

Images are found by name wherever they lie below the root, unpacked or in a zip; of several of one name an unpacked one
is read before one in a zip, and then that of the folder which comes first by name. Inferred and not seen: the words of
a side among `locations` ("left", "right", "bilateral", in PadChest "loc left"), and that `boxes` are the set to learn
from where a second reader drew `extra_boxes`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from data.archive import Archive, ArchiveStudy, Radiograph
from data.manifest import Failure
from data.sources.padchest import Language, day, png_members, prose, read_padchest, split_name, whole_report
from data.study import Label, Side
from radfact.errors import InputError, brief
from radfact.io.csv_tables import find_csv, stream_columns
from radfact.io.jsonl import read_json
from radfact.records import Box, Sentence, validated

_REPORTS = "grounded_reports_20240819.json"
_TABLE = "master_table.csv"
# Boxes drawn over the edge of the image end there; what lies further out is no share of it.
_OVER_THE_EDGE = 0.01


def read_padchest_gr(
    root: Path, *, padchest: Path | None = None, reports: Path | None = None, language: Language = "en"
) -> Archive:
    """Read PadChest-GR: each study is one frontal radiograph with its grounded report.

    The release has neither lateral radiographs nor the reports of the previous studies that it names; both are in PadChest.
    A study with a previous one is placed in time just after it, so that no other of the patient's becomes its prior.
    Faults of PadChest's own tables and files are listed where PadChest is read, not here.

    Args:
        root: folder of the release.
        padchest: folder of PadChest, for laterals and previous studies. Without it there are no laterals, and a prior
            only where the previous study is one of this release.
        reports: PadChest's English reports, see `read_padchest`.
        language: of the sentences, and of the previous studies' reports.

    Raises:
        InputError: the reports or the table are missing or cannot be used, or there are no images.
    """
    if reports is not None and padchest is None:
        raise InputError("reports of PadChest are of use only beside its folder, which was not given", file=reports)
    table = find_csv(root, _TABLE)
    if table is None:
        raise InputError("no such file; it has the patients and the splits", file=root / _TABLE)
    entries = read_json(root / _REPORTS)
    if not isinstance(entries, list):
        raise InputError(f"expected a list of studies, found {type(entries).__name__}", file=root / _REPORTS)
    facts = _read_facts(table)
    images = _Images(root)
    whole = read_padchest(padchest, reports=reports, language=language, pediatric=True) if padchest else None
    others = {study.study_id: study for study in whole.studies} if whole else {}
    failures: list[Failure] = []
    studies: dict[str, ArchiveStudy] = {}
    previous: dict[str, tuple[str, _Facts]] = {}
    for place, entry in enumerate(entries):
        try:
            study_id, image_id = _name(entry, "StudyID"), _name(entry, "ImageID")
            if study_id in studies:
                raise InputError(f"study {study_id} is there twice")
            if study_id not in facts:
                raise InputError(f"{_TABLE} has no row of it, so neither its patient nor its split is known")
            study = _study(entry, study_id, facts[study_id], language)
        except InputError as error:
            name = entry.get("StudyID") if isinstance(entry, dict) else None
            failures.append(_failure(str(name or f"{_REPORTS}[{place}]"), str(error)))
            continue
        frontal = images.radiographs(image_id, failures)
        laterals = (
            tuple(radiograph for radiograph in others[study_id].radiographs if radiograph.view == "lateral")
            if study_id in others
            else ()
        )
        studies[study_id] = replace(study, radiographs=frontal + laterals)
        if isinstance(before := entry.get("PreviousStudyID"), str):
            previous.setdefault(before, (str(entry.get("PreviousImageID")), facts[study_id]))
    if studies and not images.found:
        raise InputError("no image of any study is below this folder", file=root)
    for name, (image, after) in previous.items():
        if name not in studies and name in others and others[name].report is not None:
            studies[name] = _previous_study(others[name], images.radiographs(image, []), after)
    return Archive("padchest-gr", list(studies.values()), failures)


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the table says of a study."""

    patient_id: str
    when: int | None
    split: str


def _read_facts(table: Path) -> dict[str, _Facts]:
    facts: dict[str, _Facts] = {}
    columns = ("StudyID", "PatientID", "split")
    for line, (study, patient, split, date) in stream_columns(table, columns, ("StudyDate_DICOM",)):
        if study is None or patient is None:
            field = "StudyID" if study is None else "PatientID"
            raise InputError("is missing", file=table, line=line, field=field)
        read = _Facts(patient, day(date), split_name(split, file=table, line=line))
        known = facts.setdefault(study, read)
        if (known.patient_id, known.split) != (read.patient_id, read.split):
            message = f"study {study} is of '{known.patient_id}' in '{known.split}' in a line before; here it is not"
            raise InputError(message, file=table, line=line, field="split")
    return facts


def _study(entry: dict[str, Any], study_id: str, facts: _Facts, language: Language) -> ArchiveStudy:
    findings = entry.get("findings")
    if not isinstance(findings, list) or not findings:
        raise InputError("expected a list of sentences", field="findings")
    sentences: list[Sentence] = []
    labels: list[Label] = []
    for number, finding in enumerate(findings):
        where = f"findings[{number}]"
        if not isinstance(finding, dict):
            raise InputError("expected an object with named fields", field=where)
        text = finding.get(f"sentence_{language}")
        if not isinstance(text, str) or not (text := prose(text) or ""):
            raise InputError("the sentence has no text in this language", field=f"{where}.sentence_{language}")
        boxes = tuple(_boxes(_list(finding, "boxes", where), f"{where}.boxes"))
        sentences.append(Sentence(text=text, boxes=boxes))
        if finding.get("abnormal"):
            kinds = _list(finding, "labels", where)
            # Boxes of a sentence with several labels are not any one label's.
            located = boxes if len(kinds) == 1 else None
            side = _side(_list(finding, "locations", where))
            labels += [Label(kind=str(kind), side=side, boxes=located) for kind in kinds]
    return ArchiveStudy(
        study_id=study_id,
        patient_id=facts.patient_id,
        when=None if facts.when is None else (facts.when, 1),
        report=whole_report(" ".join(sentence.text for sentence in sentences), None),
        grounded_findings=tuple(sentences),
        labels=tuple(labels),
        split=facts.split,
    )


def _previous_study(study: ArchiveStudy, frontal: tuple[Radiograph, ...], after: _Facts) -> ArchiveStudy:
    """A study that is shown as a prior and is no sample itself."""
    radiographs = frontal or tuple(radiograph for radiograph in study.radiographs if radiograph.view == "frontal")
    when = None if after.when is None else (after.when, 0)
    return ArchiveStudy(
        study.study_id, after.patient_id, when, radiographs, report=study.report, split=after.split, only_prior=True
    )


def _list(finding: dict[str, Any], name: str, where: str) -> list[Any]:
    """A list of a sentence; empty where it is left out or null."""
    value = finding.get(name)
    if value is not None and not isinstance(value, list):
        raise InputError(f"expected a list, found {brief(value)}", field=f"{where}.{name}")
    return value or []


def _boxes(boxes: list[Any], field: str) -> Iterator[Box]:
    for number, corners in enumerate(boxes):
        where = f"{field}[{number}]"
        if not isinstance(corners, list) or len(corners) != 4 or any(type(c) not in (int, float) for c in corners):
            raise InputError(f"expected [x_min, y_min, x_max, y_max], found {brief(corners)}", field=where)
        if any(not -_OVER_THE_EDGE <= corner <= 1 + _OVER_THE_EDGE for corner in corners):
            raise InputError(f"expected shares of the image, from 0 to 1, found {corners}", field=where)
        inside = (min(max(corner, 0), 1) for corner in corners)
        yield validated(Box, dict(zip(("x_min", "y_min", "x_max", "y_max"), inside, strict=True)), field=where)


def _side(locations: list[Any]) -> Side | None:
    """The side that places name; None where they name none."""
    words = {str(place).removeprefix("loc ").strip().lower() for place in locations}
    if "bilateral" in words or {"left", "right"} <= words:
        return "both"
    return "left" if "left" in words else "right" if "right" in words else None


class _Images:
    """Images below a folder by name, of several an unpacked one before those in zips, and then the first."""

    def __init__(self, root: Path) -> None:
        self._places: dict[str, tuple[Path, str | None]] = {}
        self.found = False
        parts: list[Path] = []
        for folder, below, names in os.walk(root, followlinks=True):
            below.sort()
            for path in (Path(folder, name) for name in sorted(names)):
                if path.suffix == ".png":
                    known = self._places.get(path.name)
                    if known is None or known[1] is not None:
                        self._places[path.name] = (path, None)
                elif path.name.endswith(".zip") and not path.name.startswith(_TABLE):
                    for member in png_members(path):
                        self._places.setdefault(member.rpartition("/")[2], (path, member))
                elif path.name.endswith(".zip.001"):
                    parts.append(path)
        if parts and not self._places:
            name = parts[0].name.removesuffix(".001")
            message = f"is the first part of one zip; join them: cat {name}.* > {name}"
            raise InputError(message, file=parts[0])

    def radiographs(self, image: str, failures: list[Failure]) -> tuple[Radiograph, ...]:
        """The frontal radiograph of an image; none where there is no file, which is listed."""
        if image not in self._places:
            failures.append(_failure(image, "there is no such image below the folder"))
            return ()
        self.found = True
        path, member = self._places[image]
        return (Radiograph(image.removesuffix(".png"), path, "frontal", member),)


def _name(entry: Any, field: str) -> str:
    value = entry.get(field) if isinstance(entry, dict) else None
    if not isinstance(value, str | int) or not str(value).strip():
        raise InputError(f"expected the name of a study or an image, found {brief(value)}", field=field)
    return str(value).strip()


def _failure(source: str, reason: str) -> Failure:
    return Failure(source=source, stage="read", reason=reason)
