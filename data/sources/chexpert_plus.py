"""CheXpert Plus (Chambon et al. 2024): 223,462 radiographs of 187,711 studies, with reports in one table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from maira.data.archive import Archive
from maira.data.sources.table_records import Layout, TableRecord, find_table, first_file, read_studies, table_records
from radfact.errors import describe

_IMAGE, _VIEW, _PATIENT, _ORDER = "path_to_image", "frontal_lateral", "deid_patient_id", "patient_report_date_order"
_STUDY = re.compile(r"(?:.*/)?(patient\d+)/(study\d+)/[^/]+", re.ASCII)


def read_chexpert_plus(root: Path, images: Path | None = None) -> Archive:
    """Read CheXpert Plus. DICOM is preferred over PNG, and PNG over JPEG."""
    columns = (_IMAGE, _VIEW, _PATIENT, _ORDER, "split", "section_findings", "section_impression")
    records = table_records(find_table([root], "df_chexpert_plus_240401.csv"), columns)
    return read_studies(_LAYOUT, records, (images or root).absolute())


def _study(record: TableRecord, paths: Sequence[str]) -> str:
    match = _STUDY.fullmatch(paths[0])
    if match is None:
        message = f"expected a path such as train/patient00001/study1/view1_frontal.jpg, found {describe(paths[0])}"
        raise record.error(_IMAGE, message)
    return f"{match[1]}_{match[2]}"


_LAYOUT = Layout(
    source="chexpert-plus",
    images=_IMAGE,
    sections={
        "findings": ("section_findings",),
        "impression": ("section_impression",),
        "indication": ("section_clinical_history", "section_history"),
        "technique": ("section_technique",),
        "comparison": ("section_comparison",),
    },
    study=_study,
    view=lambda record, _index, _path: (record.text(_VIEW), _VIEW),
    split=lambda record: record.require("split"),
    find=first_file(lambda path: [str(PurePosixPath(path).with_suffix(suffix)) for suffix in (".dcm", ".png", ".jpg")]),
    patient=_PATIENT,
    order=lambda record: record.order(_ORDER),
)
