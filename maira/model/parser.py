"""The model's text -> sentences with boxes, whatever the text looks like; and back.

A grounded report reads `<obj>text<box><x10><y20><x30><y40></box></obj><obj>text without box</obj>`, boxes relative to
the model's crop in bins of 0.01 (paper 004, figure 1).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from radfact.errors import InputError
from radfact.records import Box, Record, Report, Sentence

BINS = 100
"""Bins of a coordinate, on each axis."""
FORMAT_TOKEN = re.compile(r"(</?obj>|</?box>|<[xy][0-9]+>|</?s>|<unk>|<pad>|<image>)")
"""The format's tokens, and those that say nothing, as they stand in a text."""
WORD = re.compile(r"\w")
"""What a sentence has at least one of."""

IrregularityKind = Literal[
    "cut_off",  # the text ends within an object, a box or a token, or generation stopped at its limit
    "nested",  # an object begins before this one has ended
    "outside_object",  # text of a grounded report that stands in no object
    "empty_object",  # an object without words; its boxes have no sentence to belong to and are left out
    "text_after_box",  # text of the object follows a box; it is joined to that before it
    "malformed_box",  # not exactly x, y, x, y in [0, 99]; left out
    "unclosed_box",  # the four coordinates are there, the end is not; kept
    "swapped_corners",  # put in order
    "repeated_box",  # the same box again in one sentence; left out
    "stray_token",  # a token where it means nothing; left out
    "repeated_sentence",  # the same words as an earlier sentence; kept
    "repetition_cut",  # further copies of this sentence followed, word for word, and were cut (maira.model.repetition)
]


class Irregularity(Record):
    """Something in the model's text that is not of the form; `index` is its sentence, None where it has none."""

    index: int | None
    kind: IrregularityKind


@dataclass(frozen=True, slots=True)
class ParsedReport:
    """What the model said.

    Attributes:
        sentences: in the order of the text, boxes in CROP coordinates (the middle of their bins).
        irregularities: each kind at most once a sentence, in the order of the sentences.
        text: the model's text without control tokens, as prose.
        is_narrative: the text has neither objects nor boxes; the sentences are then split off at sentence ends.
    """

    sentences: list[Sentence]
    irregularities: list[Irregularity]
    text: str
    is_narrative: bool

    @property
    def report(self) -> Report:
        """The sentences of a grounded report, the prose of a narrative."""
        return self.text if self.is_narrative else self.sentences


def parse_report(text: str, *, cut_off: bool = False) -> ParsedReport:
    """Read the model's text; never raises, and every word of the text is in a sentence of the result.

    Args:
        text: the completion, with or without `<s>`, `</s>` and padding.
        cut_off: whether generation is known to have stopped at its limit.
    """
    # A lone surrogate (bytes of a token cut apart) is no text that a record or a file can hold.
    text = text.encode("utf-8", "replace").decode()
    fragment = _FRAGMENT.search(text)
    parser = _Parser()
    for piece in FORMAT_TOKEN.split(text[: fragment.start()] if fragment else text):
        parser.feed(piece)
    return parser.finish(in_token=fragment is not None, stopped=cut_off)


def split_sentences(text: str) -> list[str]:
    """A narrative, split after full stops, question and exclamation marks and at empty lines."""
    return _SENTENCE_END.split(text)


def render_report(sentences: Iterable[Sentence]) -> str:
    """The text that stands for these sentences, as the model is trained to write it.

    Args:
        sentences: with boxes in CROP coordinates; boxes that fall into the same bins are written once.

    Raises:
        InputError: a sentence contains one of the format's own tokens, or nothing but punctuation.
    """
    rendered = []
    for sentence in sentences:
        if not WORD.search(sentence.text) or FORMAT_TOKEN.search(sentence.text):
            raise InputError(f"cannot be written as a grounded sentence: {sentence.text!r:.80}", field="text")
        bins = dict.fromkeys(tuple(map(_bin, box.as_tuple())) for box in sentence.boxes or ())
        boxes = (f"<box><x{x_min}><y{y_min}><x{x_max}><y{y_max}></box>" for x_min, y_min, x_max, y_max in bins)
        rendered.append(f"<obj>{sentence.text}{''.join(boxes)}</obj>")
    return "".join(rendered)


_COORDINATE = re.compile(r"<([xy])([0-9]+)>")
_FRAGMENT = re.compile(r"<(?:/?(?:o|ob|obj|b|bo|box)|/|[xy][0-9]*)\Z")
_PADDING = frozenset({"<s>", "</s>", "<unk>", "<pad>"})
# The full stop of an abbreviation or of a list's number is mostly followed by a small letter or a digit.
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?![a-z0-9])|\n\s*\n")

_Bins = tuple[int, int, int, int]


def _bin(coordinate: float) -> int:
    # 100 * 0.29 is a little less than 29 in floating point.
    return min(BINS - 1, int(round(BINS * coordinate, 9)))


def _decode(bins: _Bins) -> Box:
    x_min, y_min, x_max, y_max = ((value + 0.5) / BINS for value in bins)
    return Box(x_min=x_min, y_min=y_min, x_max=x_max, y_max=y_max)


