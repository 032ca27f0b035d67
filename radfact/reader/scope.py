"""Parts of a sentence that do not assert a finding: assessments, indications, history, conditions, questions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from radfact.reader.tokens import Token

_ADVERBS = r"(?:\w+ly |further |better |well )*"
# "r/o" without its slash is "r o".
_EXAMINE = (
    r"(?:assess|evaluate|exclude|rule out|r o|detect|identify|investigate|look|screen|check|confirm|document|ensure"
    r"|assure|characterize|differentiate|distinguish|separate|monitor|follow|verify|diagnose)"
)
_EXAMINING = (
    r"(?:assessing|evaluating|excluding|ruling out|detecting|identifying|investigating|screening|checking|confirming"
    r"|characterizing|differentiating|distinguishing|separating|monitoring|diagnosing)"
)
_PERCEIVE = (
    r"(?:see|seen|detect|detected|identify|identified|visualize|visualized|discern|discerned|find|found"
    r"|recognize|recognized)"
)
_HARDLY = r"(?:cannot|can not|could not|unable to|difficult to|hard to|impossible to|not possible to)"
_CONNECTED = r"(?:(?:is|was|were|been|has|have|performed|obtained|done|ordered|made|taken|requested|repeated) )*"

_ASSESSMENTS = re.compile(
    r"\b(?:(?:assessment|evaluation|detection|exclusion|characterization|interrogation|sensitivity|surveillance"
    r"|screening"
    r"|workup|work up|search|investigation)(?: \w+){0,2}? (?:of|for)\b"
    r"|(?:limited|nondiagnostic|inadequate|insufficient|suboptimal|degraded|poor) for\b"
    r"|(?:insensitive|blind) (?:to|for)\b"
    r"|not (?:\w+ly )?(?:optimal|adequate|sufficient|suitable|ideal|sensitive) for\b"
    rf"|(?:{_HARDLY}|ability to|inability to) {_ADVERBS}(?:assess|evaluate|detect|determine|see|identify|diagnose)\b"
    rf"|(?:to|help|please) {_ADVERBS}{_EXAMINE}\b(?: for\b)?"
    rf"|(?:for|in|when) {_ADVERBS}{_EXAMINING}\b(?: for\b)?)"
    rf"|(?:^|[:;.,] ){_EXAMINE}\b(?: for\b)?"
)
"""What was assessed is not asserted, unless it is definite: "evaluation of THE nodule"."""
_HISTORIES = re.compile(
    rf"\b(?:study|exam|examination|radiograph|film|ct|mri|image|imaging|ray|xray|scan|series|biopsy) {_CONNECTED}for\b"
    r"|\b(?:treated|treatment|therapy|admitted|referred|presenting|presented|antibiotic)(?: \w+){0,2}? (?:with|for)\b"
    r"|\b(?:compare|compared|comparison|prior|previous|earlier|old)\b[^.;]*? , (?:which|that) "
    r"(?:\w+ly )?(?:show|showed|shown|demonstrate|demonstrated|reveal|revealed|have|had|depict|depicted)\b"
    r"|\bcorrelat(?:e|ed|ion)(?: \w+ly)? (?:for|with)\b"
)
_HEADINGS = re.compile(
    r"^(?:indications?|(?:clinical )?(?:history|information|indication|question|data|diagnosis)|technique|procedure"
    r"|reason for (?:the )?(?:exam|examination|study|visit|request)|chief complaint|symptoms?) :"
)
_EARLIER_STUDIES = re.compile(
    r"\b(?:prior|previous|earlier|old|outside|last|yesterday)\W{0,2}(?: [\w']+){0,3}? "
    r"(?:study|exam|examination|radiograph|film|ct|mri|image|imaging|ray|xray|scan)(?: (?!is|are)[\w/]+){0,5}? "
    r"(?:showed|shown|demonstrated|revealed|reported|documented|described)\b(?! by| on| in| as)"
)
"""What an earlier examination showed, unless a change relates it to the current one."""
_PAST = re.compile(r"\b(?:history|complaint|complain|symptom) of\b")
_CONDITIONS = re.compile(r"\b(?:if|whether)\b(?! any| present)")
_DOUBTS = re.compile(rf"\b(?:{_HARDLY}|not) (?:be )?{_ADVERBS}(?:exclude|rule out)\b")
_UNASSESSED = re.compile(
    rf"\b{_HARDLY} (?:be )?{_ADVERBS}(?:assess|evaluate|determine|diagnose|judge|gauge)(?:d|ed)?\b"
    r"|\bnot (?:\w+ly )?(?:be |been )?(?:\w+ly )?(?:assessed|assessable|evaluated|evaluable)\b"
    r"|\b(?:could|may|might|would|can) (?:easily )?(?:go|remain|escape) (?:unnoticed|undetected|detection)\b"
    rf"|\b(?:could|may|might|would|can) (?:easily |well )?be {_ADVERBS}"
    rf"(?:overlooked|missed|hidden|masked|obscured|underestimated|undetected|inapparent|occult"
    rf"|(?:difficult|hard|impossible) to {_ADVERBS}{_PERCEIVE})\b"
)
"""The subject before such a phrase was not assessed."""
_UNSEEN = re.compile(rf"\b(?:cannot|can not|could not) (?:be )?{_ADVERBS}{_PERCEIVE}\b(?! from\b)")
"""The subject before such a phrase was not seen, even a definite one: "the nodule of the CT cannot be identified"."""
_SUSPECTED = re.compile(r"\b(?:suggested|suspected|questioned|postulated)(?= [.,;]|$| (?:on|in|at|by)\b)")
"""The subject before such a participle is possible: "trace effusions suggested"; advice is excluded."""
_EXAMINATION_WORDS = frozenset(
    {"ct", "mri", "imaging", "film", "radiograph", "view", "study", "examination", "evaluation", "correlation"}
)
_INVERTED = frozenset({"is", "are", "is there", "does", "do", "could", "can", "has", "any"})
_AFTER_PAUSE = frozenset({"the", "a", "an", "there", "no", "with", "which", "heart"})
_DEFINITE = frozenset({"the", "this", "these", "those", "known"})


@dataclass(frozen=True, slots=True)
class Scope:
    """Indices of the tokens of a sentence that do not assert a finding, or only as possible.

    Attributes:
        unasserted: what was only assessed, looked for or already known.
        historical: the patient's history, which asserts only operations and devices.
        uncertain: what is asked, or is not excluded.
    """

    unasserted: frozenset[int]
    historical: frozenset[int]
    uncertain: frozenset[int]


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
    unasserted = set(range(len(tokens))) if _HEADINGS.match(text) else set()
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
    return Scope(frozenset(unasserted - uncertain), frozenset(historical), frozenset(uncertain))


def _end_of_phrase(tokens: Sequence[Token], trigger: int, *, ends_at_comma: bool) -> int:
    """Return the index of the next verb, conclusion or clause after a trigger."""
    for i in range(trigger + 1, len(tokens)):
        token, following = tokens[i], tokens[i + 1].words[0] if i + 1 < len(tokens) else ""
        is_verb = "copula" in token.meanings and i > trigger + 1 and not ends_at_comma
        if token.ends_clause or "link" in token.meanings or is_verb:
            return i
        if token.words == (",",) and (ends_at_comma or following in _AFTER_PAUSE):
            return i
        if token.words == ("and",) and following in ("the", "there", "no"):
            return i
    return len(tokens)


def _span_before(tokens: Sequence[Token], trigger: int, first: int) -> range:
    """Return the tokens of the subject before a trigger, from `first` at the earliest."""
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
            is_attached = any(following.begin == token.end for following in tokens[i + 1 : i + 2])
            # The mark precedes what is asked: "opacity, ?pneumonia".
            if begin == i or (is_attached and (i == 0 or tokens[i - 1].end < token.begin)):
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
