"""Contact sheet of a manifest: an HTML file with images, boxes and texts that opens from disk."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from maira.data.manifest import check_has_samples, parse_study
from maira.data.study import IMAGE_COLUMNS, Label, Study
from radfact.errors import ErrorCode, InputError, check_unique_id
from radfact.io.jsonl import open_atomic, read_jsonl
from radfact.pages.images import MAX_EMBEDDED, load_images
from radfact.pages.markup import STATIC, assemble
from radfact.records import Sentence

_OWN = resources.files("maira.data") / "static"
_FACTS = ("source", "split", "patient_id", "study_id")


@dataclass(frozen=True)
class ContactSheet:
    """A written contact sheet: samples shown, samples in the manifest, and images that cannot be shown."""

    path: Path
    shown: int
    total: int
    missing: int


def write_contact_sheet(
    manifest: Path | str,
    out: Path,
    *,
    count: int | None = 50,
    seed: int = 0,
    sample_ids: Collection[str] | None = None,
) -> ContactSheet:
    """Write a page of samples: images with boxes, sections, sentences and labels.

    Images are embedded in the page for up to `MAX_EMBEDDED` samples, and written to a folder next to it for more. An
    unreadable image is replaced by its error. Report texts are escaped.
    """
    manifest = Path(manifest)
    studies, total = _select(manifest, count, seed, sample_ids)
    cards = [_card(study) for study in studies]
    image_folder = out.parent / f"{out.name.removesuffix('.html')}_images"
    load_images(cards, None if len(cards) <= MAX_EMBEDDED else image_folder)
    missing = {image["message"] for card in cards for image in card["images"].values() if image and "message" in image}
    page = assemble(
        _OWN / "sheet.html",
        [STATIC / "viewer.css", STATIC / "page.css", _OWN / "sheet.css"],
        [STATIC / "viewer.js", STATIC / "radiograph.js", STATIC / "cards.js", _OWN / "sheet.js"],
        {"studies": cards},
        title=f"Contact sheet: {manifest.absolute().parent.name}/{manifest.name}",
        about=_about(len(cards), total, None if sample_ids else seed),
    )
    with open_atomic(out, "wb") as handle:
        # A manifest may contain unpaired surrogates, which UTF-8 cannot encode.
        handle.write(page.encode("utf-8", "replace"))
    return ContactSheet(out, len(cards), total, len(missing))


def _about(shown: int, total: int, seed: int | None) -> str:
    if shown == total:
        return "All samples of the manifest."
    return f"{shown} of the manifest's {total} samples{'' if seed is None else f', drawn with seed {seed}'}."


def _select(
    manifest: Path, count: int | None, seed: int, sample_ids: Collection[str] | None
) -> tuple[list[Study], int]:
    """Return the samples to show and the number of samples in the manifest, by reservoir sampling."""
    rng = random.Random(seed)
    rows: list[tuple[int, dict[str, Any]]] = []
    total = 0
    line_of: dict[str, int] = {}
    for line, row in read_jsonl(manifest):
        total += 1
        check_unique_id(line_of, str(row.get("sample_id")), line, file=manifest)
        if sample_ids is not None:
            if row.get("sample_id") in sample_ids:
                rows.append((line, row))
        elif count is None or len(rows) < count:
            rows.append((line, row))
        elif (place := rng.randrange(total)) < count:
            rows[place] = (line, row)
    check_has_samples(total, manifest)
    folder = manifest.parent
    studies = [parse_study(row, folder, file=manifest, line=line) for line, row in sorted(rows, key=lambda row: row[0])]
    if unknown := sorted(set(sample_ids or ()) - {study.sample_id for study in studies}):
        message = f"no sample '{unknown[0]}'"
        raise InputError(message, code=ErrorCode.UNKNOWN_NAME, file=manifest, field="sample_id")
    return studies, total


def _card(study: Study) -> dict[str, Any]:
    facts = {name.removesuffix("_id"): value for name in _FACTS if (value := getattr(study, name)) is not None}
    return {
        "sample_id": study.sample_id,
        "facts": facts,
        "images": {column: getattr(study, column) for column in IMAGE_COLUMNS},
        "findings": [_sentence(sentence) for sentence in study.grounded_findings or ()],
        "phrases": [_sentence(sentence) for sentence in study.phrases or ()],
        "labels": [_label(label) for label in study.labels or ()],
        "findings_text": study.findings,
        **{name: getattr(study, name) for name in ("indication", "technique", "comparison", "prior_report")},
    }


def _sentence(sentence: Sentence) -> dict[str, Any]:
    return sentence.model_dump(mode="json", exclude_none=True)


def _label(label: Label) -> dict[str, Any]:
    side = {None: "", "both": ", both sides"}.get(label.side, f", {label.side}")
    boxes = {} if label.boxes is None else {"boxes": [box.model_dump(mode="json") for box in label.boxes]}
    return {"text": f"{label.kind}{side}", **boxes}
