"""Contact sheet of a manifest: an HTML file with images, boxes and texts that opens from disk."""

from __future__ import annotations

import random
from collections.abc import Collection
from importlib import resources
from pathlib import Path
from typing import Any

from maira.data.manifest import check_has_samples, parse_study
from maira.data.study import IMAGE_COLUMNS, Label, Study
from radfact.errors import ErrorCode, InputError, check_unique_id
from radfact.io.jsonl import open_atomic, read_jsonl
from radfact.pages.images import MAX_EMBEDDED, load_images
from radfact.pages.markup import STATIC, assemble

_OWN = resources.files("maira.data") / "static"
_FACTS = ("source", "split", "patient_id", "study_id")


def write_contact_sheet(
    manifest: Path | str,
    out: Path,
    *,
    count: int | None = 50,
    seed: int = 0,
    sample_ids: Collection[str] | None = None,
) -> tuple[int, int, int]:
    """Write a page of samples: images with boxes, sections, sentences and labels."""
    manifest = Path(manifest)
    shown, total = _select(manifest, count, seed, sample_ids)
    cards = [_card(study) for study in shown]
    image_folder = out.parent / f"{out.name.removesuffix('.html')}_images"
    load_images(cards, None if len(cards) <= MAX_EMBEDDED else image_folder)
    missing = {image["message"] for card in cards for image in card["images"].values() if image and "message" in image}
    about = "All samples of the manifest."
    if len(shown) < total:
        drawn = "" if sample_ids else f", drawn with seed {seed}"
        about = f"{len(shown)} of the manifest's {total} samples{drawn}."
    page = assemble(
        _OWN / "sheet.html",
        [*(STATIC / name for name in ("base.css", "viewer.css", "page.css")), _OWN / "sheet.css"],
        [STATIC / "viewer.js", STATIC / "radiograph.js", STATIC / "cards.js", _OWN / "sheet.js"],
        {"studies": cards},
        title=f"Contact sheet: {manifest.absolute().parent.name}/{manifest.name}",
        about=about,
    )
    with open_atomic(out, "wb") as handle:
        # A manifest may contain unpaired surrogates, which UTF-8 cannot encode.
        handle.write(page.encode("utf-8", "replace"))
    return len(shown), total, len(missing)


def _select(
    manifest: Path, count: int | None, seed: int, sample_ids: Collection[str] | None
) -> tuple[list[Study], int]:
    """Return the samples to show, drawn by reservoir sampling, and the number of all; the others are not parsed."""
    rng, rows, total = random.Random(seed), list[tuple[int, dict[str, Any]]](), 0
    line_of: dict[str, int] = {}
    for line, row in read_jsonl(manifest):
        total += 1
        check_unique_id(line_of, str(row.get("sample_id")), line, file=manifest)
        if sample_ids is not None:
            rows += [(line, row)] if row.get("sample_id") in sample_ids else []
        elif count is None or len(rows) < count:
            rows.append((line, row))
        elif (place := rng.randrange(total)) < count:
            rows[place] = line, row
    check_has_samples(total, manifest)
    rows.sort(key=lambda numbered: numbered[0])
    studies = [parse_study(row, manifest.parent, file=manifest, line=line) for line, row in rows]
    if unknown := sorted(set(sample_ids or ()) - {study.sample_id for study in studies}):
        raise InputError(f"no sample '{unknown[0]}'", code=ErrorCode.UNKNOWN_NAME, file=manifest, field="sample_id")
    return studies, total


def _card(study: Study) -> dict[str, Any]:
    sentences = study.model_dump(mode="json", include={"grounded_findings", "phrases"}, exclude_none=True)
    return {
        "sample_id": study.sample_id,
        "facts": {name.removesuffix("_id"): value for name in _FACTS if (value := getattr(study, name)) is not None},
        "images": {column: getattr(study, column) for column in IMAGE_COLUMNS},
        "findings": sentences.get("grounded_findings", []),
        "phrases": sentences.get("phrases", []),
        "labels": [_label(label) for label in study.labels or ()],
        "findings_text": study.findings,
        **{name: getattr(study, name) for name in ("indication", "technique", "comparison", "prior_report")},
    }


def _label(label: Label) -> dict[str, Any]:
    side = {None: "", "both": ", both sides"}.get(label.side, f", {label.side}")
    return {"text": f"{label.kind}{side}", **label.model_dump(mode="json", include={"boxes"}, exclude_none=True)}
