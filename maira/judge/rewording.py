"""A report in other words, by rules: sentences rephrased, without a detail, or reduced to one of their findings."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path

from radfact.io.yaml_files import read_yaml
from radfact.judges.offline_splitter import split_narrative
from radfact.meta.injection.records import ReportSentences, parse_facts

_FORMS = read_yaml(Path(__file__).with_suffix(".yaml"))
_DENIAL, _STATEMENT, _STATE, _DETAIL = (
    re.compile(_FORMS[name], re.IGNORECASE) for name in ("denial", "statement", "state", "detail")
)


def reword(report: str, rng: random.Random) -> str | None:
    """Rephrase or shorten sentences without adding a finding; None if no sentence can be changed."""
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
        texts = [form.format(what=match["what"]) for form in _FORMS["denied"]]
    elif match := _STATEMENT.match(sentence):
        texts = [form.format(what=match["what"]) for form in _FORMS["stated"]]
    elif match := _STATE.match(sentence):
        states = _FORMS["normal"] if match["state"].lower() in _FORMS["normal"] else (match["state"],)
        parts = match.groupdict() | {"what": match["what"][:1].lower() + match["what"][1:]}
        texts = [form.format(**(parts | {"state": state})) for form in _FORMS["states"] for state in states]
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
