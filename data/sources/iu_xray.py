"""IU-Xray (Indiana University, Open-i; Demner-Fushman et al. 2016): XML reports with radiographs, without patients."""

from __future__ import annotations

import os
import re
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import get_args
from xml.etree import ElementTree

from maira.data.archive import Archive, ArchiveStudy, Radiograph, View, read_failure, section_text
from maira.data.manifest import Failure
from maira.data.sources.table_records import find_table, table_records
from radfact.errors import ErrorCode, InputError, describe_choice

_VIEWS = "indiana_projections.csv"

# A radiograph has four names: CXR1_1_IM-0001-3001 in the reports, with .png in the release of PNGs, 1_IM-0001-3001.dcm
# in that of DICOMs, and 1_IM-0001-3001.dcm.png in the table of views and the copies that go with it. Only for study 1,
# the reports repeat the number.
_RADIOGRAPH = re.compile(r"(?:CXR)?(?P<study>\d+)_(?:\d+_)?(?P<radiograph>IM-[\d-]+)(?:\.dcm)?(?:\.png)?", re.ASCII)


def read_iu_xray(root: Path) -> Archive:
    """Read IU-Xray. Every study is in the split "test" (MAIRA-2, appendix B.1), and no study has a patient."""
    views, failures = _read_views(root)
    files = _files(root)
    studies: dict[int, ArchiveStudy] = {}
    for name, content in _reports(root):
        try:
            number, study = _study(content, root, views, files, failures)
            if studies.setdefault(number, study) is not study:
                raise InputError(f"duplicate report of {study.study_id}", code=ErrorCode.DUPLICATE)
        except (ElementTree.ParseError, InputError) as error:
            failures.append(read_failure(name, f"{'' if isinstance(error, InputError) else 'not XML: '}{error}"))
    return Archive("iu-xray", [studies[number] for number in sorted(studies)], failures)


def _reports(root: Path) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of every XML report."""
    folders = ("ecgen-radiology", "NLMCXR_reports/ecgen-radiology", ".")
    if paths := next(filter(None, (sorted((root / name).glob("*.xml")) for name in folders)), None):
        yield from ((path.name, path.read_bytes()) for path in paths)
        return
    if not (packed := root / "NLMCXR_reports.tgz").is_file():
        message = f"no reports: expected {packed.name} or ecgen-radiology/*.xml"
        raise InputError(message, code=ErrorCode.FILE_NOT_FOUND, file=root)
    try:
        with tarfile.open(packed) as archive:
            for member in archive:
                if member.name.endswith(".xml") and (handle := archive.extractfile(member)) is not None:
                    yield Path(member.name).name, handle.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        message = f"cannot be read: {str(error).splitlines()[0]}"
        raise InputError(message, code=ErrorCode.FILE_UNREADABLE, file=packed) from None


def _read_views(root: Path) -> tuple[dict[str, View], list[Failure]]:
    """Return the views by radiograph, and the rows without a view."""
    table = find_table([root], _VIEWS)
    views: dict[str, View] = {}
    failures: list[Failure] = []
    for record in table_records(table, ("filename", "projection")):
        name, projection = record.text("filename") or "", record.text("projection")
        key = radiograph_key(name)
        view = next((view for view in get_args(View) if view == (projection or "").lower()), None)
        if key is None or view is None:
            reason = f"{record.location}: expected a radiograph and its view, found {describe_choice(projection)}"
            failures.append(read_failure(name or table.name, reason))
        elif views.setdefault(key, view) != view:
            failures.append(read_failure(name, f"{record.location}: duplicate radiograph with another view"))
    return views, failures


def _files(root: Path) -> dict[str, Path]:
    """Return the file of each radiograph: the first DICOM, or else the first PNG."""
    files: dict[str, Path] = {}
    for folder, below, names in os.walk(root, followlinks=True):
        below.sort()
        for path in (Path(folder, name) for name in sorted(names) if name.endswith((".dcm", ".png"))):
            key = radiograph_key(path.name)
            # By suffix, .dcm is before .png.
            if key is not None and (key not in files or path.suffix < files[key].suffix):
                files[key] = path
    return files


def radiograph_key(name: str) -> str | None:
    """Return the key that all file names of a radiograph share; None for other names."""
    match = _RADIOGRAPH.fullmatch(name)
    return None if match is None else f"{match['study']}_{match['radiograph']}"


def _study(
    content: bytes, root: Path, views: dict[str, View], files: dict[str, Path], failures: list[Failure]
) -> tuple[int, ArchiveStudy]:
    report = ElementTree.fromstring(content)
    identity = report.find("uId")
    study_id = "" if identity is None else identity.get("id", "")
    number = re.fullmatch(r"CXR(\d+)", study_id, re.ASCII)
    if number is None:
        raise InputError(f"expected a name such as CXR1, found {describe_choice(study_id)}", field="uId")
    sections = {part.get("Label"): section_text("".join(part.itertext())) for part in report.iter("AbstractText")}
    captions = dict.fromkeys(section_text(image.findtext("caption") or "") for image in report.iter("parentImage"))
    radiographs = []
    for image in report.iter("parentImage"):
        name = image.get("id") or ""
        if (view := views.get(key := radiograph_key(name) or "")) is None:
            failures.append(read_failure(name or study_id, f"no view in {_VIEWS}"))
        else:
            # Missing radiographs are expected in the folder of the PNGs in the release.
            radiographs.append(Radiograph(name, files.get(key, root / "NLMCXR_png" / f"{name}.png"), view))
    return int(number[1]), ArchiveStudy(
        study_id=study_id,
        radiographs=tuple(radiographs),
        findings=sections.get("FINDINGS"),
        indication=sections.get("INDICATION"),
        technique=" ".join(caption for caption in captions if caption) or None,
        comparison=sections.get("COMPARISON"),
        split="test",
    )
