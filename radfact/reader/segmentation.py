"""Segment a findings section into its sentences: line wraps, numbered lists, headings, abbreviations."""

from __future__ import annotations

import re
from collections.abc import Iterator

from radfact.reader.vocabulary import ABBREVIATIONS

_BEFORE_A_NUMBER = frozenset({"no", "nos", "fig", "ca"})
_BULLET = re.compile(r"(?:^|(?<=[.!?:;\n]))\s*(?:\(?\d{1,2}[.)](?=\s)|[-*•](?=\s))\s*")
_SENTENCE_END = re.compile(r"(?<![.!?])[.!?]+[\"')\]]*(?=\s+\S)|(?<=[a-z]{3})\.(?=[A-Z][a-z])")
_MISSING_STOP = re.compile(r"(?<=[a-z)]) (?=(?:The|There|No) [a-z])")
_OPEN_END = re.compile(
    r"(?:[,]|\b(?:the|a|an|no|of|in|at|on|with|without|and|or|is|are|was|were|has|have|to|for|from|by|left"
    r"|right|new|small"
    r"|mild|moderate|large|stable|unchanged|pleural|bilateral|than|which|that))$",
    re.IGNORECASE,
)
_MAX_OPEN_END = len("unchanged") + 1
_BLANK_LINES = re.compile(r"\n{3,}")
_MAX_ABBREVIATION = 2 * max(map(len, ABBREVIATIONS))


def segment_sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a report section as written, without list numbers and final punctuation.

    Abbreviations ("Dr.", "e.g.", "p.m."), decimals and de-identification marks end no sentence. A line break ends a
    sentence unless the line was only wrapped.
    """
    # No search or slice grows with the text: the output of a model in a loop must take linear time.
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    text = "\n".join("" if line.isspace() else line for line in lines)
    for line in _unwrap_lines(_BULLET.sub("\n", _BLANK_LINES.sub("\n\n", text))):
        start = 0
        for match in _SENTENCE_END.finditer(line):
            before = line[max(start, match.start() - _MAX_ABBREVIATION) : match.start()]
            if _is_abbreviation(before, match[0], line[match.end() : match.end() + 9].lstrip()):
                continue
            yield from _split_missing_stops(line[start : match.end()])
            start = match.end()
        yield from _split_missing_stops(line[start:])


def _unwrap_lines(text: str) -> list[str]:
    lines: list[list[str]] = []
    previous, open_end = "", False
    for line in (line.strip() for line in text.split("\n")):
        if lines and line and (open_end or (line[0].islower() and previous and previous[-1] not in ".:;!?")):
            lines[-1].append(line)
        else:
            lines.append([line])
        previous, open_end = line, _is_open(line, 0, len(line))
    return [" ".join(parts) for parts in lines]


def _is_open(text: str, start: int, end: int) -> bool:
    """Return whether a part of a text ends with a word that ends no sentence."""
    return bool(_OPEN_END.search(text, max(start, end - _MAX_OPEN_END), end))


def _is_abbreviation(before: str, mark: str, after: str) -> bool:
    if mark != ".":
        return False
    word = before.rsplit(None, 1)[-1].strip("(\"'") if before.strip() else ""
    if word.lower() in _BEFORE_A_NUMBER:
        return after[:1].isdigit()  # "No." ends a sentence unless a number follows.
    if word.lower() in ("a.m", "p.m", "lt", "rt"):
        # A capital letter begins a sentence; several are an abbreviation, as in "Rt. IJ line".
        return not after[:1].isupper() or (word.lower() in ("lt", "rt") and after[:2].isupper())
    return word.lower() in ABBREVIATIONS or (len(word) == 1 and word.isupper() and after[:1].isupper())


def _split_missing_stops(sentence: str) -> Iterator[str]:
    sentence = " ".join(sentence.split())
    start = 0
    for match in _MISSING_STOP.finditer(sentence):
        if not _is_open(sentence, start, match.start()):
            yield sentence[start : match.start()].strip(" .;,")
            start = match.end()
    if any(c.isalnum() for c in sentence[start:]):
        yield sentence[start:].strip(" .;,")
