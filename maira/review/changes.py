"""Changes of a reader to a draft, and the resulting state."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StrictInt,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from maira.review.form import LONGEST_NAME, LONGEST_TEXT, Form, Value
from radfact.errors import ErrorCode, InputError
from radfact.records import Record, Share, as_input_error

LONGEST_SENTENCE = 4000
"""Maximum characters of a sentence, unless the draft's is longer."""

UNTYPED = "not named"
"""Name of the error type of a correction that has none."""

_MOST_BOXES = 100
_PRECISION = 1e-5
"""Precision of the shares that the page saves: boxes that differ less are equal."""
_LAYOUT = "\n\t"
_CONTROL = ("Cc", "Cs")
_UNTYPED = re.compile("[\u202a-\u202e\u2066-\u2069\ufeff]")
_INVISIBLE = (*_CONTROL, "Cf")


def readable(text: str) -> str:
    """Remove control characters, bidirectional controls and byte order marks, as `typable` of text.js does."""
    visible = _UNTYPED.sub("", re.sub("\r\n?", "\n", text))
    return "".join(letter for letter in visible if letter in _LAYOUT or unicodedata.category(letter) not in _CONTROL)


def plain_name(name: str) -> str:
    """Normalize a name (NFKC) and remove invisible characters."""
    letters = unicodedata.normalize("NFKC", name)
    return " ".join("".join(each for each in letters if unicodedata.category(each) not in _INVISIBLE).split())


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


class Answer(Record):
    """Answer fields of the form about a unit: a sentence, or "" for the study; other fields are unchanged."""

    kind: Literal["answer", "assess"]
    unit: str
    values: dict[str, StrictInt | Text | None]

    @model_validator(mode="before")
    @classmethod
    def _from_assessment(cls, fields: Any) -> Any:
        """Read `assess` of earlier versions, whose fields were those of MAIRA-2."""
        if isinstance(fields, Mapping) and fields.get("kind") == "assess" and "sentence" in fields:
            values = {name: value for name, value in fields.items() if name not in ("kind", "sentence")}
            return {"kind": "answer", "unit": fields["sentence"], "values": values}
        return fields


class Remark(Record):
    kind: Literal["comment"]
    text: Text


class GoTo(Record):
    kind: Literal["step"]
    step: Annotated[int, Field(ge=1)]


class Mark(Record):
    """Finish or reopen the study, or undo or redo the last change."""

    kind: Literal["finish", "reopen", "undo", "redo"]


Change = Annotated[Edit | Delete | Add | MoveBoxes | Answer | Remark | GoTo | Mark, Field(discriminator="kind")]
change_adapter: TypeAdapter[Change] = TypeAdapter(Change)

_Value = TypeVar("_Value")


def validate(adapter: TypeAdapter[_Value], value: object, *, field: str = "") -> _Value:
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        raise as_input_error(error, field=field) from None


@dataclass(frozen=True, slots=True)
class ReviewedSentence:
    """A sentence of the draft or an added one, with its current and its drafted content."""

    id: str
    text: str
    boxes: tuple[Corners, ...]
    draft_text: str | None = None
    draft_boxes: tuple[Corners, ...] = ()
    deleted: bool = False
    answers: Mapping[str, Value] = field(default_factory=dict)

    @property
    def severity(self) -> int | None:
        return value if isinstance(value := self.answers.get("severity"), int) else None

    @property
    def error_type(self) -> str | None:
        return value if isinstance(value := self.answers.get("error_type"), str) else None

    @property
    def error_group(self) -> str:
        """The error type without subtype: "OMISSION" for "OMISSION: Normal Finding"."""
        return UNTYPED if self.error_type is None else self.error_type.split(":")[0].strip()

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
    answers: Mapping[str, Value] = field(default_factory=dict)

    def units(self, form: Form) -> Sequence[ReviewedSentence | State]:
        """Return what a form asks about."""
        if form.is_whole:
            return (self,)
        return self.corrections if form.edits else self.sentences

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
        rated = [item.severity for item in self.corrections if item.severity is not None]
        return max(rated, default=None)


