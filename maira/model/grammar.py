"""Grammar of a grounded report over token ids: the tokens that may come next, with one state per sequence.

It allows exactly the texts that `maira.model.parser` parses without an irregularity of form, up to the limit of boxes,
and closes everything before the token limit. Plain Python and numpy, so that every engine can use it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from maira.model.parser import BINS, FORMAT_TOKEN, MAX_COPIES, WORD
from maira.model.tokens import ADDED_TOKENS, BOX, BOX_END, OBJECT, OBJECT_END

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MAX_BOXES = 16
"""Maximum boxes per sentence."""
# The end of a text that may become a token of the format, spelled out in letters.
_SPELLED = re.compile(r"<[/a-z0-9]*\Z")
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


class Allow(IntEnum):
    """Rows of `Grammar.allowed`; rows by the smallest value of a coordinate follow, x then y."""

    ANYTHING = 0  # the sequence has ended
    END = 1
    BETWEEN = 2  # an object, white space or the end
    NO_OBJECT = 3  # white space or the end
    FIRST_WORDS = 4  # text
    WORD = 5  # a token with a word
    TEXT = 6  # text, a box or the object's end
    NO_BOX = 7  # text or the object's end
    CLOSE = 8  # the object's end
    AFTER_BOX = 9  # a box, white space or the object's end
    LAST_BOX = 10  # white space or the object's end
    BOX_CLOSE = 11  # the box's end
    X = 12
    Y = 12 + BINS


class Grammar:
    """The grammar over the token ids of a tokenizer with MAIRA-2's tokens; stateless, for any number of sequences."""

    # `ends` are ids that end a response in addition to the tokenizer's. `allowed` (rows of `Allow`, ids) tells whether
    # an id may come next; `texts` has the text of every id ("" of control tokens), `ids` those of the format's tokens.

    def __init__(self, tokenizer: PreTrainedTokenizerBase, ends: int | Iterable[int] | None = None) -> None:
        self.decode, known = tokenizer.decode, tokenizer.get_vocab()
        self.ids = ids = {token: known[token] for token in ADDED_TOKENS}
        self.ends = end_ids(tokenizer, ends)
        silent = self.ends.union(ids.values(), tokenizer.all_special_ids)
        silent |= {index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
        # After another token, since a tokenizer may drop the space before a text's first token.
        pairs = [[ids[OBJECT], index] for index in range(len(tokenizer))]
        decoded = tokenizer.batch_decode(pairs, clean_up_tokenization_spaces=False)
        self.texts = texts = tuple("" if i in silent else text.removeprefix(OBJECT) for i, text in enumerate(decoded))
        # With byte fallback, a byte that fits no character also spoils its neighbors.
        bytes_ = frozenset(index for token, index in known.items() if _BYTE.fullmatch(token))
        # Ids whose text has a word, whatever their neighbors, and ids of which only several are a character.
        self.words = frozenset(i for i, text in enumerate(texts) if WORD.search(text)) - bytes_
        self.parts = bytes_.union(i for i, text in enumerate(texts) if "\N{REPLACEMENT CHARACTER}" in text)
        self.angled = {i for i, text in enumerate(texts) if "<" in text}
        self.closing = {i: text for i, text in enumerate(texts) if ">" in text}
        self.axes = tuple([ids[f"<{axis}{value}>"] for value in range(BINS)] for axis in "xy")
        self.value = {index: value for axis in self.axes for value, index in enumerate(axis)}
        plain = [i for i, text in enumerate(texts) if text and not FORMAT_TOKEN.search(text)]
        space = [i for i in plain if texts[i].isspace()]
        box, close = ids[BOX], ids[OBJECT_END]
        rows = {
            Allow.END: [*self.ends],
            Allow.BETWEEN: [ids[OBJECT], *space, *self.ends],
            Allow.NO_OBJECT: [*space, *self.ends],
            Allow.FIRST_WORDS: plain,
            Allow.WORD: [i for i in plain if i in self.words - self.angled - self.closing.keys()],
            Allow.TEXT: [*plain, box, close],
            Allow.NO_BOX: [*plain, close],
            Allow.CLOSE: [close],
            Allow.AFTER_BOX: [*space, box, close],
            Allow.LAST_BOX: [*space, close],
            Allow.BOX_CLOSE: [ids[BOX_END]],
        }
        self.allowed: NDArray[np.bool_] = np.zeros((Allow.Y + BINS, len(texts)), bool)
        self.allowed[Allow.ANYTHING] = True
        for row, members in rows.items():
            self.allowed[row, members] = True
        for first, axis in zip((Allow.X, Allow.Y), self.axes, strict=True):
            for minimum in range(BINS):
                self.allowed[first + minimum, axis[minimum:]] = True


def end_ids(tokenizer: PreTrainedTokenizerBase, ends: int | Iterable[int] | None) -> frozenset[int]:
    """Return the ids that end a response: the tokenizer's end token, and those of a generation config."""
    return frozenset({tokenizer.eos_token_id, *([ends] if isinstance(ends, int) else ends or ())})


class ReportState:
    """The state of a sequence, which may begin `in_box`, and has `ended` or `looped`."""

    def __init__(self, grammar: Grammar, *, in_box: bool = False) -> None:
        self._grammar, self._one_object, self.ended, self.looped = grammar, in_box, False, False
        self._sentences: Counter[tuple[int, ...]] = Counter()
        self._corners: list[int] | None = [] if in_box else None  # of the open box
        self._open(in_box)
        self._has_word = in_box

    def _open(self, in_object: bool) -> None:
        self._in_object, self._has_word, self._has_parts, self._tail = in_object, False, False, ""
        self._text: list[int] = []
        self._boxes: set[tuple[int, ...]] = set()

    def advance(self, token: int) -> None:
        """Add a token that `choices` allowed."""
        grammar, ids = self._grammar, self._grammar.ids
        if self.ended or token in grammar.ends or (self._one_object and token == ids[OBJECT_END]):
            self.ended = True
        elif self._corners is not None and token == ids[BOX_END]:
            self._boxes.add(tuple(self._corners))
            self._corners = None
        elif self._corners is not None:
            self._corners.append(grammar.value[token])
        elif token == ids[BOX]:
            self._corners = []
        elif token == ids[OBJECT]:
            self._open(True)
        elif token == ids[OBJECT_END]:
            sentence = tuple(self._text)
            self._sentences[sentence] += 1
            self.looped = self._sentences[sentence] > MAX_COPIES
            self._open(False)
        elif self._in_object and not self._boxes:
            self._text.append(token)
            self._has_word = self._has_word or token in grammar.words
            self._has_parts = self._has_parts or token in grammar.parts
            if self._tail or token in grammar.angled:
                end = _SPELLED.search(self._tail + grammar.texts[token])
                self._tail = end[0] if end else ""

    def choices(self, left: int | None = None) -> tuple[int, list[int]]:
        """Return a row of `Grammar.allowed`, and ids in it that are forbidden; `left` counts the remaining tokens."""
        remaining = left if left is not None else 1 << 30
        if self.ended or self.looped:
            return Allow.ANYTHING if self.ended else Allow.END, []
        if self._corners is not None:
            return self._box_choices(self._corners)
        if not self._in_object:
            # An object takes at least three tokens.
            return (Allow.BETWEEN if remaining >= 3 else Allow.NO_OBJECT), []
        is_word = self._has_word or (self._has_parts and WORD.search(self._grammar.decode(self._text)) is not None)
        if not is_word:
            return (Allow.FIRST_WORDS if remaining >= 3 else Allow.WORD), self._spelled()
        # Another part of a character may undo a word of parts, and no token is left to complete one.
        if remaining == 1 or (remaining == 2 and not self._has_word):
            return Allow.CLOSE, []
        # A box takes six tokens, and the end of its object one more.
        box = len(self._boxes) < MAX_BOXES and remaining >= 7
        if self._boxes:
            return (Allow.AFTER_BOX if box else Allow.LAST_BOX), []
        return (Allow.TEXT if box else Allow.NO_BOX), self._spelled()

    def _spelled(self) -> list[int]:
        """Return ids that would complete a token of the format, spelled out in letters."""
        if not self._tail:
            return []
        return [i for i, text in self._grammar.closing.items() if FORMAT_TOKEN.search(self._tail + text)]

    def _box_choices(self, corners: list[int]) -> tuple[int, list[int]]:
        """Return the next coordinates, or the end of the box, without values that lead to existing boxes only."""
        known = len(corners)
        if known == 4:
            return Allow.BOX_CLOSE, []
        axis = self._grammar.axes[known % 2]
        minimum = corners[known - 2] if known >= 2 else 0
        used = Counter(box[known] for box in self._boxes if box[:known] == tuple(corners))
        exhausted = [axis[value] for value, count in used.items() if count >= _count_boxes([*corners, value])]
        return (Allow.X, Allow.Y)[known % 2] + minimum, exhausted


def _count_boxes(corners: list[int]) -> int:
    """Return the number of boxes that begin with these values."""
    pairs = BINS * (BINS + 1) // 2  # of a first value and a second one that is not smaller
    match corners:
        case [x]:
            return (BINS - x) * pairs
        case [x, y]:
            return (BINS - x) * (BINS - y)
        case [_, y, _]:
            return BINS - y
    return 1
