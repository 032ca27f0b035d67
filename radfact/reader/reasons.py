"""Describe facts in the reasons of the offline judge, with the display names of the ontology instead of its ids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from radfact.reader.facts import Fact, Place
from radfact.reader.ontology import Ontology
from radfact.reader.tokens import CERTAIN

_IMPLIED_CHANGES = frozenset({"changed", "not_decreased", "not_increased", "persistent", "previous"})
"""Changes that a more specific change implies. Reasons omit them."""


def describe_fact(fact: Fact, ontology: Ontology) -> str:
    """Describe a fact in a radiologist's terms: "no new pleural effusion on the left (large or severe)"."""
    positive = describe_positive(fact, ontology)
    return positive if fact.present or "resolved" in fact.change else f"no {positive}"


@lru_cache(maxsize=100_000)
def describe_positive(fact: Fact, ontology: Ontology) -> str:
    """Describe a fact as if the finding were present: "new pleural effusion on the left (large or severe)"."""
    changes = describe_changes(fact.change, ontology)
    words = [*(["possible"] if fact.doubt > CERTAIN else []), *changes[:1], ontology.terms[fact.concept]]
    if fact.places:
        words.append(describe_places(fact.places, ontology))
    attributes = [describe_degree(fact.severity, ontology)] if fact.severity else []
    attributes += changes[1:]
    attributes += [ontology.terms[detail] for detail in sorted(fact.details)]
    attributes += [f"{size:g} mm" for size in fact.measures]
    if exceptions := fact.exceptions - {"*"}:
        attributes.append(f"except {enumerate_terms(exceptions, ontology)}")
    return " ".join(words) + (f" ({', '.join(attributes)})" if attributes else "")


def describe_facts(facts: Iterable[Fact], ontology: Ontology) -> str:
    """Describe several facts, without duplicates: "no fracture and no dislocation"."""
    return _join(list(dict.fromkeys(describe_fact(fact, ontology) for fact in facts)))


def describe_changes(changes: frozenset[str], ontology: Ontology) -> list[str]:
    """Return the names of changes over time, without those that a more specific change implies."""
    return [ontology.terms[change] for change in sorted(changes - _IMPLIED_CHANGES or changes)]


def describe_degree(levels: frozenset[int], ontology: Ontology) -> str:
    """Return the name of a degree: "small or mild", "minimal to moderate"."""
    degrees = sorted(ontology.degree_terms, key=len)
    ends = (next(degree for degree in degrees if level in degree) for level in (min(levels), max(levels)))
    return ontology.degree_terms.get(levels) or " to ".join(ontology.degree_terms[degree] for degree in ends)


def describe_places(places: Sequence[Place], ontology: Ontology) -> str:
    """Describe places: "on the left", "in the left lower and right upper zones"."""
    zones = [
        " ".join(filter(None, (side, ontology.terms[zone])))
        for side, zone in places
        if side != "each" and zone not in (None, "all")
    ]
    both = [ontology.terms[zone] for side, zone in places if side == "each" and zone not in (None, "all")]
    sides = [side for side, zone in places if zone is None and side is not None]
    diffuse = [f"the {side} side" for side, zone in places if zone == "all" and side in ("left", "right")]
    texts = [f"throughout {_join(diffuse)}"] if diffuse else []
    if sides:
        texts.append(f"on {_join([f'{side} side' if side == 'each' else f'the {side}' for side in sides])}")
    if both:
        texts.append(f"in both {_join(both)} zones")
    if zones:
        texts.append(f"in the {_join(zones)} {'zone' if len(zones) == 1 else 'zones'}")
    return " and ".join(texts) or "everywhere"


def enumerate_terms(ids: Iterable[str], ontology: Ontology) -> str:
    """List the names of entries of the ontology: "fracture and dislocation"."""
    return _join(sorted(ontology.terms[name] for name in ids))


def _join(texts: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))
