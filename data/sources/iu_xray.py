"""IU-Xray (Indiana University, Open-i; Demner-Fushman et al. 2016): XML reports with radiographs, and no patients."""

from __future__ import annotations

import os
import re
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import get_args
from xml.etree import ElementTree

from data.archive import Archive, ArchiveStudy, Radiograph, View
from data.manifest import Failure
from radfact.errors import InputError
from radfact.io.csv_tables import find_csv, stream_columns

VIEWS = "indiana_projections.csv"
_REPORTS = "NLMCXR_reports.tgz"
_FOLDERS = ("ecgen-radiology", "NLMCXR_reports/ecgen-radiology", ".")
# Where the release's PNGs belong; a radiograph that is nowhere below the root is expected there.
_IMAGES = "NLMCXR_png"

# One radiograph has four names: CXR1_1_IM-0001-3001 in the reports, with .png in the release of PNGs, 1_IM-0001-3001.dcm in
# that of DICOMs, 1_IM-0001-3001.dcm.png in the table of views and the copies that go with it. Of study 1 alone do the
# reports repeat the number; whoever only cuts "CXR" off loses its radiographs, one frontal and one lateral.
_RADIOGRAPH = re.compile(
    r"(?:CXR)?(?P<study>\d+)_(?:\d+_)?(?P<radiograph>IM-[\d-]+)(?P<suffix>(?:\.dcm)?(?:\.png)?)", re.ASCII
)
_DEIDENTIFIED = re.compile("X{4,}")


def read_iu_xray(root: Path) -> Archive:
    """Read IU-Xray: every study is in the split "test", as the paper uses it (004, B.1), and none has a patient.

    Words that were taken out for privacy ("XXXX") become "___", as in MIMIC-CXR. The technique is the caption of the
    images, which all images of a study share. What the radiographs show is in `indiana_projections.csv`; four of the 7,470
    are not, and are listed as failures.

    Args:
        root: folder with the reports (`NLMCXR_reports.tgz`, or its `ecgen-radiology/*.xml`), the table
            `indiana_projections.csv`, and anywhere below it the images: `NLMCXR_png`, `NLMCXR_dcm`, or copies named as
            in the table. Of several files of one radiograph a DICOM is read before a PNG, and then that of the folder which
            comes first by name. Images may be missing; that is found when they are converted.

    Raises:
        InputError: there are no reports or no views, or the table of views cannot be read.
    """
    views, failures = _read_views(root)
    files = _files(root)
    studies: dict[int, ArchiveStudy] = {}
    for name, content in _reports(root):
        try:
            number, study = _study(content, root, views, files, failures)
        except ElementTree.ParseError as error:
            failures.append(Failure(source=name, stage="read", reason=f"not XML: {error}"))
        except InputError as error:
            failures.append(Failure(source=name, stage="read", reason=str(error)))
        else:
            if number in studies:
                failures.append(Failure(source=name, stage="read", reason=f"another report is {study.study_id} too"))
            else:
                studies[number] = study
    return Archive("iu-xray", [studies[number] for number in sorted(studies)], failures)


def _reports(root: Path) -> Iterator[tuple[str, bytes]]:
    """(name, content) of every XML report."""
    for folder in (root / name for name in _FOLDERS):
        paths = sorted(folder.glob("*.xml"))
        for path in paths:
            yield path.name, path.read_bytes()
        if paths:
            return
    packed = root / _REPORTS
    if not packed.is_file():
        raise InputError(f"no reports: neither {_REPORTS} nor ecgen-radiology/*.xml", file=root)
    try:
        with tarfile.open(packed) as archive:
            for member in archive:
                if member.name.endswith(".xml") and (handle := archive.extractfile(member)) is not None:
                    yield Path(member.name).name, handle.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise InputError(f"cannot be read: {error}", file=packed) from None


def _read_views(root: Path) -> tuple[dict[str, View], list[Failure]]:
    """View by radiograph, and the rows that give none."""
    table = find_csv(root, VIEWS)
    if table is None:
        raise InputError("no such file; it says which radiographs are frontal and which lateral", file=root / VIEWS)
    views: dict[str, View] = {}
    failures: list[Failure] = []
    for line, (name, projection) in stream_columns(table, ("filename", "projection")):
        match = _RADIOGRAPH.fullmatch(name or "")
        view = next((view for view in get_args(View) if view == (projection or "").lower()), None)
        if match is None or view is None:
            reason = f"{table.name}, line {line}: no view of a radiograph, but '{name}', '{projection}'"
            failures.append(Failure(source=name or table.name, stage="read", reason=reason))
        else:
            views[_key(match)] = view
    return views, failures


def _files(root: Path) -> dict[str, Path]:
    """File by radiograph, of several a DICOM before the PNGs made of it, and then the first."""
    files: dict[str, Path] = {}
    for folder, below, names in os.walk(root, followlinks=True):
        below.sort()
        for name in sorted(names):
            match = _RADIOGRAPH.fullmatch(name)
            if match is None or not match["suffix"]:
                continue
            known = files.get(_key(match))
            if known is None or (match["suffix"] == ".dcm" and known.suffix != ".dcm"):
                files[_key(match)] = Path(folder, name)
    return files


def _key(match: re.Match[str]) -> str:
    return f"{match['study']}_{match['radiograph']}"


def _study(
    content: bytes, root: Path, views: dict[str, View], files: dict[str, Path], failures: list[Failure]
) -> tuple[int, ArchiveStudy]:
    report = ElementTree.fromstring(content)
    identity = report.find("uId")
    study_id = "" if identity is None else identity.get("id", "")
    number = re.fullmatch(r"CXR(\d+)", study_id, re.ASCII)
    if number is None:
        raise InputError(f"the report has no name such as CXR1 (uId), but '{study_id}'")
    sections = {part.get("Label"): _prose("".join(part.itertext())) for part in report.iter("AbstractText")}
    captions = dict.fromkeys(_prose(image.findtext("caption") or "") for image in report.iter("parentImage"))
    radiographs = []
    for image in report.iter("parentImage"):
        name = image.get("id") or ""
        match = _RADIOGRAPH.fullmatch(name)
        view = None if match is None else views.get(_key(match))
        if match is None or view is None:
            failures.append(
                Failure(source=name or study_id, stage="read", reason=f"{VIEWS} has no view of this radiograph")
            )
            continue
        path = files.get(_key(match), root / _IMAGES / f"{name}.png")
        radiographs.append(Radiograph(key=name, path=path, view=view))
    return int(number[1]), ArchiveStudy(
        study_id=study_id,
        radiographs=tuple(radiographs),
        findings=sections.get("FINDINGS"),
        indication=sections.get("INDICATION"),
        technique=" ".join(caption for caption in captions if caption) or None,
        comparison=sections.get("COMPARISON"),
        split="test",
    )


def _prose(text: str) -> str | None:
    """A section on one line; None where nothing stands in it but marks such as "."."""
    text = _DEIDENTIFIED.sub("___", " ".join(text.split()))
    return text if re.search(r"\w", text) else None
