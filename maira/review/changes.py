"""Changes that a reviewer makes to a draft, and the state that a draft is in after them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, TypeAdapter

from maira.review.protocol import REFERENCE_STEP, STEPS, SeverityId
from radfact.errors import InputError
from radfact.records import Box, Record, Share

LONGEST_SENTENCE = 4000
"""Characters of a sentence, unless the draft's own is longer."""
LONGEST_COMMENT = 10_000
LONGEST_NAME = 100

_MOST_BOXES = 100
_LAYOUT = "\n\t"
_CONTROL = ("Cc", "Cs")
_UNTYPED = re.compile("[\u202a-\u202e\u2066-\u2069\ufeff]")
_INVISIBLE = (*_CONTROL, "Cf")
_NEEDED_STEPS = STEPS[1:REFERENCE_STEP]
"""Without them a review is none: the first is where it begins, and the last shows itself by its severities."""


def readable(text: str) -> str:
    """A text without what nobody types and nobody sees, as `typable` of typing.js.

    That is control characters, controls of the direction of writing, byte order marks.
    """
    seen = _UNTYPED.sub("", re.sub("\r\n?", "\n", text))
    return "".join(letter for letter in seen if letter in _LAYOUT or unicodedata.category(letter) not in _CONTROL)


def plain_name(name: str) -> str:
    """A name as it looks: of several ways to write a letter the usual one, and nothing that cannot be seen."""
    seen = (letter for letter in unicodedata.normalize("NFKC", name) if unicodedata.category(letter) not in _INVISIBLE)
    return " ".join("".join(seen).split())


def _cleaned(clean: Callable[[str], str]) -> BeforeValidator:
    return BeforeValidator(lambda given: clean(given).strip() if isinstance(given, str) else given)


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
    """Another text for a sentence."""

    kind: Literal["edit"]
    sentence: str
    text: Text


class Delete(Record):
    """A sentence struck out; it stays in sight."""

    kind: Literal["delete"]
    sentence: str


class Restore(Record):
    """A sentence struck out is taken back in."""

    kind: Literal["restore"]
    sentence: str


class Add(Record):
    """A finding that the draft lacks."""

    kind: Literal["add"]
    text: Text
    boxes: Boxes = ()


class MoveBoxes(Record):
    """All boxes of a sentence as they shall be, in shares of the original frontal image."""

    kind: Literal["boxes"]
    sentence: str
    boxes: Boxes


class Assess(Record):
    """What is wrong with a sentence, and how much it matters; what is not given stays."""

    kind: Literal["assess"]
    sentence: str
    severity: SeverityId | None = None
    error_type: Name | None = None
    comment: Text = ""


class Remark(Record):
    """A comment on the study."""

    kind: Literal["comment"]
    text: Text


class GoTo(Record):
    """The step that the reviewer is in."""

    kind: Literal["step"]
    step: Annotated[int, Field(ge=1, le=4)]


class Mark(Record):
    """The study is reviewed, or is taken up again; or the last change is undone, or done again."""

    kind: Literal["finish", "reopen", "undo", "redo"]


Change = Annotated[
    Edit | Delete | Restore | Add | MoveBoxes | Assess | Remark | GoTo | Mark, Field(discriminator="kind")
]
change_adapter: TypeAdapter[Change] = TypeAdapter(Change)


@dataclass(frozen=True, slots=True)
class Assessment:
    """What a reviewer says of a correction (tables F.1 to F.3)."""

    severity: SeverityId | None = None
    error_type: str | None = None
    comment: str = ""


@dataclass(frozen=True, slots=True)
class ReviewedSentence:
    """A sentence of the draft, or one that was added, as it is now and as it was drafted."""

    id: str
    text: str
    boxes: tuple[Corners, ...]
    draft_text: str | None = None
    draft_boxes: tuple[Corners, ...] = ()
    deleted: bool = False
    assessment: Assessment = Assessment()

    @property
    def is_added(self) -> bool:
        """Whether the draft lacks it."""
        return self.draft_text is None

    @property
    def is_edited(self) -> bool:
        """Whether the draft has it with another text."""
        return not self.is_added and self.text != self.draft_text

    @property
    def has_moved_boxes(self) -> bool:
        """Whether the draft has it with other boxes."""
        return not self.is_added and self.boxes != self.draft_boxes

    @property
    def is_correction(self) -> bool:
        """Whether the draft was wrong here: a sentence deleted, edited, with other boxes, or added and still there."""
        return not self.deleted if self.is_added else self.deleted or self.is_edited or self.has_moved_boxes


@dataclass(frozen=True, slots=True)
class State:
    """A draft as a reviewer has left it."""

    sentences: tuple[ReviewedSentence, ...]
    step: int = 1
    done: bool = False
    comment: str = ""

    @property
    def corrections(self) -> tuple[ReviewedSentence, ...]:
        """The sentences that are corrections, in their order."""
        return tuple(sentence for sentence in self.sentences if sentence.is_correction)


