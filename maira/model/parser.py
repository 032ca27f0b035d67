"""Parser of the model's text into sentences with boxes, for any text, and the renderer of its targets.

A grounded report reads `<obj>text<box><x10><y20><x30><y40></box></obj><obj>text without box</obj>`, boxes relative to
the model's crop in bins of 0.01.

Source: MAIRA-2, figure 1.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from radfact.errors import InputError
from radfact.records import Box, Record, Report, Sentence

BINS = 100
"""Bins of a coordinate."""
FORMAT_TOKEN = re.compile(r"(</?obj>|</?box>|<[xy][0-9]+>|</?s>|<unk>|<pad>|<image>)")
"""Tokens of the format and control tokens, as text."""
WORD = re.compile(r"\w")
"""Every sentence has at least one match."""
MAX_COPIES = 2
"""Most verbatim copies of a sentence in a report; with one more, the model is looping."""

IrregularityKind = Literal[
    "cut_off",  # the text ends within an object, a box or a token, or generation stopped at its limit
    "nested",  # an object begins before the previous one has ended
    "outside_object",  # text of a grounded report outside objects
    "empty_object",  # an object without words; its boxes belong to no sentence and are removed
    "text_after_box",  # text of the object follows a box; it is joined to the text before the box
    "malformed_box",  # not exactly x, y, x, y in [0, 99]; removed
    "unclosed_box",  # four coordinates without the end of the box; kept
    "swapped_corners",  # corners in the wrong order; swapped back
    "repeated_box",  # the same box again in one sentence; removed
    "stray_token",  # a token of the format at a place without meaning; removed
    "repeated_sentence",  # the same words as an earlier sentence; kept
    "repetition_cut",  # further verbatim copies of this sentence were removed
]


class Irregularity(Record):
    """A deviation of the model's text from the format; `index` is None if it belongs to no sentence."""

    index: int | None
    kind: IrregularityKind


@dataclass(frozen=True, slots=True)
class ParsedReport:
    """A parsed response of the model: sentences in their order, with boxes in CROP coordinates (centers of their bins).

    Irregularities are in the order of the sentences, each kind at most once per sentence. `text` is prose, without
    control tokens. A narrative has neither objects nor boxes; it is split at sentence ends.
    """

    sentences: list[Sentence]
    irregularities: list[Irregularity]
    text: str
    is_narrative: bool

    @property
    def report(self) -> Report:
        """The sentences of a grounded report, or the prose of a narrative."""
        return self.text if self.is_narrative else self.sentences


def parse_report(text: str, *, cut_off: bool = False) -> ParsedReport:
    """Parse the model's text; never raises, and every word of the text is in a sentence of the result.

    The text may have `<s>`, `</s>` and padding; `cut_off` tells that generation stopped at its limit.
    """
    # No record or file can hold a lone surrogate (bytes of a token that was cut apart).
    text = text.encode("utf-8", "replace").decode()
    fragment = _FRAGMENT.search(text)
    parser = _Parser()
    for piece in FORMAT_TOKEN.split(text[: fragment.start()] if fragment else text):
        if piece.strip() and piece not in _PADDING:
            parser.feed(piece.strip())
    return parser.finish(in_token=fragment is not None, reached_limit=cut_off)


def split_sentences(text: str) -> list[str]:
    """Split a narrative after periods, question and exclamation marks, and at empty lines."""
    return _SENTENCE_END.split(text)


def render_report(sentences: Iterable[Sentence]) -> str:
    """Render sentences with boxes in CROP coordinates as the text that the model is trained to write.

    Boxes in the same bins are written once. A text with a token of the format, or without words, is an InputError.
    """
    rendered = []
    for sentence in sentences:
        token = FORMAT_TOKEN.search(sentence.text)
        if token is not None or not WORD.search(sentence.text):
            found = f"the token '{token[0]}'" if token is not None else "no words"
            raise InputError(f"expected words without tokens of the format, found {found}", field="text")
        bins = dict.fromkeys(tuple(map(_bin, box.as_tuple())) for box in sentence.boxes or ())
        boxes = (f"<box><x{x_min}><y{y_min}><x{x_max}><y{y_max}></box>" for x_min, y_min, x_max, y_max in bins)
        rendered.append(f"<obj>{sentence.text}{''.join(boxes)}</obj>")
    return "".join(rendered)


