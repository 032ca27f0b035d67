"""What the tests of the review server review: a few drafts with their studies, and a way to change them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from maira.review.changes import Snapshot, change_adapter
from maira.review.store import Store
from maira.review.studies import read_review_drafts
from radfact.jsonl import write_jsonl

BOX = {"x_min": 0.25, "y_min": 0.25, "x_max": 0.5, "y_max": 0.75}
CORNERS = [0.25, 0.25, 0.5, 0.75]
REPORT = [{"text": "The heart size is normal.", "boxes": [BOX]}, {"text": "No pleural effusion."}]
REFERENCE = [{"text": "The heart is enlarged.", "boxes": [BOX]}]


def write_set(
    folder: Path, reports: Mapping[str, Any], studies: Mapping[str, dict[str, Any]] | None = None
) -> tuple[Path, Path]:
    """Write drafts and a manifest with one small film, and give both paths.

    Args:
        folder: to write into.
        reports: by `sample_id`.
        studies: what else a study has, by `sample_id`.
    """
    Image.new("L", (40, 20), 90).save(folder / "film.png")
    rows = [
        {"sample_id": key, "frontal": "film.png", "grounded_findings": REFERENCE, **(studies or {}).get(key, {})}
        for key in reports
    ]
    write_jsonl(folder / "manifest.jsonl", rows)
    write_jsonl(folder / "drafts.jsonl", [{"sample_id": key, "report": report} for key, report in reports.items()])
    return folder / "drafts.jsonl", folder / "manifest.jsonl"


def new_store(folder: Path, reports: Mapping[str, Any], reviewers: Sequence[str] = ("Ada",)) -> Store:
    """A review of these reports with its reviewers."""
    drafts, _ = write_set(folder, reports)
    store = Store(folder / "review.sqlite", read_review_drafts(drafts))
    for name in reviewers:
        store.add_reviewer(name)
    return store


def change(store: Store, kind: str, number: int = 1, reviewer: str = "Ada", **fields: Any) -> Snapshot:
    """Make a change on the present state."""
    made = change_adapter.validate_python({"kind": kind, **fields})
    version = store.review(reviewer, number).version
    return store.add_change(reviewer, number, uuid.uuid4().hex, version, made)


def finish(store: Store, number: int = 1, reviewer: str = "Ada", severity: int = 0) -> Snapshot:
    """Finish a study after all steps, with a severity for the corrections that have none."""
    for step in (2, 3, 4):
        change(store, "step", number, reviewer, step=step)
    for one in store.review(reviewer, number).state.corrections:
        if one.assessment.severity is None:
            change(store, "assess", number, reviewer, sentence=one.id, severity=severity)
    return change(store, "finish", number, reviewer)
