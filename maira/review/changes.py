"""Changes of a reader to a draft, and the resulting state."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Literal, TypeAlias, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, TypeAdapter, ValidationError

from maira.review.protocol import REFERENCE_STEP, STEPS, SeverityId
from radfact.errors import ErrorCode, InputError
from radfact.records import Record, Share, as_input_error

LONGEST_SENTENCE = 4000
"""Maximum characters of a sentence, unless the draft's is longer."""
LONGEST_COMMENT = 10_000
LONGEST_NAME = 100

UNTYPED = "not named"
"""Name of the error type of a correction that has none."""

_MOST_BOXES = 100
_PRECISION = 1e-5
"""Precision of the shares that the page saves: boxes that differ less are equal."""
_LAYOUT = "\n\t"
_CONTROL = ("Cc", "Cs")
_UNTYPED = re.compile("[\u202a-\u202e\u2066-\u2069\ufeff]")
_INVISIBLE = (*_CONTROL, "Cf")
_REQUIRED_STEPS = STEPS[1:REFERENCE_STEP]
"""Steps required before a study can be finished; a review starts in the first, and severities require the last."""


def readable(text: str) -> str:
    """Remove control characters, bidirectional controls and byte order marks, as `typable` of text.js does."""
    visible = _UNTYPED.sub("", re.sub("\r\n?", "\n", text))
    return "".join(letter for letter in visible if letter in _LAYOUT or unicodedata.category(letter) not in _CONTROL)


def plain_name(name: str) -> str:
    """Normalize a name (NFKC) and remove invisible characters."""
    visible = (
        letter for letter in unicodedata.normalize("NFKC", name) if unicodedata.category(letter) not in _INVISIBLE
    )
    return " ".join("".join(visible).split())


def _cleaned(clean: Callable[[str], str]) -> BeforeValidator:
    return BeforeValidator(lambda value: clean(value).strip() if isinstance(value, str) else value)


Name = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_NAME), _cleaned(plain_name)]
Text = Annotated[str, _cleaned(readable)]
Corners: TypeAlias = tuple[Share, Share, Share, Share]
"""x_min, y_min, x_max, y_max in shares of the original image."""


def _are_in_order(corners: Corners) -> Corners:
    x_min, y_min, x_max, y_max = corners
    if x_min > x_max or y_min > y_max:
        raise ValueError("corners are swapped: expected x_min, y_min, x_max, y_max")
    return corners


Boxes = Annotated[tuple[Annotated[Corners, AfterValidator(_are_in_order)], ...], Field(max_length=_MOST_BOXES)]


class Edit(Record):
    kind: Literal["edit"]
    sentence: str
    text: Text


class Delete(Record):
    """Delete a sentence, which stays visible, or restore it."""

    kind: Literal["delete", "restore"]
    sentence: str


class Add(Record):
    kind: Literal["add"]
    text: Text
    boxes: Boxes = ()


class MoveBoxes(Record):
    kind: Literal["boxes"]
    sentence: str
    boxes: Boxes


class Assess(Record):
    """Assess a correction; omitted fields are unchanged."""

    kind: Literal["assess"]
    sentence: str
    severity: SeverityId | None = None
    error_type: Name | None = None
    comment: Text = ""


class Remark(Record):
    kind: Literal["comment"]
    text: Text


class GoTo(Record):
    kind: Literal["step"]
    step: Annotated[int, Field(ge=1, le=4)]


class Mark(Record):
    """Finish or reopen the study, or undo or redo the last change."""

    kind: Literal["finish", "reopen", "undo", "redo"]


Change = Annotated[Edit | Delete | Add | MoveBoxes | Assess | Remark | GoTo | Mark, Field(discriminator="kind")]
change_adapter: TypeAdapter[Change] = TypeAdapter(Change)

_Value = TypeVar("_Value")


def validate(adapter: TypeAdapter[_Value], value: object, *, field: str = "") -> _Value:
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        raise as_input_error(error, field=field) from None