def cut_repetitions(parsed: ParsedReport, max_copies: int = MAX_COPIES) -> ParsedReport:
    """Remove all but the first `max_copies` copies of every sentence, and note "repetition_cut" on the last of them.

    A sentence repeated verbatim once more, with or without boxes, is a loop of the model and not a finding.
    Irregularities of a removed sentence are attributed to no sentence.
    """
    counts: Counter[str] = Counter()
    kept: list[Sentence] = []
    new_index: dict[int | None, int | None] = {None: None}
    last: dict[str, int] = {}
    for index, sentence in enumerate(parsed.sentences):
        counts[sentence.text] += 1
        new_index[index] = len(kept) if counts[sentence.text] <= max_copies else None
        if counts[sentence.text] <= max_copies:
            last[sentence.text] = len(kept)
            kept.append(sentence)
    if len(kept) == len(parsed.sentences):
        return parsed
    notes = [
        (new_index[note.index], note.kind)
        for note in parsed.irregularities
        if note.index is None or new_index[note.index] is not None or note.kind != "repeated_sentence"
    ]
    notes += [(last[text], "repetition_cut") for text, copies in counts.items() if copies > max_copies]
    text = " ".join(sentence.text for sentence in kept)
    return replace(parsed, sentences=kept, irregularities=_in_order(notes, len(kept)), text=text)


def is_loop(narrative: str, continued: str, max_copies: int = MAX_COPIES) -> bool:
    """Return whether the last sentence of a narrative is complete and occurs more than `max_copies` times.

    `continued` is the narrative with the next token, which shows that the period of "1.5" ends no sentence.
    """
    last = split_sentences(narrative.strip())[-1].strip()
    return bool(last) and [part.strip() for part in split_sentences(continued.strip())].count(last) > max_copies


_COORDINATE = re.compile(r"<([xy])([0-9]+)>")
_FRAGMENT = re.compile(r"<(?:/?(?:o|ob|obj|b|bo|box)|/|[xy][0-9]*)\Z")
_PADDING = frozenset({"<s>", "</s>", "<unk>", "<pad>"})
# The period of an abbreviation or of a list's number is mostly followed by a lowercase letter or a digit.
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?![a-z0-9])|\n\s*\n")

_Bins = tuple[int, ...]
_Notes = list[tuple[int | None, IrregularityKind]]


def _bin(coordinate: float) -> int:
    # In floating point, 100 * 0.29 is slightly less than 29.
    return min(BINS - 1, int(round(BINS * coordinate, 9)))


def _decode(bins: _Bins) -> Box:
    x_min, y_min, x_max, y_max = ((value + 0.5) / BINS for value in bins)
    return Box(x_min=x_min, y_min=y_min, x_max=x_max, y_max=y_max)


def _in_order(notes: _Notes, count: int) -> list[Irregularity]:
    """Return notes on `count` sentences in their order, without duplicates."""
    notes = sorted(notes, key=lambda note: count if note[0] is None else note[0])
    return [Irregularity(index=index, kind=kind) for index, kind in dict.fromkeys(notes)]


@dataclass(slots=True)
class _Span:
    """A span of text that is being parsed: an object, or the text between two objects."""

    is_object: bool = False
    pieces: list[str] = field(default_factory=list)
    boxes: list[_Bins] = field(default_factory=list)
    kinds: list[IrregularityKind] = field(default_factory=list)


