"""Export of a review: a table of corrections, and corrected reports (MAIRA-2, appendix F.1)."""

from __future__ import annotations

import csv
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, Literal

from maira.review.changes import ReviewedSentence, as_box
from maira.review.store import Draft, Store
from radfact.io.jsonl import open_atomic, write_jsonl
from radfact.io.outputs import replace_files
from radfact.records import Sentence

CorrectionKind = Literal["edit", "deletion", "addition"]

COLUMNS = (
    "reviewer",
    "sample_id",
    "sentence",
    "kind",
    "draft_text",
    "corrected_text",
    "error_type",
    "severity",
    "comment",
    "boxes_changed",
    "finished",
    "study_comment",
)
"""Columns of the table of corrections."""

_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
_BREAKS = ("\t", "\r", "\n")
_GUARD = "'"
_END_MARKS = (".", "!", "?", ":")


def kind_of(sentence: ReviewedSentence) -> CorrectionKind:
    """Return the kind of a correction; changed boxes are an edit."""
    return "addition" if sentence.is_added else "deletion" if sentence.deleted else "edit"


def corrections_csv(store: Store, reviewers: Sequence[str]) -> str:
    """Return the table of corrections in finished and unfinished studies, one row per correction.

    Cells that a spreadsheet would execute as a formula, and cells that start with an apostrophe, get an apostrophe in
    front, which `unguard` removes.

    Args:
        store: the review.
        reviewers: names.
    """
    buffer = StringIO()
    # All cells quoted: a spreadsheet that splits at semicolons would find formulas within cells.
    writer = csv.writer(buffer, lineterminator="\r\n", quoting=csv.QUOTE_ALL)
    writer.writerow(COLUMNS)
    for reviewer in map(store.registered_name, reviewers):
        for draft, review in zip(store.drafts, store.reviews(reviewer), strict=True):
            state = review.state
            for index, sentence in enumerate(state.sentences, 1):
                if sentence.is_correction:
                    shared = [str(state.done).lower(), state.comment]
                    cells = [reviewer, draft.sample_id, str(index), *_cells(sentence), *shared]
                    writer.writerow([guard(cell) for cell in cells])
    return buffer.getvalue()


def corrected_drafts(store: Store, reviewer: str) -> Iterator[dict[str, Any]]:
    """Yield the corrected reports of the studies that a reviewer finished, as records of a drafts file.

    Args:
        store: of the reviews.
        reviewer: name of the reviewer.

    Raises:
        InputError: the reviewer is unknown.
    """
    name = store.registered_name(reviewer)
    for draft, review in zip(store.drafts, store.reviews(name), strict=True):
        if review.state.done:
            model = draft.record.get("model")
            sentences = [sentence for sentence in review.state.sentences if not sentence.deleted]
            yield {
                "sample_id": draft.sample_id,
                "report": _narrative(sentences) if draft.is_narrative else [_record(draft, s) for s in sentences],
                "model": f"{model}, corrected" if model else "corrected",
                "reviewer": name,
            }


@dataclass(frozen=True, slots=True)
class ExportResult:
    """Number of rows in the table, and by reviewer the drafts file and its number of drafts."""

    corrections: int
    drafts: dict[str, tuple[Path, int]]


def write_export(store: Store, folder: Path, reviewers: Sequence[str]) -> ExportResult:
    """Write `corrections.csv` and the corrected reports of each reviewer as drafts.

    Args:
        store: the review.
        folder: folder to write.
        reviewers: names.

    Raises:
        InputError: a reviewer is unknown; nothing is written.
    """
    reviewers = list(dict.fromkeys(map(store.registered_name, reviewers)))
    table = corrections_csv(store, reviewers)
    drafts = {}
    with replace_files(folder) as new:
        with open_atomic(new / "corrections.csv", "wb") as handle:
            handle.write(table.encode("utf-8-sig"))
        for reviewer in reviewers:
            # Names may contain characters that file names cannot, and two may differ only in these.
            number = store.reviewers().index(reviewer) + 1
            name = f"drafts-{number}-{_as_file_name(reviewer) or 'reviewer'}.jsonl"
            drafts[reviewer] = (folder / name, write_jsonl(new / name, corrected_drafts(store, reviewer)))
    corrections = sum(len(review.state.corrections) for name in reviewers for review in store.reviews(name))
    return ExportResult(corrections, drafts)


def _as_file_name(name: str) -> str:
    """Return a name in ASCII: accents are removed, other characters become a hyphen."""
    letters = [letter for letter in unicodedata.normalize("NFKD", name) if not unicodedata.combining(letter)]
    return re.sub(r"[^A-Za-z0-9]+", "-", "".join(letters)).strip("-")


def guard(cell: str) -> str:
    """Return a cell that no spreadsheet interprets as a formula."""
    is_dangerous = cell.lstrip().startswith(_FORMULA) or cell.startswith((*_BREAKS, _GUARD))
    return f"{_GUARD}{cell}" if is_dangerous else cell


def unguard(cell: str) -> str:
    """Return the original text of a guard cell."""
    return cell.removeprefix(_GUARD)


def _cells(sentence: ReviewedSentence) -> list[str]:
    assessment = sentence.assessment
    return [
        kind_of(sentence),
        sentence.draft_text or "",
        "" if sentence.deleted else sentence.text,
        assessment.error_type or "",
        "" if assessment.severity is None else str(assessment.severity),
        assessment.comment,
        str(sentence.has_moved_boxes).lower(),
    ]


def _narrative(sentences: Sequence[ReviewedSentence]) -> str:
    return " ".join(s.text if s.text.endswith(_END_MARKS) else f"{s.text}." for s in sentences)


def _record(draft: Draft, sentence: ReviewedSentence) -> dict[str, Any]:
    """Return a sentence of a corrected report; changed boxes remove the masks."""
    boxes = tuple(as_box(corners) for corners in sentence.boxes)
    if sentence.is_added:
        corrected = Sentence(text=sentence.text, boxes=boxes)
    else:
        drafted = draft.sentences[int(sentence.id[1:])]
        regions = {"boxes": boxes or None, "masks": None} if sentence.has_moved_boxes else {}
        corrected = drafted.model_copy(update={"text": sentence.text, **regions})
    fields = corrected.model_dump(mode="json")
    return {name: value for name, value in fields.items() if name in ("text", "boxes") or value is not None}
