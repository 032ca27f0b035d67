"""What comes of a review: a table of corrections and the corrected reports (paper 004, appendix F.1)."""

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
"""Of the table of corrections."""

_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
_BREAKS = ("\t", "\r", "\n")
_GUARD = "'"
_END_MARKS = (".", "!", "?", ":")


def kind_of(sentence: ReviewedSentence) -> CorrectionKind:
    """What was done to a sentence that is a correction; other boxes are an edit too."""
    return "addition" if sentence.is_added else "deletion" if sentence.deleted else "edit"


def corrections_csv(store: Store, reviewers: Sequence[str]) -> str:
    """The table of corrections, one row each, of finished and unfinished studies.

    Spreadsheets would run a cell that begins like a formula. Such a cell begins with an apostrophe here, as does one
    that begins with an apostrophe itself: `unguarded` takes it away again.

    Args:
        store: the review.
        reviewers: whose corrections.
    """
    buffer = StringIO()
    # In quotes all: a spreadsheet that separates at semicolons would find a formula in the middle of a cell.
    writer = csv.writer(buffer, lineterminator="\r\n", quoting=csv.QUOTE_ALL)
    writer.writerow(COLUMNS)
    for reviewer in map(store.noted_name, reviewers):
        for draft, review in zip(store.drafts, store.reviews(reviewer), strict=True):
            state = review.state
            for place, sentence in enumerate(state.sentences, 1):
                if sentence.is_correction:
                    shared = [str(state.done).lower(), state.comment]
                    cells = [reviewer, draft.sample_id, str(place), *_cells(sentence), *shared]
                    writer.writerow([guarded(cell) for cell in cells])
    return buffer.getvalue()


def corrected_drafts(store: Store, reviewer: str) -> Iterator[dict[str, Any]]:
    """The reports that a reviewer has finished as they corrected them: records of a drafts file.

    What the model's own file says of how it came to its text is left out: it is not this text.

    Raises:
        InputError: there is no such reviewer.
    """
    name = store.noted_name(reviewer)
    for draft, review in zip(store.drafts, store.reviews(name), strict=True):
        if review.state.done:
            model = draft.record.get("model")
            kept = [sentence for sentence in review.state.sentences if not sentence.deleted]
            yield {
                "sample_id": draft.sample_id,
                "report": _narrative(kept) if draft.is_narrative else [_record(draft, one) for one in kept],
                "model": f"{model}, corrected" if model else "corrected",
                "reviewer": name,
            }


@dataclass(frozen=True, slots=True)
class Written:
    """What an export has written: rows of the table, and by reviewer the drafts' file and how many it holds."""

    corrections: int
    drafts: dict[str, tuple[Path, int]]


def write_export(store: Store, folder: Path, reviewers: Sequence[str]) -> Written:
    """Write `corrections.csv` and, for each reviewer, their corrected reports as drafts.

    Args:
        store: the review.
        folder: to write into.
        reviewers: whose corrections.

    Raises:
        InputError: there is no such reviewer; nothing is written.
    """
    reviewers = list(dict.fromkeys(map(store.noted_name, reviewers)))
    table = corrections_csv(store, reviewers)
    with open_atomic(folder / "corrections.csv", "wb") as handle:
        handle.write(table.encode("utf-8-sig"))
    drafts = {}
    for reviewer in reviewers:
        # A name may hold what no file name does, and two may differ in nothing else.
        place = store.reviewers().index(reviewer) + 1
        path = folder / f"drafts-{place}-{_as_file_name(reviewer) or 'reviewer'}.jsonl"
        drafts[reviewer] = (path, write_jsonl(path, corrected_drafts(store, reviewer)))
    corrections = sum(len(review.state.corrections) for name in reviewers for review in store.reviews(name))
    return Written(corrections, drafts)


def _as_file_name(name: str) -> str:
    """A name in letters and digits that every system writes alike: accents go, anything else becomes a hyphen."""
    letters = [letter for letter in unicodedata.normalize("NFKD", name) if not unicodedata.combining(letter)]
    return re.sub(r"[^A-Za-z0-9]+", "-", "".join(letters)).strip("-")


def guarded(cell: str) -> str:
    """A cell that no spreadsheet takes for a formula."""
    is_dangerous = cell.lstrip().startswith(_FORMULA) or cell.startswith((*_BREAKS, _GUARD))
    return f"{_GUARD}{cell}" if is_dangerous else cell


def unguarded(cell: str) -> str:
    """The text that `guarded` made a cell of."""
    return cell.removeprefix(_GUARD)


def _cells(sentence: ReviewedSentence) -> list[str]:
    said = sentence.assessment
    return [
        kind_of(sentence),
        sentence.draft_text or "",
        "" if sentence.deleted else sentence.text,
        said.error_type or "",
        "" if said.severity is None else str(said.severity),
        said.comment,
        str(sentence.has_moved_boxes).lower(),
    ]


def _narrative(sentences: Sequence[ReviewedSentence]) -> str:
    return " ".join(one.text if one.text.endswith(_END_MARKS) else f"{one.text}." for one in sentences)


def _record(draft: Draft, sentence: ReviewedSentence) -> dict[str, Any]:
    """A sentence of a corrected report; masks hold only as long as the boxes that they came with."""
    boxes = tuple(as_box(corners) for corners in sentence.boxes)
    if sentence.is_added:
        made = Sentence(text=sentence.text, boxes=boxes)
    else:
        drafted = draft.sentences[int(sentence.id[1:])]
        regions = {"boxes": boxes or None, "masks": None} if sentence.has_moved_boxes else {}
        made = drafted.model_copy(update={"text": sentence.text, **regions})
    shown = made.model_dump(mode="json")
    return {name: value for name, value in shown.items() if name in ("text", "boxes") or value is not None}