@dataclass(slots=True)
class _Parser:
    sentences: list[Sentence] = field(default_factory=list)
    notes: _Notes = field(default_factory=list)
    prose: list[str] = field(default_factory=list)
    has_objects: bool = False
    span: _Span = field(default_factory=_Span)
    corners: list[tuple[str, int]] | None = None  # of the box being parsed

    def feed(self, piece: str) -> None:
        """Parse one token, or the text between two tokens."""
        coordinate = _COORDINATE.fullmatch(piece)
        if coordinate and self.corners is not None:
            # int() refuses a number of thousands of digits, which a looping model writes.
            self.corners.append((coordinate[1], int(coordinate[2]) if len(coordinate[2]) < 3 else BINS))
        elif piece == "</box>" and self.corners is not None:
            self.end_box(closed=True)
        elif piece == "<box>":
            self.end_box()
            self.corners = []
        elif piece == "<obj>":
            self.has_objects = True
            self.end_box()
            if self.span.is_object:
                self.span.kinds.append("nested")
            self.end_span(_Span(is_object=True))
        elif piece == "</obj>":
            self.end_box()
            if self.span.is_object:
                self.end_span(_Span())
            else:
                self.span.kinds.append("stray_token")
        elif FORMAT_TOKEN.fullmatch(piece):
            self.span.kinds.append("stray_token")
        else:
            self.add_text(piece)

    def finish(self, *, in_token: bool, reached_limit: bool) -> ParsedReport:
        cut_off = in_token or self.span.is_object or self.corners is not None
        if self.corners is not None and len(self.corners) < 4:
            self.corners = None
        self.end_box()
        if cut_off or (reached_limit and self.span.pieces):
            self.span.kinds.append("cut_off")
        elif reached_limit:
            self.notes.append((len(self.sentences) - 1 if self.sentences else None, "cut_off"))
        self.end_span(_Span())
        is_narrative = not self.has_objects and all(sentence.boxes is None for sentence in self.sentences)
        if is_narrative:
            self.notes = [note for note in self.notes if note[1] != "outside_object"]
        seen: set[str] = set()
        for index, sentence in enumerate(self.sentences):
            words = " ".join(sentence.text.casefold().split())
            if words in seen:
                self.notes.append((index, "repeated_sentence"))
            seen.add(words)
        irregularities = _in_order(self.notes, len(self.sentences))
        return ParsedReport(self.sentences, irregularities, " ".join(self.prose), is_narrative)

    def add_text(self, text: str) -> None:
        self.end_box()
        self.prose.append(text)
        if self.span.boxes and self.span.is_object:
            self.span.kinds.append("text_after_box")
        elif self.span.boxes and WORD.search(text):
            self.end_span(_Span())
        self.span.pieces.append(text)

    def end_box(self, *, closed: bool = False) -> None:
        """Add the box that is being parsed, if any, to the span."""
        if self.corners is None:
            return
        axes, values = [axis for axis, _ in self.corners], [value for _, value in self.corners]
        self.corners = None
        if axes != ["x", "y", "x", "y"] or max(values) >= BINS:
            self.span.kinds.append("malformed_box")
            return
        x, y = sorted(values[::2]), sorted(values[1::2])
        box = (x[0], y[0], x[1], y[1])
        if not closed:
            self.span.kinds.append("unclosed_box")
        if list(box) != values:
            self.span.kinds.append("swapped_corners")
        if box in self.span.boxes:
            self.span.kinds.append("repeated_box")
        else:
            self.span.boxes.append(box)

    def end_span(self, following: _Span) -> None:
        """Convert the span to sentences and continue with the next one."""
        ended, self.span = self.span, following
        text = " ".join(ended.pieces)
        texts = [part for part in ([text] if ended.is_object else split_sentences(text)) if WORD.search(part)]
        if not texts:
            if ended.is_object and "cut_off" not in ended.kinds:
                ended.kinds.append("empty_object")
            elif ended.boxes:
                ended.kinds.append("stray_token")
            elif ended.pieces and not ended.is_object:
                ended.kinds.append("outside_object")
            self.notes += [(None, kind) for kind in ended.kinds]
            return
        if not ended.is_object:
            self.notes += [(len(self.sentences) + index, "outside_object") for index in range(len(texts))]
        self.sentences += [Sentence(text=part) for part in texts[:-1]]
        self.sentences.append(Sentence(text=texts[-1], boxes=tuple(map(_decode, ended.boxes)) or None))
        self.notes += [(len(self.sentences) - 1, kind) for kind in ended.kinds]
