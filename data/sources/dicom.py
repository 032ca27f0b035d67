"""Single DICOM files and folders of them; each file is a study with one frontal radiograph."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from radfact.errors import ErrorCode, InputError

_PREFIX = 128
"""Number of bytes before the letters DICM."""


def find_radiographs(paths: Iterable[Path]) -> dict[str, Path]:
    """Return the DICOM files among `paths` and in folders among them, by unique names.

    The name is the file name without suffix, with a prefix of folder names if several files share it. Files in folders
    are recognized by content, since exports often omit the suffix; a DICOMDIR is skipped. Files given directly are not
    checked.

    Raises:
        InputError: a folder contains no DICOM file.
    """
    radiographs = list(dict.fromkeys(file.absolute() for path in paths for file in _radiographs(path)))
    of_name: dict[str, list[Path]] = {}
    for radiograph in radiographs:
        of_name.setdefault(radiograph.stem, []).append(radiograph)
    named: dict[str, Path] = {}
    for radiograph in radiographs:
        namesakes = of_name[radiograph.stem]
        name = radiograph.stem if len(namesakes) == 1 else _with_folders(radiograph, namesakes)
        key, number = name, 1
        # a/b-c and a-b/c have the same name.
        while key in named:
            number += 1
            key = f"{name}-{number}"
        named[key] = radiograph
    return named


def _radiographs(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    files = [file for file in sorted(path.rglob("*")) if file.is_file() and _is_dicom(file)]
    if not files:
        message = "expected at least one DICOM file in this folder, found none"
        raise InputError(message, code=ErrorCode.EMPTY_INPUT, file=path)
    yield from files


def _is_dicom(path: Path) -> bool:
    if path.name == "DICOMDIR" or path.name.startswith("."):
        return False
    try:
        with path.open("rb") as content:
            return content.read(_PREFIX + 4)[_PREFIX:] == b"DICM"
    except OSError:
        # The conversion reports why it cannot be read.
        return True


def _with_folders(radiograph: Path, namesakes: Sequence[Path]) -> str:
    common = os.path.commonpath([path.parent for path in namesakes])
    return "-".join(radiograph.relative_to(common).with_suffix("").parts)