@dataclass(frozen=True, slots=True)
class Assessment:
    """Assessment of a correction (MAIRA-2, tables F.1 to F.3)."""

    severity: SeverityId | None = None
    error_type: str | None = None
    comment: str = ""

    @property
    def error_group(self) -> str:
        """The error type without subtype: "OMISSION" for "OMISSION: Normal Finding"."""
        return UNTYPED if self.error_type is None else self.error_type.split(":")[0].strip()


@dataclass(frozen=True, slots=True)
class ReviewedSentence:
    """A sentence of the draft or an added one, with its current and its drafted content."""

    id: str
    text: str
    boxes: tuple[Corners, ...]
    draft_text: str | None = None
    draft_boxes: tuple[Corners, ...] = ()
    deleted: bool = False
    assessment: Assessment = Assessment()

    @property
    def is_added(self) -> bool:
        return self.draft_text is None

    @property
    def is_edited(self) -> bool:
        return not self.is_added and self.text != self.draft_text

    @property
    def has_moved_boxes(self) -> bool:
        return not self.is_added and self.boxes != self.draft_boxes

    @property
    def is_correction(self) -> bool:
        """Whether the sentence is deleted, edited, has other boxes, or is added and not deleted."""
        return not self.deleted if self.is_added else self.deleted or self.is_edited or self.has_moved_boxes

    @property
    def kind(self) -> str:
        """Kind of the correction; changed boxes are an edit."""
        return "addition" if self.is_added else "deletion" if self.deleted else "edit"


@dataclass(frozen=True, slots=True)
class State:
    sentences: tuple[ReviewedSentence, ...]
    step: int = 1
    done: bool = False
    comment: str = ""

    @property
    def corrections(self) -> tuple[ReviewedSentence, ...]:
        return tuple(sentence for sentence in self.sentences if sentence.is_correction)

    @property
    def drafted(self) -> list[ReviewedSentence]:
        return [sentence for sentence in self.sentences if not sentence.is_added]

    @property
    def worst_severity(self) -> int | None:
        """The highest severity of a correction: -1 without corrections, None if none is rated."""
        if not self.corrections:
            return -1
        rated = [item.assessment.severity for item in self.corrections if item.assessment.severity is not None]
        return max(rated, default=None)


def initial_state(sentences: Sequence[tuple[str, Sequence[Corners]]]) -> State:
    return State(
        tuple(
            ReviewedSentence(f"d{index}", text, tuple(boxes), draft_text=text, draft_boxes=tuple(boxes))
            for index, (text, boxes) in enumerate(sentences)
        )
    )


class UnfinishedError(InputError):
    """The study cannot be finished: the review is incomplete."""


@dataclass(frozen=True, slots=True)
class Review:
    """A reader's review of a draft. Undo is a change; nothing is removed.

    Attributes:
        states: the draft and the state after each change that is not undone.
        undone: states to redo, the last one first.
        version: number of changes, including undo and redo.
        visited: steps that the reader visited, also undone ones.
        began, finished: times of the first change, and of finishing; None if it is not finished.
    """

    states: tuple[State, ...]
    undone: tuple[State, ...] = ()
    version: int = 0
    visited: frozenset[int] = frozenset({1})
    began: datetime | None = None
    finished: datetime | None = None

    @property
    def state(self) -> State:
        return self.states[-1]

    @property
    def can_undo(self) -> bool:
        return len(self.states) > 1

    @property
    def status(self) -> Literal["done", "started", "open"]:
        return "done" if self.state.done else "started" if self.version else "open"

    def check(self, change: Change) -> None:
        state = self.after(change).state
        if change.kind != "finish":
            return
        skipped = [
            f"{step['number']} ({step['name']})" for step in _REQUIRED_STEPS if step["number"] not in self.visited
        ]
        if skipped:
            raise UnfinishedError(f"open all steps before finishing; not opened yet: {', '.join(skipped)}")
        if unrated := sum(sentence.assessment.severity is None for sentence in state.corrections):
            raise UnfinishedError(f"rate all corrections in step 4 (Assess) before finishing; not rated: {unrated}")

    def after(self, change: Change, at: datetime | None = None) -> Review:
        """Return the review after a change at some time."""
        states, undone = self.states, self.undone
        if change.kind == "undo":
            if not self.can_undo:
                raise InputError("no change to undo")
            states, undone = states[:-1], (*undone, states[-1])
        elif change.kind == "redo":
            if not undone:
                raise InputError("no change to redo")
            states, undone = (*states, undone[-1]), undone[:-1]
        else:
            states, undone = (*states, _apply_change(self.state, change, self.version)), ()
        state = states[-1]
        finished = (self.finished if self.state.done else at) if state.done else None
        return Review(states, undone, self.version + 1, self.visited | {state.step}, self.began or at, finished)


