"""A review as a data set: ratings of the drafts, corrected reports as references, and preferences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from maira.data.study import IMAGE_COLUMNS, Study
from maira.model.prompts import Task
from maira.model.task_examples import make_example
from maira.review.campaign import REFERENCE_ARM
from maira.review.changes import ReviewedSentence, State
from maira.review.database import Draft
from maira.review.store import Store
from radfact.errors import InputError
from radfact.pages.meta_page import Table
from radfact.records import Box, Report, Sentence, narrative

_SIGNIFICANT: Final = 2
_COUNTS = ("errors", "significant", "insignificant")
_END_MARKS = (".", "!", "?", ":")


def corrected_report(draft: Draft, state: State) -> Report:
    """Return the report after a review: a narrative if the draft is one, otherwise sentences with boxes."""
    sentences = [sentence for sentence in state.sentences if not sentence.deleted]
    if draft.is_narrative:
        return " ".join(s.text if s.text.endswith(_END_MARKS) else f"{s.text}." for s in sentences)
    return [_corrected_sentence(draft, sentence) for sentence in sentences]


def _corrected_sentence(draft: Draft, sentence: ReviewedSentence) -> Sentence:
    """Return a sentence of a corrected report; changed boxes remove the masks."""
    boxes = tuple(Box(**dict(zip(Box.model_fields, corners, strict=True))) for corners in sentence.boxes)
    if sentence.is_added:
        return Sentence(text=sentence.text, boxes=boxes)
    drafted = draft.sentences[int(sentence.id[1:])]
    regions = {"boxes": boxes or None, "masks": None} if sentence.has_moved_boxes else {}
    return drafted.model_copy(update={"text": sentence.text, **regions})


def rating_table(store: Store, studies: Mapping[str, Study], readers: Sequence[str]) -> Table:
    """Return the errors in each draft by each reader, as `radfact meta agreement` reads it; unfinished: empty."""
    reviews = [[review.state for _, review in store.counted_reviews(name)] for name in readers]
    drafts = [draft for draft in store.drafts if not draft.is_training]
    arms = ["group"] if any(draft.arm for draft in drafts) else []
    sources = store.campaign.settings.arms if store.campaign.settings else {}
    rows = []
    for draft, *by_reader in zip(drafts, *reviews, strict=True):
        study = studies[draft.sample_id]
        reference = narrative(study.grounded_findings or study.findings or "")
        is_reference = sources.get(draft.arm) == REFERENCE_ARM
        if reference and not is_reference and any(state.done for state in by_reader):
            identity = [draft.name, study.patient_id, study.study_id or study.sample_id, *([draft.arm] if arms else [])]
            counts = [count for state in by_reader for count in _count_errors(state)]
            rows.append([*identity, reference, narrative(list(draft.sentences)), *counts])
    experts = [f"{quantity}:{name}" for name in readers for quantity in _COUNTS]
    return Table(["id", "patient_id", "study_id", *arms, "reference", "candidate", *experts], rows)


def corrected_studies(store: Store, studies: Mapping[str, Study], reader: str, arm: str) -> Iterator[Study]:
    """Yield all studies of an arm with a reader's corrected report as their only report, if it is finished."""
    for draft, review in store.counted_reviews(reader):
        if draft.arm == arm:
            report = corrected_report(draft, review.state) if review.state.done else None
            yield _with_report(studies[draft.sample_id], report)


def find_preferences(
    store: Store, studies: Mapping[str, Study], readers: Sequence[str]
) -> tuple[list[dict[str, Any]], Counter[str]]:
    """Return a preference for each corrected draft, without a prompt, which a run makes; or why there is none."""
    rows, skipped = list[dict[str, Any]](), Counter[str]()
    for reader in readers:
        for draft, review in store.counted_reviews(reader):
            if not (review.state.done and review.state.corrections):
                continue
            study = studies[draft.sample_id]
            task: Task = "findings" if draft.is_narrative else "grounded"
            try:
                rejected = _target(study, corrected_report(draft, draft.review.state), task)
                chosen = _target(study, corrected_report(draft, review.state), task)
            except InputError as error:
                skipped[str(error)] += 1
                continue
            if chosen == rejected:
                skipped["the model's format cannot express the correction"] += 1
                continue
            rows.append(
                {
                    "sample_id": draft.sample_id,
                    "arm": draft.arm,
                    "reader": reader,
                    "severity": review.state.worst_severity,
                    "task": task,
                    "chosen": chosen,
                    "rejected": rejected,
                    "images": [str(path) for name in IMAGE_COLUMNS if (path := getattr(study, name)) is not None],
                }
            )
    return rows, skipped


def _count_errors(state: State) -> list[int | None]:
    if not state.done:
        return [None] * len(_COUNTS)
    severities = [correction.assessment.severity for correction in state.corrections]
    significant = severities.count(_SIGNIFICANT)
    return [len(severities), significant, len(severities) - significant]


def _with_report(study: Study, report: Report | None) -> Study:
    """Return a study with one report, which replaces the reference and its sentences to locate."""
    others = {"findings": None, "grounded_findings": None, "phrases": None}
    name = "findings" if isinstance(report, str) else "grounded_findings"
    return study.model_copy(update={**others, name: report or None})


def _target(study: Study, report: Report, task: Task) -> str:
    target = make_example(_with_report(study, report), task).target
    if target is None:
        raise InputError("expected a report with text, found none")
    return target
