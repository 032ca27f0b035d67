"""A report in other words, by rules: sentences put differently, with a detail left out, or with one of their parts."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from radfact.judges.offline.facts import Fact
from radfact.judges.offline.splitter import split_narrative
from radfact.meta.injection.sentences import ReportSentences, parse_facts

_DENIAL = re.compile(
    r"^(?:there (?:is|are) )?(?:no |negative for )(?:(?:evidence of|signs? of|definite|visualized) )?(?P<what>.+?)"
    r"(?: (?:is|are) (?:seen|identified|present|noted|visualized|demonstrated))?$",
    re.IGNORECASE,
)
_DENIED = (
    "No {what}",
    "There is no {what}",
    "No evidence of {what}",
    "No {what} is seen",
    "Negative for {what}",
    "There is no evidence of {what}",
)
_STATEMENT = re.compile(r"^there (?:is|are) (?:an? |some )?(?P<what>[^,]+)$", re.IGNORECASE)
_STATED = ("{what} is present", "{what} is seen", "{what} is noted", "{what}", "Findings include {what}")
_STATE = re.compile(
    r"^(?:the )?(?P<what>[^,]+?) (?P<verb>is|are|appears?|remains?) "
    r"(?P<state>normal|clear|unremarkable|intact|enlarged|within normal limits)(?P<rest>.*)$",
    re.IGNORECASE,
)
_NORMAL = ("normal", "unremarkable", "within normal limits")
_STATES = ("{what} {verb} {state}{rest}", "The {what} {verb} {state}{rest}", "{state} {what}{rest}")
_DETAIL = re.compile(
    r"\b(?:tiny|trace|minimal(?:ly)?|small|mild(?:ly)?|slight(?:ly)?|moderate(?:ly)?|large|severe(?:ly)?|marked(?:ly)?|"
    r"left|right|bilateral|upper|lower|apical|basilar|bibasilar|perihilar|focal|acute|stable|chronic|new)\b ?",
    re.IGNORECASE,
)


def reword(report: str, drawn: random.Random) -> str | None:
    """A report each of whose sentences says the same in other words, or less; None where none can be put so.

    Wherever the ontology of the offline judge would read a finding that was not there, a sentence stays as it is. What
    follows from what is for a judge to say.

    Args:
        report: the report.
        drawn: chooses the ways.
    """
    document = ReportSentences.of(report)
    changes: dict[int, str | None] = {}
    for place, sentence in enumerate(document.sentences):
        ways = [found for way in (_parts(sentence), _less(sentence), _otherwise(sentence)) if (found := way)]
        if ways:
            changes[place] = f"{drawn.choice(drawn.choice(ways))}."
    return document.replaced(changes, {}) if changes else None


def _parts(sentence: str) -> list[str]:
    """Its findings one by one, of a sentence with several."""
    singles = [one.rstrip(". ") for one in split_narrative(f"{sentence}.")]
    return singles if len(singles) > 1 and all(parse_facts(one) for one in singles) else []


def _less(sentence: str) -> list[str]:
    """The sentence without one word for a degree, a side, a zone or a time."""
    found = []
    for match in _DETAIL.finditer(sentence):
        text = _sentence(sentence[: match.start()] + sentence[match.end() :])
        if _findings(text) == _findings(sentence) and set(parse_facts(text)) != set(parse_facts(sentence)):
            found.append(text)
    return found


def _otherwise(sentence: str) -> list[str]:
    """The sentence put in other ways, all of which the ontology reads as the same."""
    texts: list[str] = []
    if match := _DENIAL.match(sentence):
        texts = [form.format(what=match["what"]) for form in _DENIED]
    elif match := _STATEMENT.match(sentence):
        texts = [form.format(what=match["what"]) for form in _STATED]
    elif match := _STATE.match(sentence):
        states = _NORMAL if match["state"].lower() in _NORMAL else (match["state"],)
        parts = match.groupdict() | {"what": match["what"][:1].lower() + match["what"][1:]}
        texts = [form.format(**(parts | {"state": state})) for form in _STATES for state in states]
    written = [_sentence(text) for text in texts]
    meant = set(parse_facts(sentence))
    return [text for text in written if meant and text.lower() != sentence.lower() and set(parse_facts(text)) == meant]


def _findings(sentence: str) -> Sequence[tuple[str, bool]]:
    return [_named(fact) for fact in parse_facts(sentence)]


def _named(fact: Fact) -> tuple[str, bool]:
    return fact.concept, fact.present


def _sentence(text: str) -> str:
    """Single spaces, articles as the next word wants them, a capital first."""
    text = " ".join(text.split())
    text = re.sub(r"\b([Aa])n (?=[bcdfgjklmnpqrstvwxz])", r"\1 ", text)
    text = re.sub(r"\b([Aa]) (?=[aeio])", r"\1n ", text)
    return text[:1].upper() + text[1:]
