"""Describe findings in a few words, for explanations."""

from __future__ import annotations

from radfact.findings.records import Finding
from radfact.reader.facts import Fact
from radfact.reader.ontology import Ontology
from radfact.reader.reasons import describe_fact
from radfact.reader.tokens import CERTAIN, POSSIBLE


def describe_finding(finding: Finding, ontology: Ontology) -> str:
    """Describe a finding in radiological terms, such as "possible pneumonia in the right lower zone"."""
    if finding.concept not in ontology.terms:
        return finding.concept
    fact = Fact(
        finding.concept,
        finding.is_positive,
        finding.places,
        frozenset(finding.degree),
        frozenset(finding.change),
        frozenset((*finding.character, *finding.position)),
        finding.sizes,
        POSSIBLE if finding.status == "uncertain" else CERTAIN,
    )
    return describe_fact(fact, ontology)
