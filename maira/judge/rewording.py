"""A report in other words, by rules: sentences rephrased, without a detail, or reduced to one of their findings."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from radfact.judges.offline_splitter import split_narrative
from radfact.meta.injection.records import ReportSentences, parse_facts

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


def reword(report: str, rng: random.Random) -> str | None:
    """Rephrase or shorten the sentences of a report; None if no sentence can be changed.

    A sentence stays as it is if the ontology of the offline judge would read an additional finding. Whether the new
    sentence entails the old one is for a judge to decide.
    """
    document = ReportSentences.of(report)
    changes: dict[int, str | None] = {}
    for index, sentence in enumerate(document.sentences):
        variants = [texts for texts in (_parts(sentence), _shorten(sentence), _rephrase(sentence)) if texts]
        if variants:
            changes[index] = f"{rng.choice(rng.choice(variants))}."
    return document.replaced(changes, {}) if changes else None


def _parts(sentence: str) -> list[str]:
    """Return the single findings of a sentence with several; an empty list for other sentences."""
    parts = [part.rstrip(". ") for part in split_narrative(f"{sentence}.")]
    return parts if len(parts) > 1 and all(parse_facts(part) for part in parts) else []


def _shorten(sentence: str) -> list[str]:
    """Return variants of a sentence without one word for a degree, a side, a zone or a time."""
    shortened = []
    for match in _DETAIL.finditer(sentence):
        text = _sentence(sentence[: match.start()] + sentence[match.end() :])
        if _findings(text) == _findings(sentence) and set(parse_facts(text)) != set(parse_facts(sentence)):
            shortened.append(text)
    return shortened


def _rephrase(sentence: str) -> list[str]:
    """Return rephrasings of a sentence that the ontology reads as the same."""
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
    return [(fact.concept, fact.present) for fact in parse_facts(sentence)]


def _sentence(text: str) -> str:
    """Normalize spaces, articles and the first letter."""
    text = " ".join(text.split())
    text = re.sub(r"\b([Aa])n (?=[bcdfgjklmnpqrstvwxz])", r"\1 ", text)
    text = re.sub(r"\b([Aa]) (?=[aeio])", r"\1n ", text)
    return text[:1].upper() + text[1:]
