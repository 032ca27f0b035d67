"""Classify sentences as positive (a finding is present) or negative (findings are absent or normal)."""

from __future__ import annotations

from typing import Literal

from radfact.reader.facts import parse_sentence
from radfact.reader.ontology_file import default_ontology

Polarity = Literal["positive", "negative"]


def read_polarity(sentence: str) -> Polarity | None:
    """Classify a sentence of a report as positive or negative.

    A sentence is positive if it states a finding or a device, even an uncertain one or alongside a denial. It is
    negative if it contains only denials, statements of normality or resolved findings.
    """
    ontology = default_ontology()
    facts = parse_sentence(sentence, ontology).findings
    if not facts:
        return None
    is_positive = any(fact.present and not ontology.findings[fact.concept].normal for fact in facts)
    return "positive" if is_positive else "negative"
