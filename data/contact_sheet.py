"""A contact sheet of a manifest: one HTML file of its images, boxes and texts, which opens from disk."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from data.manifest import parse_study
from data.study import IMAGE_COLUMNS, Label, Study
from radfact.errors import InputError
from radfact.html.images import MOST_EMBEDDED, load_images
from radfact.html.markup import STATIC, assemble
from radfact.io.jsonl import open_atomic, read_jsonl
from radfact.records import Sentence

_OWN = resources.files("data") / "static"
_FACTS = ("source", "split", "patient_id", "study_id")


@dataclass(frozen=True)
class ContactSheet:
    """What was drawn: samples on the sheet, samples of the manifest, and images that cannot be shown."""

    path: Path
    shown: int
    of: int
    missing: int


def write_contact_sheet(
    manifest: Path | str,
    out: Path,
    *,
    count: int | None = 50,
    seed: int = 0,
    sample_ids: Collection[str] | None = None,
) -> ContactSheet:
    """Draw samples of a manifest: images with their boxes, sections, sentences and labels.

    Up to `MOST_EMBEDDED` samples carry their images inside the page; with more, images are written to a folder beside
    it. An image that cannot be read is said in its place. Text of reports is data: nothing in it can become markup.

    Args:
        manifest: `manifest.jsonl`.
        out: the HTML file to write.
        count: samples to draw at random, in the order of the manifest; None for all.
        seed: of that draw.
        sample_ids: exactly these instead.

    Raises:
        InputError: the manifest cannot be read, or has not all of `sample_ids`; nothing is written then.
    """
    manifest = Path(manifest)
    studies, of = _chosen(manifest, count, seed, sample_ids)
    cards = [_card(study) for study in studies]
    beside = out.parent / f"{out.name.removesuffix('.html')}_images"
    load_images(cards, None if len(cards) <= MOST_EMBEDDED else beside)
    missing = {image["message"] for card in cards for image in card["images"].values() if image and "message" in image}
    page = assemble(
        _OWN / "sheet.html",
        [STATIC / "viewer.css", STATIC / "page.css", _OWN / "sheet.css"],
        [STATIC / "viewer.js", STATIC / "cards.js", _OWN / "sheet.js"],
        {"studies": cards},
        title=escape(f"Contact sheet: {manifest.absolute().parent.name}/{manifest.name}"),
        about=_about(len(cards), of, None if sample_ids else seed),
    )
    with open_atomic(out, "wb") as handle:
        # JSON may smuggle in half a surrogate pair, which no UTF-8 file can hold.
        handle.write(page.encode("utf-8", "replace"))
    return ContactSheet(out, len(cards), of, len(missing))


def _about(shown: int, of: int, seed: int | None) -> str:
    """Which samples of the manifest are on the sheet; how many of them are in view, its script says."""
    if shown == of:
        return "All samples of the manifest."
    return f"{shown} of the manifest's {of} samples{'' if seed is None else f', drawn with seed {seed}'}."


def _chosen(
    manifest: Path, count: int | None, seed: int, sample_ids: Collection[str] | None
) -> tuple[list[Study], int]:
    """The samples to draw, and how many the manifest has; only what is drawn is held in memory."""
    draw = random.Random(seed)
    rows: list[tuple[int, dict[str, Any]]] = []
    of = 0
    for line, row in read_jsonl(manifest):
        of += 1
        if sample_ids is not None:
            if row.get("sample_id") in sample_ids:
                rows.append((line, row))
        elif count is None or len(rows) < count:
            rows.append((line, row))
        # Every row so far has the same chance to be among those held.
        elif (place := draw.randrange(of)) < count:
            rows[place] = (line, row)
    if not of:
        raise InputError("has no sample", file=manifest)
    folder = manifest.parent
    studies = [parse_study(row, folder, file=manifest, line=line) for line, row in sorted(rows, key=lambda row: row[0])]
    if lost := sorted(set(sample_ids or ()) - {study.sample_id for study in studies}):
        raise InputError(f"has no sample '{lost[0]}'", file=manifest, field="sample_id")
    return studies, of


def _card(study: Study) -> dict[str, Any]:
    """A sample as the script takes it."""
    facts = {name.removesuffix("_id"): value for name in _FACTS if (value := getattr(study, name)) is not None}
    return {
        "sample_id": study.sample_id,
        "facts": facts,
        "images": {column: getattr(study, column) for column in IMAGE_COLUMNS},
        "findings": [_sentence(sentence) for sentence in study.grounded_findings or ()],
        "phrases": [_sentence(sentence) for sentence in study.phrases or ()],
        "labels": [_label(label) for label in study.labels or ()],
        "findings_text": study.findings,
        "indication": study.indication,
        "technique": study.technique,
        "comparison": study.comparison,
        "prior_report": study.prior_report,
    }


def _sentence(sentence: Sentence) -> dict[str, Any]:
    return sentence.model_dump(mode="json", exclude_none=True)


def _label(label: Label) -> dict[str, Any]:
    side = {None: "", "both": ", both sides"}.get(label.side, f", {label.side}")
    boxes = {} if label.boxes is None else {"boxes": [box.model_dump(mode="json") for box in label.boxes]}
    return {"text": f"{label.kind}{side}", **boxes}