def drafted(sentences: Sequence[tuple[str, Sequence[Corners]]]) -> State:
    """The state that every review begins with.

    Args:
        sentences: texts of the draft with their boxes.
    """
    return State(
        tuple(
            ReviewedSentence(f"d{index}", text, tuple(boxes), draft_text=text, draft_boxes=tuple(boxes))
            for index, (text, boxes) in enumerate(sentences)
        )
    )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Where a review of a draft stands.

    Attributes:
        state: the draft after all changes.
        version: how many changes there were, undoing and doing again among them.
        visited: the steps that the reviewer has been in, undone or not.
        can_undo, can_redo: whether there is a change to undo, or one undone to do again.
    """

    state: State
    version: int = 0
    visited: frozenset[int] = frozenset({1})
    can_undo: bool = False
    can_redo: bool = False


class UnfinishedError(InputError):
    """A study was to be finished, and something of its review is still to be done."""


class History:
    """The changes of one reviewer to one draft, in order, and the state that they make.

    Undoing is a change as well: nothing is ever taken out of the history.
    """

    def __init__(self, draft: State) -> None:
        """Begin with a draft as it is."""
        self._states = [draft]
        self._undone: list[State] = []
        self._version = 0
        self._visited = frozenset({draft.step})

    @property
    def now(self) -> Snapshot:
        """After all changes so far."""
        can_undo, can_redo = len(self._states) > 1, bool(self._undone)
        return Snapshot(self._states[-1], self._version, self._visited, can_undo, can_redo)

    def check(self, change: Change) -> None:
        """Say whether a change is possible.

        Raises:
            InputError: it is not, and why.
            UnfinishedError: it is to finish a study that was not gone through.
        """
        state = self._applied(change)
        if change.kind == "finish":
            _check_finished(state, self._visited)

    def add(self, change: Change) -> None:
        """Apply a change.

        Raises:
            InputError: it is not possible; nothing is changed.
        """
        state = self._applied(change)
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

    def _applied(self, change: Change) -> State:
        if change.kind == "undo":
            if len(self._states) == 1:
                raise InputError("there is nothing to undo")
            return self._states[-2]
        if change.kind == "redo":
            if not self._undone:
                raise InputError("there is nothing to do again")
            return self._undone[-1]
        return _after(self._states[-1], change, self._version)


def _after(state: State, change: Change, version: int) -> State:
    """The state after a change that is neither undoing nor redoing; `version` makes the id of an added sentence."""
    if isinstance(change, Mark):
        return _marked(state, change)
    if state.done:
        raise InputError("this review is finished; reopen it to go on")
    if isinstance(change, Remark):
        _check_length(change.text, "comment", LONGEST_COMMENT)
        return replace(state, comment=change.text)
    if isinstance(change, GoTo):
        return replace(state, step=change.step)
    if isinstance(change, Add):
        _check_sentence(change.text)
        return replace(state, sentences=(*state.sentences, ReviewedSentence(f"a{version}", change.text, change.boxes)))
    places = [place for place, sentence in enumerate(state.sentences) if sentence.id == change.sentence]
    if not places:
        raise InputError("there is no such sentence", field="sentence")
    sentences = list(state.sentences)
    sentences[places[0]] = _corrected(sentences[places[0]], change)
    return replace(state, sentences=tuple(sentences))


def _marked(state: State, change: Mark) -> State:
    finishes = change.kind == "finish"
    if state.done == finishes:
        raise InputError(f"this review is {'finished already' if finishes else 'not finished'}")
    return replace(state, done=finishes)


def _corrected(sentence: ReviewedSentence, change: Edit | Delete | Restore | MoveBoxes | Assess) -> ReviewedSentence:
    match change:
        case Restore():
            return replace(sentence, deleted=False)
        case Delete():
            return replace(sentence, deleted=True)
        case Assess():
            _check_length(change.comment, "comment", LONGEST_COMMENT)
            given = change.model_dump(include=change.model_fields_set - {"kind", "sentence"})
            return replace(sentence, assessment=replace(sentence.assessment, **given))
    if sentence.deleted:
        raise InputError("this sentence is deleted; restore it to change it", field="sentence")
    if isinstance(change, Edit):
        _check_sentence(change.text, instead_of=sentence.text)
        # What cannot be typed cannot have been corrected.
        if sentence.draft_text is not None and change.text == readable(sentence.draft_text).strip():
            return replace(sentence, text=sentence.draft_text)
        return replace(sentence, text=change.text)
    return replace(sentence, boxes=change.boxes)


def _check_sentence(text: str, instead_of: str = "") -> None:
    """A sentence that is too long may become shorter."""
    if not text:
        raise InputError("a sentence needs words; delete it if it is false")
    _check_length(text, "sentence", max(LONGEST_SENTENCE, len(instead_of)))


def _check_length(text: str, what: str, most: int) -> None:
    if len(text) > most:
        raise InputError(f"a {what} has at most {most:,} characters, and this one has {len(text):,}")


def _check_finished(state: State, visited: frozenset[int]) -> None:
    if skipped := [f"{step.number} ({step.name})" for step in _NEEDED_STEPS if step.number not in visited]:
        which = f"step{'s' if len(skipped) > 1 else ''} {' and '.join(skipped)}"
        raise UnfinishedError(f"a study is finished after all steps: {which} {_has(skipped)} not been opened yet")
    unrated = [one for one in state.corrections if one.assessment.severity is None]
    if unrated:
        what = f"{len(unrated)} correction{'s' if len(unrated) > 1 else ''}"
        raise UnfinishedError(f"{what} {_has(unrated)} no severity yet; say it in step 4 (Assess)")


def _has(things: Sequence[object]) -> str:
    return "has" if len(things) == 1 else "have"


def as_box(corners: Corners) -> Box:
    """Corners as a record of a report."""
    x_min, y_min, x_max, y_max = corners
    return Box(x_min=x_min, y_min=y_min, x_max=x_max, y_max=y_max)