@dataclass(slots=True)
class _Open:
    """A stretch of text that is still being read: an object, or what stands between two objects."""

    is_object: bool = False
    pieces: list[str] = field(default_factory=list)
    boxes: list[_Bins] = field(default_factory=list)
    kinds: list[IrregularityKind] = field(default_factory=list)


class _Parser:
    def __init__(self) -> None:
        self.sentences: list[Sentence] = []
        self.noted: list[tuple[int | None, IrregularityKind]] = []
        self.prose: list[str] = []
        self.any_object = False
        self.open = _Open()
        self.corners: list[tuple[str, int]] | None = None  # of the box being read

    def feed(self, piece: str) -> None:
        """One token, or the text between two."""
        if piece in _PADDING or not piece.strip():
            return
        if piece == "<obj>":
            self.any_object = True
            self.end_box()
            if self.open.is_object:
                self.open.kinds.append("nested")
            self.end_stretch(_Open(is_object=True))
        elif piece == "</obj>":
            self.end_box()
            if self.open.is_object:
                self.end_stretch(_Open())
            else:
                self.open.kinds.append("stray_token")
        elif piece == "<box>":
            self.end_box()
            self.corners = []
        elif piece == "</box>":
            if self.corners is None:
                self.open.kinds.append("stray_token")
            else:
                self.end_box(closed=True)
        elif coordinate := _COORDINATE.fullmatch(piece):
            if self.corners is None:
                self.open.kinds.append("stray_token")
            else:
                # int() refuses a number of thousands of digits, which a looping model does write.
                self.corners.append((coordinate[1], int(coordinate[2]) if len(coordinate[2]) < 3 else BINS))
        elif FORMAT_TOKEN.fullmatch(piece):
            self.open.kinds.append("stray_token")
        else:
            self.add_text(piece.strip())

    def finish(self, *, in_token: bool, stopped: bool) -> ParsedReport:
        cut_off = in_token or self.open.is_object or self.corners is not None
        if self.corners is not None and len(self.corners) < 4:
            self.corners = None
        self.end_box()
        if cut_off or (stopped and self.open.pieces):
            self.open.kinds.append("cut_off")
        elif stopped:
            self.noted.append((len(self.sentences) - 1 if self.sentences else None, "cut_off"))
        self.end_stretch(_Open())
        is_narrative = not self.any_object and all(sentence.boxes is None for sentence in self.sentences)
        if is_narrative:
            self.noted = [note for note in self.noted if note[1] != "outside_object"]
        self.note_repetitions()
        self.noted.sort(key=lambda note: len(self.sentences) if note[0] is None else note[0])
        irregularities = [Irregularity(index=index, kind=kind) for index, kind in dict.fromkeys(self.noted)]
        return ParsedReport(self.sentences, irregularities, " ".join(self.prose), is_narrative)

    def add_text(self, text: str) -> None:
        self.end_box()
        self.prose.append(text)
        if self.open.boxes:
            if self.open.is_object:
                self.open.kinds.append("text_after_box")
            elif WORD.search(text):
                self.end_stretch(_Open())
        self.open.pieces.append(text)

    def end_box(self, *, closed: bool = False) -> None:
        """Take the box that is being read, if there is one, into the open stretch."""
        if self.corners is None:
            return
        axes, values = [axis for axis, _ in self.corners], [value for _, value in self.corners]
        self.corners = None
        if axes != ["x", "y", "x", "y"] or max(values) >= BINS:
            self.open.kinds.append("malformed_box")
            return
        if not closed:
            self.open.kinds.append("unclosed_box")
        x, y, other_x, other_y = values
        if x > other_x or y > other_y:
            self.open.kinds.append("swapped_corners")
        box = (min(x, other_x), min(y, other_y), max(x, other_x), max(y, other_y))
        if box in self.open.boxes:
            self.open.kinds.append("repeated_box")
        else:
            self.open.boxes.append(box)

    def end_stretch(self, following: _Open) -> None:
        """Turn the open stretch into sentences and go on with `following`."""
        ended, self.open = self.open, following
        text = " ".join(ended.pieces)
        texts = [part for part in ([text] if ended.is_object else split_sentences(text)) if WORD.search(part)]
        if not texts:
            if ended.is_object and "cut_off" not in ended.kinds:
                ended.kinds.append("empty_object")
            elif ended.boxes:
                ended.kinds.append("stray_token")
            elif ended.pieces and not ended.is_object:
                ended.kinds.append("outside_object")
            self.noted += [(None, kind) for kind in ended.kinds]
            return
        first = len(self.sentences)
        self.sentences += [Sentence(text=part) for part in texts]
        last = len(self.sentences) - 1
        if ended.boxes:
            self.sentences[last] = Sentence(text=texts[-1], boxes=tuple(_decode(box) for box in ended.boxes))
        if not ended.is_object:
            self.noted += [(index, "outside_object") for index in range(first, last + 1)]
        self.noted += [(last, kind) for kind in ended.kinds]

    def note_repetitions(self) -> None:
        seen: set[str] = set()
        for index, sentence in enumerate(self.sentences):
            words = " ".join(sentence.text.casefold().split())
            if words in seen:
                self.noted.append((index, "repeated_sentence"))
            seen.add(words)