def initial_state(sentences: Sequence[tuple[str, Sequence[Corners]]]) -> State:
    drafted = [(f"d{index}", text, tuple(boxes)) for index, (text, boxes) in enumerate(sentences)]
    return State(tuple(ReviewedSentence(key, text, boxes, text, boxes) for key, text, boxes in drafted))


class UnfinishedError(InputError):
    """The study cannot be finished: the review is incomplete."""


@dataclass(frozen=True, slots=True)
class Review:
    """A reader's review of a draft: the states that are not undone, and those to redo; undo is a change as well."""

    states: tuple[State, ...]
    undone: tuple[State, ...] = ()
    version: int = 0
    visited: frozenset[int] = frozenset({1})
    began: datetime | None = None
    finished: datetime | None = None

    @property
    def state(self) -> State:
        return self.states[-1]

    def asked(self, form: Form) -> Review:
        """Return the review without answers to fields that are no longer asked."""
        if not any(field.when for field in form.fields):
            return self
        sentences = tuple(replace(each, answers=form.asked(each.answers)) for each in self.state.sentences)
        state = replace(self.state, sentences=sentences, answers=form.asked(self.state.answers))
        return replace(self, states=(*self.states[:-1], state))

    @property
    def can_undo(self) -> bool:
        return len(self.states) > 1

    @property
    def status(self) -> Literal["done", "started", "open"]:
        return "done" if self.state.done else "started" if self.version else "open"

    def check(self, change: Change, form: Form) -> None:
        if isinstance(change, Edit | Delete | Add | MoveBoxes) and not form.edits:
            raise InputError("expected an answer, found a correction; the form has none", field="kind")
        if isinstance(change, GoTo) and change.step > len(form.steps):
            raise InputError(f"expected a step up to {len(form.steps)}, found {change.step}", field="step")
        if isinstance(change, Answer) and (change.unit == "") != form.is_whole:
            raise InputError(f"expected an answer about a {form.unit}", field="unit")
        state = self.after(change).state
        if change.kind != "finish":
            return
        steps = [*enumerate(form.steps, 1)][1 : form.reference_step or 1]
        if skipped := [f"{number} ({step.name})" for number, step in steps if number not in self.visited]:
            raise UnfinishedError(f"open all steps before finishing; not opened yet: {', '.join(skipped)}")
        if missing := [question.label for unit in state.units(form) for question in form.missing(unit.answers)]:
            counts = ", ".join(f"{label} ({missing.count(label)})" for label in dict.fromkeys(missing))
            raise UnfinishedError(f"answer all required fields before finishing; without an answer: {counts}")

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
            _check_length(change.text, "comment", LONGEST_TEXT)
            return replace(state, comment=change.text)
        case GoTo():
            return replace(state, step=change.step)
        case Answer(unit=""):
            return replace(state, answers={**state.answers, **change.values})
        case Add():
            _check_sentence(change.text)
            added = ReviewedSentence(f"a{version}", change.text, change.boxes)
            return replace(state, sentences=(*state.sentences, added))
    sentences = {sentence.id: sentence for sentence in state.sentences}
    name = change.unit if isinstance(change, Answer) else change.sentence
    if name not in sentences:
        raise InputError("unknown sentence", code=ErrorCode.UNKNOWN_NAME, field="sentence")
    corrected = _correct(sentences[name], change)
    return replace(state, sentences=tuple({**sentences, corrected.id: corrected}.values()))


def _correct(sentence: ReviewedSentence, change: Edit | Delete | MoveBoxes | Answer) -> ReviewedSentence:
    if isinstance(change, Delete):
        return replace(sentence, deleted=change.kind == "delete")
    if isinstance(change, Answer):
        return replace(sentence, answers={**sentence.answers, **change.values})
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
