"""Parser of the model's text into sentences with boxes, for any text, and the renderer of its targets.

A grounded report reads `<obj>text<box><x10><y20><x30><y40></box></obj><obj>text without box</obj>`, boxes relative to
the model's crop in bins of 0.01 (MAIRA-2, figure 1).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from radfact.errors import InputError
from radfact.records import Box, Record, Sentence

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
    """A parsed response: sentences with boxes in CROP coordinates (centers of bins), irregularities, and prose."""

    sentences: list[Sentence]
    irregularities: list[Irregularity]
    text: str
    is_narrative: bool


def parse_report(text: str, *, cut_off: bool = False, expects_objects: bool = False) -> ParsedReport:
    """Parse the model's text into sentences with all of its words; `expects_objects` makes a narrative irregular."""
    # No record or file can hold a lone surrogate (bytes of a token that was cut apart).
    text = text.encode("utf-8", "replace").decode()
    fragment = _FRAGMENT.search(text)
    spans = _read_spans(text[: fragment.start()] if fragment else text)
    last = spans[-1]
    is_open = fragment is not None or last.is_object or last.corners is not None
    if last.corners is not None and len(last.corners) < 4:
        last.corners = None
    last.end_box()
    if is_open or (cut_off and last.pieces):
        last.kinds.append("cut_off")
    sentences: list[Sentence] = []
    notes: _Notes = []
    for span in spans:
        if span is last and cut_off and "cut_off" not in span.kinds:
            notes.append((len(sentences) - 1 if sentences else None, "cut_off"))
        joined = " ".join(span.pieces)
        texts = [part for part in ([joined] if span.is_object else split_sentences(joined)) if WORD.search(part)]
        if not texts:
            notes += [(None, kind) for kind in (*span.kinds, *span.kind_without_words())]
            continue
        if not span.is_object:
            notes += [(len(sentences) + index, "outside_object") for index in range(len(texts))]
        sentences += [Sentence(text=part) for part in texts]
        boxes = tuple(
            Box(x_min=corners[0], y_min=corners[1], x_max=corners[2], y_max=corners[3])
            for corners in ([(value + 0.5) / BINS for value in box] for box in span.boxes)
        )
        sentences[-1] = Sentence(text=texts[-1], boxes=boxes or None)
        notes += [(len(sentences) - 1, kind) for kind in span.kinds]
    is_narrative = not any(span.is_object for span in spans) and all(sentence.boxes is None for sentence in sentences)
    if is_narrative and not expects_objects:
        notes = [note for note in notes if note[1] != "outside_object"]
    seen: set[str] = set()
    for index, sentence in enumerate(sentences):
        words = " ".join(sentence.text.casefold().split())
        if words in seen:
            notes.append((index, "repeated_sentence"))
        seen.add(words)
    prose = " ".join(piece for span in spans for piece in span.pieces)
    return ParsedReport(sentences, _in_order(notes, len(sentences)), prose, is_narrative)


def split_sentences(text: str) -> list[str]:
    """Split a narrative after periods, question and exclamation marks, and at empty lines."""
    return _SENTENCE_END.split(text)


def render_report(sentences: Iterable[Sentence]) -> str:
    """Render sentences with boxes in CROP coordinates as the text that the model is trained to write."""
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


def cut_repetitions(parsed: ParsedReport) -> ParsedReport:
    """Remove all but the first `MAX_COPIES` copies of every sentence, and note "repetition_cut" on the last of them."""
    counts: Counter[str] = Counter()
    kept: list[Sentence] = []
    new_index: dict[int | None, int | None] = {None: None}
    last: dict[str, int] = {}
    for index, sentence in enumerate(parsed.sentences):
        counts[sentence.text] += 1
        new_index[index] = len(kept) if counts[sentence.text] <= MAX_COPIES else None
        if counts[sentence.text] <= MAX_COPIES:
            last[sentence.text] = len(kept)
            kept.append(sentence)
    if len(kept) == len(parsed.sentences):
        return parsed
    notes = [
        (new_index[note.index], note.kind)
        for note in parsed.irregularities
        if note.index is None or new_index[note.index] is not None or note.kind != "repeated_sentence"
    ]
    notes += [(last[text], "repetition_cut") for text, copies in counts.items() if copies > MAX_COPIES]
    text = " ".join(sentence.text for sentence in kept)
    return replace(parsed, sentences=kept, irregularities=_in_order(notes, len(kept)), text=text)


