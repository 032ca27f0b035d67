"""Single DICOM files and folders of them; each file is a study with one frontal radiograph."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, count
from pathlib import Path

from maira.data.archive import Radiograph, read_failure
from maira.data.dicom.reader import open_binary, read_instance
from maira.data.manifest import Failure
from maira.data.pairing import Samples, png_path
from maira.data.study import Study
from radfact.errors import ErrorCode, InputError

_PREFIX = 128
"""Number of bytes before the letters DICM."""


def find_radiographs(paths: Iterable[Path]) -> dict[str, Path]:
    """Return the DICOM files among `paths` and in folders among them, by unique names.

    The name is the file name without suffix, with a prefix of folder names if several files share it. Files in folders
    are recognized by content, since exports often omit the suffix; a DICOMDIR is skipped. Files given directly are not
    checked.
    """
    radiographs = list(dict.fromkeys(file.absolute() for path in paths for file in _radiographs(path)))
    folders_of: dict[str, list[Path]] = {}
    for radiograph in radiographs:
        if os.fsencode(radiograph) != str(radiograph).encode(errors="replace"):
            message = "expected a file name in UTF-8, found other bytes; rename the file"
            raise InputError(message, code=ErrorCode.FILE_UNREADABLE, file=radiograph)
        folders_of.setdefault(radiograph.stem, []).append(radiograph.parent)
    named: dict[str, Path] = {}
    for radiograph in radiographs:
        name = radiograph.stem
        if len(folders := folders_of[name]) > 1:
            name = "-".join(radiograph.relative_to(os.path.commonpath(folders)).with_suffix("").parts)
        # a/b-c and a-b/c have the same name.
        numbered = (f"{name}-{number}" for number in count(2))
        named[next(key for key in chain([name], numbered) if key not in named)] = radiograph
    return named


def name_instances(
    radiographs: Mapping[str, Path], failures: list[Failure], *, keep_names: bool = False
) -> dict[str, Path]:
    """Return DICOM files by names that hide the file name, often that of the patient, unless it is to be kept.

    A name is a hash of the SOP instance UID, or of the content of a file without one; anyone who has the UID can
    compute it. Files that cannot be read, or that repeat an instance, are listed.

    Raises:
        InputError: no file can be read, and there is only one.
    """
    named: dict[str, Path] = {}
    for file_name, path in radiographs.items():
        try:
            digest = hashlib.sha256(_identity(path)).hexdigest()
            name = file_name if keep_names else digest[:16]
            if (first := named.setdefault(name, path)) != path:
                raise InputError(f"has the same SOP instance as {first}", code=ErrorCode.DUPLICATE, file=path)
        except InputError as error:
            if len(radiographs) == 1:
                raise
            failures.append(read_failure(str(path), str(error)))
    return named


def samples_of(radiographs: Mapping[str, Path], without: frozenset[str]) -> Samples:
    """Make a sample with one frontal radiograph of each file; see `maira.data.pairing.SampleMaker`."""
    images = [Radiograph(name, path, "frontal") for name, path in radiographs.items() if name not in without]
    studies = [Study(sample_id=image.key, frontal=png_path(image), source="dicom") for image in images]
    return Samples(studies, {png_path(image): image for image in images})


def _identity(path: Path) -> bytes:
    with open_binary(path) as content:
        return (read_instance(content, path) or "").encode() or path.read_bytes()


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
