"""Changes of a reader to a draft, and the resulting state."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, TypeAdapter

from maira.review.protocol import REFERENCE_STEP, STEPS, SeverityId
from radfact.errors import ErrorCode, InputError
from radfact.records import Box, Record, Share

LONGEST_SENTENCE = 4000
"""Maximum characters of a sentence, unless the draft's is longer."""
LONGEST_COMMENT = 10_000
LONGEST_NAME = 100

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
    """Change the text of a sentence."""

    kind: Literal["edit"]
    sentence: str
    text: Text


class Delete(Record):
    """Delete a sentence, which stays visible, or restore it."""

    kind: Literal["delete", "restore"]
    sentence: str


class Add(Record):
    """Add a missing finding."""

    kind: Literal["add"]
    text: Text
    boxes: Boxes = ()


class MoveBoxes(Record):
    """Set all boxes of a sentence, in shares of the original frontal image."""

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
    """Set the comment on the study."""

    kind: Literal["comment"]
    text: Text


class GoTo(Record):
    """Go to a step."""

    kind: Literal["step"]
    step: Annotated[int, Field(ge=1, le=4)]


class Mark(Record):
    """Finish or reopen the study, or undo or redo the last change."""

    kind: Literal["finish", "reopen", "undo", "redo"]


Change = Annotated[Edit | Delete | Add | MoveBoxes | Assess | Remark | GoTo | Mark, Field(discriminator="kind")]
change_adapter: TypeAdapter[Change] = TypeAdapter(Change)


@dataclass(frozen=True, slots=True)
class Assessment:
    """Assessment of a correction (MAIRA-2, tables F.1 to F.3)."""

    severity: SeverityId | None = None
    error_type: str | None = None
    comment: str = ""


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
        """Whether the reader added the sentence."""
        return self.draft_text is None

    @property
    def is_edited(self) -> bool:
        """Whether the text differs from the draft."""
        return not self.is_added and self.text != self.draft_text

    @property
    def has_moved_boxes(self) -> bool:
        """Whether the boxes differ from the draft."""
        return not self.is_added and self.boxes != self.draft_boxes

    @property
    def is_correction(self) -> bool:
        """Whether the sentence is deleted, edited, has other boxes, or is added and not deleted."""
        return not self.deleted if self.is_added else self.deleted or self.is_edited or self.has_moved_boxes


@dataclass(frozen=True, slots=True)
class State:
    """State of a review of a draft."""

    sentences: tuple[ReviewedSentence, ...]
    step: int = 1
    done: bool = False
    comment: str = ""

    @property
    def corrections(self) -> tuple[ReviewedSentence, ...]:
        """The corrections, in order."""
        return tuple(sentence for sentence in self.sentences if sentence.is_correction)


def initial_state(sentences: Sequence[tuple[str, Sequence[Corners]]]) -> State:
    """Return the initial state of a review."""
    return State(
        tuple(
            ReviewedSentence(f"d{index}", text, tuple(boxes), draft_text=text, draft_boxes=tuple(boxes))
            for index, (text, boxes) in enumerate(sentences)
        )
    )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A review of a draft at one point in time.

    Attributes:
        version: number of changes, including undo and redo.
        visited: steps that the reader visited, also undone ones.
    """

    state: State
    version: int = 0
    visited: frozenset[int] = frozenset({1})
    can_undo: bool = False
    can_redo: bool = False

    @property
    def status(self) -> Literal["done", "started", "open"]:
        """How far the review is."""
        return "done" if self.state.done else "started" if self.version else "open"


class UnfinishedError(InputError):
    """The study cannot be finished: the review is incomplete."""


class History:
    """The changes of one reader to one draft, and the resulting state. Undo is a change; nothing is removed."""

    def __init__(self, draft: State) -> None:
        """Start from the draft."""
        self._states = [draft]
        self._undone: list[State] = []
        self._version = 0
        self._visited = frozenset({draft.step})

    @property
    def snapshot(self) -> Snapshot:
        """The review after all changes."""
        can_undo, can_redo = len(self._states) > 1, bool(self._undone)
        return Snapshot(self._states[-1], self._version, self._visited, can_undo, can_redo)

    def check(self, change: Change) -> None:
        """Check whether a change is possible."""
        state = self._apply(change)
        if change.kind == "finish":
            _check_finished(state, self._visited)

    def add(self, change: Change) -> None:
        """Apply a change."""
        state = self._apply(change)
        if change.kind == "undo":
            self._undone.append(self._states.pop())
        else:
            if change.kind == "redo":
                self._undone.pop()
            else:
                self._undone.clear()
            self._states.append(state)
        self._version += 1
        self._visited |= {self._states[-1].step}

    def _apply(self, change: Change) -> State:
        if change.kind == "undo":
            if len(self._states) == 1:
                raise InputError("no change to undo")
            return self._states[-2]
        if change.kind == "redo":
            if not self._undone:
                raise InputError("no change to redo")
            return self._undone[-1]
        return _apply_change(self._states[-1], change, self._version)


def _apply_change(state: State, change: Change, version: int) -> State:
    """Return the state after a change other than undo and redo; the id of an added sentence contains `version`."""
    if isinstance(change, Mark):
        is_done = change.kind == "finish"
        if state.done == is_done:
            raise InputError(f"the review is {'already' if is_done else 'not'} finished")
        return replace(state, done=is_done)
    if state.done:
        raise InputError("the review is finished; reopen it to make changes")
    if isinstance(change, Remark):
        _check_length(change.text, "comment", LONGEST_COMMENT)
        return replace(state, comment=change.text)
    if isinstance(change, GoTo):
        return replace(state, step=change.step)
    if isinstance(change, Add):
        _check_sentence(change.text)
        return replace(state, sentences=(*state.sentences, ReviewedSentence(f"a{version}", change.text, change.boxes)))
    indices = [index for index, sentence in enumerate(state.sentences) if sentence.id == change.sentence]
    if not indices:
        raise InputError("unknown sentence", code=ErrorCode.UNKNOWN_NAME, field="sentence")
    sentences = list(state.sentences)
    sentences[indices[0]] = _correct(sentences[indices[0]], change)
    return replace(state, sentences=tuple(sentences))


def _correct(sentence: ReviewedSentence, change: Edit | Delete | MoveBoxes | Assess) -> ReviewedSentence:
    match change:
        case Delete():
            return replace(sentence, deleted=change.kind == "delete")
        case Assess():
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
    is_draft = len(change.boxes) == len(sentence.draft_boxes) and all(
        abs(share - drafted) < _PRECISION
        for box, draft_box in zip(change.boxes, sentence.draft_boxes, strict=True)
        for share, drafted in zip(box, draft_box, strict=True)
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


def _check_finished(state: State, visited: frozenset[int]) -> None:
    if skipped := [f"{step.number} ({step.name})" for step in _REQUIRED_STEPS if step.number not in visited]:
        raise UnfinishedError(f"open all steps before finishing; not opened yet: {', '.join(skipped)}")
    unrated = sum(sentence.assessment.severity is None for sentence in state.corrections)
    if unrated:
        raise UnfinishedError(f"rate all corrections in step 4 (Assess) before finishing; not rated: {unrated}")


def as_box(corners: Corners) -> Box:
    """Convert corners to a box."""
    x_min, y_min, x_max, y_max = corners
    return Box(x_min=x_min, y_min=y_min, x_max=x_max, y_max=y_max)
