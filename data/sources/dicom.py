"""Single DICOM files and folders of them; each file is a study with one frontal radiograph."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from itertools import chain, count
from pathlib import Path
from typing import Literal

from maira.data.archive import HEAD_BYTES, Radiograph, is_dicom, read_failure
from maira.data.dicom.reader import read_tags
from maira.data.manifest import Failure
from maira.data.pairing import Samples, png_path
from maira.data.study import Study
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import reading

Stage = Literal["select", "read"]


class Radiographs(dict[str, Path]):
    """DICOM files by unique names, with what else is in their folders: one failure for each reason."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped: list[Failure] = []


def find_radiographs(paths: Iterable[Path]) -> Radiographs:
    """Return the DICOM files among `paths` and in folders among them, by unique names."""
    named = Radiographs()
    radiographs = list(dict.fromkeys(file.absolute() for path in paths for file in _radiographs(path, named.skipped)))
    folders_of: dict[str, list[Path]] = {}
    for radiograph in radiographs:
        if os.fsencode(radiograph) != str(radiograph).encode(errors="replace"):
            message = "expected a file name in UTF-8, found other bytes; rename the file"
            raise InputError(message, code=ErrorCode.FILE_UNREADABLE, file=radiograph)
        folders_of.setdefault(radiograph.stem, []).append(radiograph.parent)
    for radiograph in radiographs:
        name = radiograph.stem
        if len(folders := folders_of[name]) > 1:
            name = "-".join(radiograph.relative_to(os.path.commonpath(folders)).with_suffix("").parts)
        # a/b-c and a-b/c have the same name.
        named[unused_name(name, named)] = radiograph
    return named


def unused_name(name: str, used: Container[str]) -> str:
    """Return a name, numbered if it is used already."""
    return next(key for key in chain([name], (f"{name}-{number}" for number in count(2))) if key not in used)


def name_instances(radiographs: Radiographs, failures: list[Failure], *, keep_names: bool = False) -> dict[str, Path]:
    """Return DICOM files by names that hide the file name, often that of the patient, unless it is to be kept."""
    # Anyone who has the UID can compute its hash.
    named: dict[str, Path] = {}
    failures += radiographs.skipped
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


def example_radiograph() -> Path:
    """Return the path of a real chest radiograph (computed radiography, MONOCHROME1): RG1_UNCR.dcm of pydicom-data.

    Raises:
        InputError: pydicom-data is not installed.
    """
    from importlib.util import find_spec

    # Not pydicom.data.get_testdata_file, which downloads missing files.
    package = find_spec("data_store")
    for folder in package.submodule_search_locations or [] if package else []:
        if (radiograph := Path(folder) / "data" / "RG1_UNCR.dcm").is_file():
            return radiograph
    message = "the example radiograph requires pydicom-data: pip install pydicom-data"
    raise InputError(message, code=ErrorCode.MISSING_REQUIREMENT)


def _name_class(uid: str) -> str:
    from pydicom.uid import UID

    return str(UID(uid).name)


def _identity(path: Path) -> bytes:
    with reading(path), path.open("rb") as content:
        return read_tags(content, path, "SOPInstanceUID").get("SOPInstanceUID", "").encode() or path.read_bytes()


def _radiographs(path: Path, skipped: list[Failure]) -> Iterator[Path]:
    """Yield a file, or the DICOM files of a folder; what else it contains is added to `skipped` by reason."""
    if not path.is_dir():
        yield path
        return
    files, others, unread = list[Path](), dict[tuple[str, Stage], list[Path]](), list[Path]()
    for folder, folders, names in os.walk(path, onerror=lambda error: unread.append(Path(error.filename))):
        links = (name for name in folders if Path(folder, name).is_symlink())
        for file in sorted(Path(folder, name) for name in (*names, *links)):
            why = _why_skipped(file)
            (files if why is None else others.setdefault(why, [])).append(file)
    others |= {("a folder that cannot be read", "read"): unread} if unread else {}
    if not files:
        found = ", ".join(f"{len(group)} times {reason}" for (reason, _), group in others.items())
        message = f"expected at least one DICOM file in this folder, found {found or 'none'}"
        raise InputError(message, code=ErrorCode.EMPTY_INPUT, file=path)
    for (reason, stage), group in others.items():
        skipped.append(Failure(source=str(group[0]), stage=stage, reason=f"{reason}: {len(group)} in {path}"))
    yield from sorted(files)


def _why_skipped(path: Path) -> tuple[str, Stage] | None:
    """Return why a file is not read, and whether this may lose a radiograph; None for DICOM files of images."""
    if path.name.startswith(".") or path.name == "DICOMDIR":
        return ("a DICOMDIR" if path.name == "DICOMDIR" else "a hidden file"), "select"
    # The conversion reports why a file cannot be read.
    with suppress(InputError), reading(path), ExitStack() as stack:
        if not path.is_file():
            kind = "a link that leads nowhere" if not path.exists() else "a link to a folder, which is not followed"
            return kind if path.is_symlink() else "no regular file", "read"
        content = stack.enter_context(path.open("rb"))
        if not is_dicom(content.read(HEAD_BYTES)):
            kind = f"no DICOM file, suffix {path.suffix}" if path.suffix else "no DICOM file"
            return kind, "read" if path.suffix.lower() in (".dcm", ".dicom", ".dic", ".ima") else "select"
        content.seek(0)
        tags = read_tags(content, path, "SOPClassUID", "Rows")
        kind = _name_class(tags.get("SOPClassUID", ""))
        if kind and "Rows" not in tags and "Image" not in kind:
            return f"no image, {kind}", "select"
    return None
