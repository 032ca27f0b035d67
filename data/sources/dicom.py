"""Single DICOM files and folders of them, each a study of one frontal radiograph."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from radfact.errors import InputError

_PREFIX = 128
"""Bytes before the letters DICM."""


def find_radiographs(paths: Iterable[Path]) -> dict[str, Path]:
    """The DICOM files that are named or lie below the folders that are named, by a name of their own.

    That name is a file's without its ending; where several share it, the folders in which they differ stand before it.
    In a folder a file is DICOM by its content, since exports often leave out the ending; a DICOMDIR is an index of
    radiographs and none itself. A file that is named is taken as it is.

    Raises:
        InputError: a folder has no DICOM file.
    """
    radiographs = list(dict.fromkeys(file.absolute() for path in paths for file in _radiographs(path)))
    of_name: dict[str, list[Path]] = {}
    for radiograph in radiographs:
        of_name.setdefault(radiograph.stem, []).append(radiograph)
    named: dict[str, Path] = {}
    for radiograph in radiographs:
        name = (
            radiograph.stem
            if len(of_name[radiograph.stem]) == 1
            else _with_folders(radiograph, of_name[radiograph.stem])
        )
        key, number = name, 1
        # a/b-c and a-b/c would have one name.
        while key in named:
            number += 1
            key = f"{name}-{number}"
        named[key] = radiograph
    return named


def _radiographs(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    found = [file for file in sorted(path.rglob("*")) if file.is_file() and _is_dicom(file)]
    if not found:
        raise InputError("there is no DICOM file in this folder", file=path)
    yield from found


def _is_dicom(path: Path) -> bool:
    if path.name == "DICOMDIR" or path.name.startswith("."):
        return False
    try:
        with path.open("rb") as content:
            return content.read(_PREFIX + 4)[_PREFIX:] == b"DICM"
    except OSError:
        # That it cannot be read is said where it is converted.
        return True


def _with_folders(radiograph: Path, alike: Sequence[Path]) -> str:
    common = os.path.commonpath([other.parent for other in alike])
    return "-".join(radiograph.relative_to(common).with_suffix("").parts)
