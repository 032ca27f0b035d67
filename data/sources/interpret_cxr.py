"""interpret-cxr, the data of the shared task RRG24: studies of five data sets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from maira.data.archive import Archive, radiograph_below
from maira.data.sources.iu_xray import radiograph_key
from maira.data.sources.table_records import Layout, TableRecord, first_file, read_studies, table_records
from radfact.errors import ErrorCode, InputError, list_columns

_IMAGES = "images_path"
_TABLE = re.compile(r"(train|validation|valid|val|test)[^/]*\.(?:csv|csv\.gz|json|jsonl)")
_NAMED_VIEW = re.compile(r"(?:view\d+_|vp-)([a-z]+)", re.IGNORECASE)
_VIEW_COLUMNS = (("dicom_id", "ViewPosition"), ("ImageID", "Projection"), ("filename", "projection"))
"""Columns of images and views in the tables of MIMIC-CXR, PadChest and OpenI."""


def read_interpret_cxr(root: Path, images: Path | None = None, views: list[Path] | None = None) -> Archive:
    """Read tables of interpret-cxr."""
    tables = sorted(path for path in root.iterdir() if _TABLE.fullmatch(path.name)) if root.is_dir() else [root]
    if not tables:
        message = "expected tables such as train.csv and val_mimic.json in this folder, found none"
        raise InputError(message, code=ErrorCode.FILE_NOT_FOUND, file=root)
    view_of = {image: view for table in views or () for image, view in _read_views(table)}

    def view(_record: TableRecord, index: int, path: str) -> tuple[str | None, str]:
        name = PurePosixPath(path).name
        named = _NAMED_VIEW.search(name)
        return named[1] if named else view_of.get(_key(name)), f"{_IMAGES}[{index}]"

    layout = Layout(
        source="interpret-cxr",
        images=_IMAGES,
        sections={"findings": ("findings",), "impression": ("impression",)},
        study=lambda _record, paths: radiograph_below(Path(), Path(paths[0]), "frontal").key,
        view=view,
        split=_split,
        find=first_file(_files),
    )
    records = (record for table in tables for record in table_records(table, (_IMAGES, "findings")))
    return read_studies(layout, records, (images or tables[0].parent).absolute())


def _read_views(table: Path) -> Iterator[tuple[str, str]]:
    """Yield (key of the image, view) for the rows of a table that have both."""
    record = None
    for record in table_records(table):
        record.value("")  # refuses an item that is no object
        if (names := next((names for names in _VIEW_COLUMNS if record.cells.keys() >= set(names)), None)) is None:
            pairs = "; ".join(" and ".join(names) for names in _VIEW_COLUMNS)
            message = f"expected the columns {pairs}, found {list_columns(list(record.cells))}"
            raise InputError(message, code=ErrorCode.MISSING_FIELD, file=table, line=1)
        image, view = map(record.text, names)
        if image is not None and view is not None:
            yield _key(image), view
    if record is None:
        raise InputError("expected at least one row, found none", code=ErrorCode.EMPTY_INPUT, file=table)


def _key(name: str) -> str:
    """Return the key that all file names of an image share: that of OpenI, or the name without suffix."""
    return radiograph_key(name) or name.partition(".")[0]


def _split(record: TableRecord) -> str | None:
    match = _TABLE.fullmatch(record.file.name)
    return record.text("split") or (match[1] if match else None)


def _files(path: str) -> Iterator[str]:
    parts = [part for part in PurePosixPath(path).parts if part not in ("/", "..", ".")]
    return ("/".join(parts[start:]) for start in range(len(parts)))
