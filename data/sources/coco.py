"""COCO files with images: detections become grounded findings, captions without boxes become narrative findings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from maira.data.archive import Archive, ArchiveStudy, Radiograph, radiograph_below, read_failure
from radfact.errors import InputError
from radfact.io.coco import read_coco
from radfact.records import Sentence


def read_coco_studies(root: Path, images: Path | None = None) -> Archive:
    """Read a COCO dataset (`images` with `file_name`, `annotations`, `categories`); each image is one study."""
    coco, folder = read_coco(root), (images or root.parent).absolute()
    is_grounded = any(sentence.has_region for report in coco.reports.values() for sentence in report)
    # A region that cannot be read is one, too.
    is_grounded |= any(re.search("bbox|segmentation", str(fault.field)) for fault in coco.faults.values())
    failures = [read_failure(key, str(fault)) for key, fault in coco.faults.items()]
    studies = []
    for key, report in coco.reports.items():
        name, size = coco.images[key].file_name, (coco.images[key].width, coco.images[key].height)
        if isinstance(name, str) and name.strip():
            studies.append(_study(key, radiograph_below(folder, Path(name), "frontal", size), report, is_grounded))
        else:
            failures.append(read_failure(key, str(InputError("expected a file name", file=root, field="file_name"))))
    return Archive("coco", studies, failures)


def _study(key: str, radiograph: Radiograph, report: Sequence[Sentence], is_grounded: bool) -> ArchiveStudy:
    located = tuple(sentence for sentence in report if sentence.has_region)
    return ArchiveStudy(
        study_id=key,
        radiographs=(radiograph,),
        findings=" ".join(s.text for s in report) or None if not is_grounded else None,
        grounded_findings=tuple(report) or None if is_grounded else None,
        phrases=located or None,
    )
