"""ReXGradient-160K (Zhang et al. 2025): 273,004 radiographs of 160,000 studies of 109,487 patients, with reports."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from maira.data.archive import Archive
from maira.data.sources.table_records import Layout, TableRecord, first_file, parse_date, read_studies
from radfact.errors import ErrorCode, InputError, describe
from radfact.io.jsonl import read_json

_METADATA = "_metadata_view_position.json"
_IMAGES, _VIEWS = "ImagePath", "ImageViewPosition"


def read_rexgradient(root: Path, images: Path | None = None) -> Archive:
    """Read the splits of ReXGradient-160K whose metadata is present."""
    names = [f"{split}{_METADATA}" for split in ("train", "valid", "test")]
    files = [file for name in names for file in (root / "metadata" / name, root / name) if file.is_file()]
    if not files:
        message = f"expected metadata/{{train,valid,test}}{_METADATA} in this folder, found none"
        raise InputError(message, code=ErrorCode.FILE_NOT_FOUND, file=root)
    records = (record for file in files for record in _records(file))
    return read_studies(_LAYOUT, records, (images or root).absolute())


def _records(file: Path) -> Iterator[TableRecord]:
    studies = read_json(file)
    if not isinstance(studies, dict):
        message = f"expected an object with a study for each key, found {describe(studies)}"
        raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=file)
    for key, cells in studies.items():
        yield TableRecord(file, cells, key=key)


def _view(record: TableRecord, index: int, _path: str) -> tuple[str | None, str]:
    views, paths = record.texts(_VIEWS), record.texts(_IMAGES)
    if len(views) != len(paths):
        message = f"expected one view for each of {len(paths)} images, found {len(views)}"
        raise record.error(_VIEWS, message, ErrorCode.MISMATCH)
    return views[index], f"{_VIEWS}[{index}]"


def _files(path: str) -> tuple[str, str]:
    below = re.sub(r"^(\.\./)+", "", path)
    return below, below.removeprefix("deid_png/")


_LAYOUT = Layout(
    source="rexgradient",
    images=_IMAGES,
    sections={name: (name.title(),) for name in ("findings", "impression", "indication", "comparison")},
    study=lambda record, _paths: record.key,
    view=_view,
    split=lambda record: record.file.name.partition("_")[0],
    find=first_file(_files),
    patient="PatientID",
    order=lambda record: record.order("StudyDate", parse_date),
)
