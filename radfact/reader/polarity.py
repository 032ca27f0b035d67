"""Classify sentences as positive (a finding is present) or negative (findings are absent or normal)."""

from __future__ import annotations

from typing import Literal

from radfact.reader.facts import Fact, parse_sentence
from radfact.reader.ontology import Ontology
from radfact.reader.ontology_file import default_ontology

Polarity = Literal["positive", "negative"]


def read_polarity(sentence: str, ontology: Ontology | None = None) -> Polarity | None:
    """Classify a sentence of a report as positive or negative.

    A sentence is positive if it states a finding or a device, even an uncertain one or alongside a denial. It is
    negative if it contains only denials, statements of normality or resolved findings.
    """
    ontology = ontology or default_ontology()
    facts = [fact for fact in parse_sentence(sentence, ontology).facts if fact.concept in ontology.findings]
    if not facts:
        return None
    return "positive" if any(_is_positive(fact, ontology) for fact in facts) else "negative"


def _is_positive(fact: Fact, ontology: Ontology) -> bool:
    return fact.present and not ontology.findings[fact.concept].normal
