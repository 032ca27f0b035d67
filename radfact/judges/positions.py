"""Locate removed parts in their narrative."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from radfact.judges.protocol import RemovedText, SplitSentence

_WORD = re.compile(r"\w+")
_FINAL_MARKS = re.compile(r"[.!?;,]*")

_Span = tuple[int, int]


def locate_removed(narrative: str, split: Sequence[SplitSentence]) -> list[RemovedText]:
    """Return the removed parts of a narrative in the order of the sentences, with their positions if found.

    Words are compared without case, and with any spaces and punctuation between them. A part is searched for in the
    sentence that it was removed from. If the narrative does not contain this sentence, the part is located only if it
    occurs exactly once. Positions do not overlap.
    """
    if not any(sentence.all_removed for sentence in split):
        return []
    matches = list(_WORD.finditer(narrative))
    words = [match[0].lower() for match in matches]
    located: list[RemovedText] = []
    taken: list[_Span] = []
    read = 0  # words of the sentences so far
    for sentence in split:
        # A removed sentence may stand between linked ones, of which only the first has removed parts.
        origs = (sentence.orig, sentence.orig.partition(". ")[0])
        places = (span for orig in origs for span in islice(_find(words, orig, (read, len(words))), 1))
        place = min(places, key=lambda span: (span[0], -span[1]), default=None)
        if place is not None:
            read = place[1]
        for removed in sentence.all_removed:
            free = [
                (first, last)
                for first, last in _find(words, removed.text, place or (0, len(words)))
                if all(last <= begin or end <= first for begin, end in taken)
            ]
            if not free or (place is None and len(free) > 1):
                located.append(removed)
                continue
            taken.append(free[0])
            start, end = matches[free[0][0]].start(), matches[free[0][1] - 1].end()
            if free[0] == place and (marks := _FINAL_MARKS.match(narrative, end)):
                end = marks.end()
            located.append(replace(removed, start=start, end=end))
    return located


def _find(words: Sequence[str], text: str, span: _Span) -> Iterator[_Span]:
    """Yield where the words of a text occur consecutively among the words of a span."""
    wanted = [word.lower() for word in _WORD.findall(text)]
    if not wanted:
        return
    for first in range(span[0], span[1] - len(wanted) + 1):
        if words[first] == wanted[0] and words[first : first + len(wanted)] == wanted:
            yield first, first + len(wanted)