def is_loop(narrative: str, continued: str) -> bool:
    """Return whether the last sentence is complete, as `continued` shows, and occurs more than `MAX_COPIES` times."""
    last = split_sentences(narrative.strip())[-1].strip()
    return bool(last) and [part.strip() for part in split_sentences(continued.strip())].count(last) > MAX_COPIES


_COORDINATE = re.compile(r"<([xy])([0-9]+)>")
_FRAGMENT = re.compile(r"<(?:/?(?:o|ob|obj|b|bo|box)|/|[xy][0-9]*)\Z")
_PADDING = frozenset({"<s>", "</s>", "<unk>", "<pad>"})
# The period of an abbreviation or of a list's number is mostly followed by a lowercase letter or a digit.
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?![a-z0-9])|\n\s*\n")

_Notes = list[tuple[int | None, IrregularityKind]]


def _bin(coordinate: float) -> int:
    # In floating point, 100 * 0.29 is slightly less than 29.
    return min(BINS - 1, int(round(BINS * coordinate, 9)))


def _in_order(notes: _Notes, count: int) -> list[Irregularity]:
    """Return notes on `count` sentences in their order, without duplicates."""
    notes = sorted(notes, key=lambda note: count if note[0] is None else note[0])
    return [Irregularity(index=index, kind=kind) for index, kind in dict.fromkeys(notes)]


@dataclass(slots=True)
class _Span:
    """A span of text: an object, or the text between two objects up to words that follow a box."""

    is_object: bool = False
    pieces: list[str] = field(default_factory=list)
    boxes: list[tuple[int, ...]] = field(default_factory=list)
    kinds: list[IrregularityKind] = field(default_factory=list)
    corners: list[tuple[str, int]] | None = None  # of the box being parsed

    def end_box(self, *, closed: bool = False) -> None:
        """Add the box that is being parsed, if any."""
        if self.corners is None:
            return
        axes, values = [axis for axis, _ in self.corners], [value for _, value in self.corners]
        self.corners = None
        if axes != ["x", "y", "x", "y"] or max(values) >= BINS:
            self.kinds.append("malformed_box")
            return
        x, y = sorted(values[::2]), sorted(values[1::2])
        box = (x[0], y[0], x[1], y[1])
        if not closed:
            self.kinds.append("unclosed_box")
        if list(box) != values:
            self.kinds.append("swapped_corners")
        if box in self.boxes:
            self.kinds.append("repeated_box")
        else:
            self.boxes.append(box)

    def kind_without_words(self) -> list[IrregularityKind]:
        """Return what a span without words is, if it is an irregularity."""
        if self.is_object and "cut_off" not in self.kinds:
            return ["empty_object"]
        if self.boxes:
            return ["stray_token"]
        return ["outside_object"] if self.pieces and not self.is_object else []


def _read_spans(text: str) -> list[_Span]:
    spans = [_Span()]
    for piece in map(str.strip, FORMAT_TOKEN.split(text)):
        span, coordinate = spans[-1], _COORDINATE.fullmatch(piece)
        if not piece or piece in _PADDING:
            continue
        if coordinate and span.corners is not None:
            # int() refuses a number of thousands of digits, which a looping model writes.
            span.corners.append((coordinate[1], int(coordinate[2]) if len(coordinate[2]) < 3 else BINS))
            continue
        if piece == "</box>" and span.corners is not None:
            span.end_box(closed=True)
            continue
        is_token = FORMAT_TOKEN.fullmatch(piece) is not None
        if not is_token or piece in ("<box>", "<obj>", "</obj>"):
            span.end_box()
        if piece == "<box>":
            span.corners = []
        elif piece == "<obj>":
            if span.is_object:
                span.kinds.append("nested")
            spans.append(_Span(is_object=True))
        elif piece == "</obj>" and span.is_object:
            spans.append(_Span())
        elif is_token:
            span.kinds.append("stray_token")
        else:
            if span.boxes and span.is_object:
                span.kinds.append("text_after_box")
            elif span.boxes and WORD.search(piece):
                spans.append(span := _Span())
            span.pieces.append(piece)
    return spans