def _apply_change(state: State, change: Change, version: int) -> State:
    """Return the state after a change other than undo and redo; the id of an added sentence contains `version`."""
    if isinstance(change, Mark):
        is_done = change.kind == "finish"
        if state.done == is_done:
            raise InputError(f"the review is {'already' if is_done else 'not'} finished")
        return replace(state, done=is_done)
    if state.done:
        raise InputError("the review is finished; reopen it to make changes")
    match change:
        case Remark():
            _check_length(change.text, "comment", LONGEST_COMMENT)
            return replace(state, comment=change.text)
        case GoTo():
            return replace(state, step=change.step)
        case Add():
            _check_sentence(change.text)
            added = ReviewedSentence(f"a{version}", change.text, change.boxes)
            return replace(state, sentences=(*state.sentences, added))
    sentences = {sentence.id: sentence for sentence in state.sentences}
    if change.sentence not in sentences:
        raise InputError("unknown sentence", code=ErrorCode.UNKNOWN_NAME, field="sentence")
    corrected = _correct(sentences[change.sentence], change)
    return replace(state, sentences=tuple({**sentences, corrected.id: corrected}.values()))


def _correct(sentence: ReviewedSentence, change: Edit | Delete | MoveBoxes | Assess) -> ReviewedSentence:
    if isinstance(change, Delete):
        return replace(sentence, deleted=change.kind == "delete")
    if isinstance(change, Assess):
        _check_length(change.comment, "comment", LONGEST_COMMENT)
        fields = change.model_dump(include=change.model_fields_set - {"kind", "sentence"})
        return replace(sentence, assessment=replace(sentence.assessment, **fields))
    if sentence.deleted:
        raise InputError("the sentence is deleted; restore it to change it", field="sentence")
    if isinstance(change, Edit):
        _check_sentence(change.text, previous=sentence.text)
        # A difference in characters that cannot be typed is not a correction.
        if sentence.draft_text is not None and change.text == readable(sentence.draft_text).strip():
            return replace(sentence, text=sentence.draft_text)
        return replace(sentence, text=change.text)
    # The page once saved all boxes of a sentence rounded, also those that were not moved.
    shares, drafted = ([share for box in boxes for share in box] for boxes in (change.boxes, sentence.draft_boxes))
    is_draft = len(shares) == len(drafted) and all(
        abs(share - other) < _PRECISION for share, other in zip(shares, drafted, strict=True)
    )
    return replace(sentence, boxes=sentence.draft_boxes if is_draft else change.boxes)


def _check_sentence(text: str, previous: str = "") -> None:
    if not text:
        raise InputError("expected text, found none; delete the sentence if it is false")
    # A draft's sentence that is too long may become shorter.
    _check_length(text, "sentence", max(LONGEST_SENTENCE, len(previous)))


def _check_length(text: str, name: str, limit: int) -> None:
    if len(text) > limit:
        raise InputError(f"{name}: expected at most {limit:,} characters, found {len(text):,}")
