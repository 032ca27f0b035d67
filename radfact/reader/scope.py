"""Parts of a sentence that do not assert a finding: assessments, indications, history, conditions, questions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from radfact.reader.tokens import Token
from radfact.reader.vocabulary import REMARK_HEADING, pattern, word_set

_ASSESSMENTS = pattern("assessments", re.NOFLAG)
_HISTORIES = pattern("histories", re.NOFLAG)
_EARLIER_STUDIES = pattern("earlier_studies", re.NOFLAG)
_PAST = pattern("past", re.NOFLAG)
_CONDITIONS = pattern("conditions", re.NOFLAG)
_DOUBTS = pattern("doubts", re.NOFLAG)
_UNASSESSED = pattern("unassessed", re.NOFLAG)
_UNSEEN = pattern("unseen", re.NOFLAG)
_STILL_POSSIBLE = pattern("still_possible", re.NOFLAG)
_SUSPECTED = pattern("suspected", re.NOFLAG)
_EXAMINATION_WORDS = word_set("examination_words")
_INVERTED = frozenset({"is", "are", "is there", "does", "do", "could", "can", "has", "any"})
_AFTER_PAUSE = frozenset({"the", "a", "an", "there", "no", "with", "which", "heart"})
_DEFINITE = frozenset({"the", "this", "these", "those", "known"})


@dataclass(frozen=True, slots=True)
class Scope:
    """Indices of the tokens of a sentence that do not assert a finding, or only as possible."""

    unasserted: frozenset[int]  # what was only assessed, looked for or already known
    historical: frozenset[int]  # the patient's history, which asserts only operations and devices
    uncertain: frozenset[int]  # what is asked, or is not excluded
    undenied: frozenset[int]  # what is denied, but possible: "is not seen but may be present"


def read_scope(tokens: Sequence[Token]) -> Scope:
    """Find the tokens of a sentence that do not assert a finding, or only as possible."""
    text = " ".join([word for token in tokens for word in token.words])
    owners = [i for i, token in enumerate(tokens) for _ in token.words]

    def owner(position: int) -> int:
        """Return the index of the token of a character."""
        return owners[text.count(" ", 0, position)]

    def spans(pattern: re.Pattern[str], *, ends_at_comma: bool = False) -> list[range]:
        """Return the tokens after each match, up to the end of its phrase; matches inside a phrase are ignored."""
        found, end = [], 0
        for match in pattern.finditer(text):
            trigger = owner(match.end() - 1)
            if trigger >= end:
                end = _end_of_phrase(tokens, trigger, ends_at_comma=ends_at_comma)
                found.append(range(trigger + 1, end))
        return found

    uncertain = {i for span in spans(_DOUBTS) for i in span}
    uncertain.update(_questioned(tokens) if "?" in text else ())
    for match in _SUSPECTED.finditer(text):
        span = _span_before(tokens, owner(match.start()), 0)
        if not any(_EXAMINATION_WORDS.intersection(tokens[i].words) for i in span):
            uncertain.update(span)
    historical = {i for span in spans(_PAST) for i in span}
    unasserted = set(range(len(tokens))) if REMARK_HEADING.match(text) else set()
    earlier = spans(_EARLIER_STUDIES)
    if earlier and any("change" in token.meanings for token in tokens):
        earlier = []
    for span in (*spans(_HISTORIES), *earlier, *spans(_CONDITIONS, ends_at_comma=True)):
        unasserted.update(span)
    for span in spans(_ASSESSMENTS):
        unasserted.update(_indefinite(tokens, span))
    last = 0
    for match in _UNASSESSED.finditer(text):
        trigger = owner(match.start())
        unasserted.update(_indefinite(tokens, _span_before(tokens, trigger, last)))
        last = trigger
    for match in _UNSEEN.finditer(text):
        span = _span_before(tokens, owner(match.start()), 0)
        if not any("part" in tokens[i].meanings for i in span):  # "the tip of the tube cannot be seen"
            unasserted.update(span)
    undenied = {i for match in _STILL_POSSIBLE.finditer(text) for i in range(owner(match.start()))}
    sets = (unasserted - uncertain - undenied, historical, uncertain | undenied, undenied)
    return Scope(*map(frozenset, sets))


def _end_of_phrase(tokens: Sequence[Token], trigger: int, *, ends_at_comma: bool) -> int:
    for i in range(trigger + 1, len(tokens)):
        token, following = tokens[i], tokens[i + 1].words[0] if i + 1 < len(tokens) else ""
        is_verb = "copula" in token.meanings and i > trigger + 1 and not ends_at_comma
        if token.ends_clause or ("link" in token.meanings and not ends_at_comma) or is_verb:
            return i
        if token.words == (",",) and (ends_at_comma or following in _AFTER_PAUSE):
            return i
        if token.words == ("and",) and following in ("the", "there", "no"):
            return i
    return len(tokens)


def _span_before(tokens: Sequence[Token], trigger: int, first: int) -> range:
    for i in range(trigger - 1, first - 1, -1):
        token = tokens[i]
        if token.ends_clause or token.words == (",",) or ("copula" in token.meanings and i < trigger - 1):
            return range(i + 1, trigger)
    return range(first, trigger)


def _indefinite(tokens: Sequence[Token], span: Sequence[int]) -> Iterator[int]:
    """Yield the tokens outside definite phrases, or all if there is a change: "to ensure resolution of the mass"."""
    if any(tokens[i].meanings.get("change") in ("resolved", "unchanged", "decreased", "increased") for i in span):
        yield from span
        return
    is_definite = False
    for i in span:
        token = tokens[i]
        if token.words[0] in _DEFINITE:
            is_definite = True
        elif token.joins or token.words[0] in ("of", "for", "in", "at", "a", "an", "any"):
            is_definite = False
        if not is_definite:
            yield i


def _questioned(tokens: Sequence[Token]) -> Iterator[int]:
    """Yield the tokens of questions: "is there a nodule?", "left basal opacity, pneumonia?", "? pneumonia"."""
    begin = comma = 0  # where the clause begins, and its part after the last comma
    for i, token in enumerate(tokens):
        if token.words == ("?",):
            # The mark precedes what is asked: "opacity, ?pneumonia", "opacity ? pneumonia".
            if begin == i or (i + 1 < len(tokens) and (i == 0 or tokens[i - 1].end < token.begin)):
                ends = (j for j in range(i + 1, len(tokens)) if tokens[j].ends_clause or tokens[j].joins)
                yield from range(i + 1, next(ends, len(tokens)))
            else:
                yield from range(begin if " ".join(tokens[begin].words) in _INVERTED else max(begin, comma), i)
        if token.words == (",",):
            comma = i + 1
        elif token.ends_clause and not (
            token.words == ("(",) and tokens[i + 1 : i + 2] and tokens[i + 1].words == ("?",)
        ):
            begin = i + 1
