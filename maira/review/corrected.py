"""Corrected reports: drafts with the changes of their review."""

from __future__ import annotations

from collections.abc import Sequence

from maira.review.changes import ReviewedSentence, State, as_box
from maira.review.database import Draft
from radfact.records import Report, Sentence

_END_MARKS = (".", "!", "?", ":")


def corrected_report(draft: Draft, state: State) -> Report:
    """Return the report after a review: a narrative if the draft is one, otherwise sentences with boxes."""
    sentences = [sentence for sentence in state.sentences if not sentence.deleted]
    if draft.is_narrative:
        return _narrative(sentences)
    return [_corrected_sentence(draft, sentence) for sentence in sentences]


def _narrative(sentences: Sequence[ReviewedSentence]) -> str:
    return " ".join(s.text if s.text.endswith(_END_MARKS) else f"{s.text}." for s in sentences)


def _corrected_sentence(draft: Draft, sentence: ReviewedSentence) -> Sentence:
    """Return a sentence of a corrected report; changed boxes remove the masks."""
    boxes = tuple(as_box(corners) for corners in sentence.boxes)
    if sentence.is_added:
        return Sentence(text=sentence.text, boxes=boxes)
    drafted = draft.sentences[int(sentence.id[1:])]
    regions = {"boxes": boxes or None, "masks": None} if sentence.has_moved_boxes else {}
    return drafted.model_copy(update={"text": sentence.text, **regions})
