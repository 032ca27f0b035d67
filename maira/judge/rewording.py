"""A report in other words, by rules: sentences rephrased, without a detail, or reduced to one of their findings."""

from __future__ import annotations

import random
from collections.abc import Sequence

from radfact.judges.offline_splitter import split_narrative
from radfact.meta.injection.records import ReportSentences, parse_facts
from radfact.meta.injection.rewording import DETAIL, as_sentence, rephrase


def reword(report: str, rng: random.Random) -> str | None:
    """Rephrase or shorten sentences without adding a finding; None if no sentence can be changed."""
    document = ReportSentences.of(report)
    changes = {}
    for index, sentence in enumerate(document.sentences):
        variants = [texts for texts in (_parts(sentence), _shorten(sentence), rephrase(sentence)) if texts]
        if variants:
            changes[index] = [f"{rng.choice(rng.choice(variants))}."]
    return document.replaced(changes) if changes else None


def _parts(sentence: str) -> list[str]:
    """Return the single findings of a sentence with several; an empty list for other sentences."""
    parts = [part.rstrip(". ") for part in split_narrative(f"{sentence}.")]
    return parts if len(parts) > 1 and all(parse_facts(part) for part in parts) else []


def _shorten(sentence: str) -> list[str]:
    """Return variants of a sentence without one word for a degree, a side, a zone or a time."""
    shortened = []
    for match in DETAIL.finditer(sentence):
        text = as_sentence(sentence[: match.start()] + sentence[match.end() :])
        if _findings(text) == _findings(sentence) and set(parse_facts(text)) != set(parse_facts(sentence)):
            shortened.append(text)
    return shortened


def _findings(sentence: str) -> Sequence[tuple[str, bool]]:
    return [(fact.concept, fact.present) for fact in parse_facts(sentence)]
