"""The table of clinical significance: tiers of findings, their adjustment to the patient, and distances of findings."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field, FiniteFloat

from radfact.errors import ErrorCode, InputError, suggest_name
from radfact.findings.records import TIERS, Finding, Tier
from radfact.io.jsonl import read_text
from radfact.io.yaml_files import read_yaml
from radfact.reader.ontology import Name, Node, Ontology
from radfact.records import PatientContext, validate_model

DEFAULT_PATH = Path(__file__).with_name("significance.yaml")

_Weight = Annotated[FiniteFloat, Field(ge=0, le=10)]
_Share = Annotated[FiniteFloat, Field(ge=0, le=1)]


class _Tiers(Node):
    urgent: _Weight
    actionable: _Weight
    minor: _Weight
    expected: _Weight


class _DegreeRange(Node):
    min: Annotated[int, Field(ge=0, le=4)] = 0
    max: Annotated[int, Field(ge=0, le=4)] = 4


class _Patient(Node):
    """Conditions on the patient."""

    indication: tuple[Name, ...] = ()
    min_age: FiniteFloat | None = None
    max_age: FiniteFloat | None = None

    def matches_patient(self, context: PatientContext) -> bool:
        """Return whether all conditions hold; a condition on an unknown value does not."""
        words = "|".join(re.escape(word.lower()) for word in self.indication)
        if words and not re.search(rf"\b(?:{words})", (context.indication or "").lower()):
            return False
        if self.min_age is None and self.max_age is None:
            return True
        return context.age is not None and (self.min_age or 0.0) <= context.age <= (self.max_age or math.inf)


class _Rule(_Patient):
    """Conditions on a finding and the patient, and the tier where they hold."""

    findings: Annotated[tuple[Name, ...], Field(min_length=1)]
    tier: Tier
    degree: _DegreeRange | None = None
    change: tuple[Name, ...] = ()
    character: tuple[Name, ...] = ()
    position: tuple[Name, ...] = ()

    def matches(self, finding: Finding, context: PatientContext) -> bool:
        """Return whether all conditions but the name of the finding hold."""
        for name in ("change", "character", "position"):
            expected = getattr(self, name)
            if expected and set(expected).isdisjoint(getattr(finding, name)):
                return False
        if self.degree is not None:
            largest = max(finding.degree, default=-1)
            if not self.degree.min <= largest <= self.degree.max:
                return False
        return self.matches_patient(context)


class _Related(_Patient):
    findings: Annotated[tuple[Name, ...], Field(min_length=2)]
    distance: _Share


class Differences(Node):
    """Parts of the weight of a finding that differences cost; `significance.yaml` explains them."""

    general: _Share
    specific: _Share
    level: _Share
    side: _Share
    side_partly: _Share
    side_missing: _Share
    zone: _Share
    zone_missing: _Share
    region: _Share
    degree: _Share
    degree_missing: _Share
    size: _Share
    size_missing: _Share
    change: _Share
    change_missing: _Share
    change_added: _Share
    certainty: _Share
    position: _Share
    position_other: _Share
    position_missing: _Share
    uncertain: _Share


class _File(Node):
    version: Annotated[str, Field(coerce_numbers_to_str=True)] = ""
    tiers: _Tiers
    default: Tier
    findings: dict[Name, Tier]
    rules: tuple[_Rule, ...] = ()
    related: tuple[_Related, ...] = ()
    families: dict[Name, _Share] = Field(default_factory=dict)
    differences: Differences

    def names(self) -> Iterator[tuple[str, str]]:
        """Yield (field, finding) for every finding that the file names."""
        for section in ("findings", "families"):
            yield from ((f"{section}.{name}", name) for name in getattr(self, section))
        for section in ("rules", "related"):
            for index, item in enumerate(getattr(self, section)):
                yield from ((f"{section}[{index}].findings", name) for name in item.findings)


class ConceptDistance(NamedTuple):
    """Distance of two findings, from 0 (the same) to 1, and what one is to the other."""

    value: float
    relation: str


class Significance:
    """Tiers, weights and distances of the findings of an ontology.

    Args:
        ontology: has the hierarchy of findings.
        path: a YAML file like the packaged one, which is the default.

    Raises:
        InputError: the file cannot be read or is wrong, with its field.
    """

    def __init__(self, ontology: Ontology, path: Path | str | None = None) -> None:
        # Another ontology need not have every finding of the packaged table.
        is_own = path is not None
        path = DEFAULT_PATH if path is None else Path(path)
        self.ontology = ontology
        self._file = file = validate_model(_File, read_yaml(path), file=path)
        self.sha256 = hashlib.sha256(read_text(path).encode()).hexdigest()
        self.differences = file.differences
        self.weights: Mapping[str, float] = file.tiers.model_dump()
        for field, name in file.names() if is_own else ():
            if name not in ontology.findings:
                hint = suggest_name(name, ontology.findings, "the ontology lists the findings")
                message = f"unknown finding '{name}'; {hint}"
                raise InputError(message, code=ErrorCode.UNKNOWN_NAME, file=path, field=field)
        # Reports name the same findings again and again.
        self._rules, self._related = cache(self._find_rules), cache(self._find_related)

    def describe(self) -> dict[str, Any]:
        """Return the version and hash of the table."""
        return {"version": self._file.version, "sha256": self.sha256}

    def tier(self, finding: Finding, context: PatientContext) -> Tier:
        """Return the tier of a finding: that of its extractor, of the first rule that fits, or of the table.

        Args:
            finding: a finding.
            context: of the patient.
        """
        if finding.tier is not None:
            return finding.tier
        rules, inherited = self._rules(finding.concept)
        return next((rule.tier for rule in rules if rule.matches(finding, context)), inherited)

    def weight(self, finding: Finding, context: PatientContext) -> float:
        """Return the weight of an error about a finding. See `tier`."""
        weight = self.weights[self.tier(finding, context)]
        return weight * (self.differences.uncertain if finding.status == "uncertain" else 1.0)

    def distance(self, candidate: str, reference: str, context: PatientContext) -> ConceptDistance | None:
        """Return the distance of two findings by name; None if they do not describe the same thing. See `tier`."""
        distance, related = self._related(candidate, reference)
        for item in related:
            if (distance is None or item.distance < distance.value) and item.matches_patient(context):
                distance = ConceptDistance(item.distance, "related")
        return distance

    def is_comparable(self, first: str, second: str) -> bool:
        """Return whether two findings are of one family, such as atelectasis and pneumonia. See `distance`."""
        return self._distance_in_hierarchy(first, second) is not None

    def _find_rules(self, concept: str) -> tuple[list[_Rule], Tier]:
        """Return the rules about a finding, and its tier where none fits."""
        ancestors, is_a = self.ontology.ancestors, self.ontology.is_a
        rules = [rule for rule in self._file.rules if any(is_a(concept, name) for name in rule.findings)]
        # The most specific one has the most ancestors; of two, the more significant one counts.
        depth = {name: len(ancestors[name]) for name in ancestors.get(concept, ()) if name in self._file.findings}
        tiers = [self._file.findings[name] for name in depth if depth[name] == max(depth.values())]
        return rules, min(tiers, key=TIERS.index, default=self._file.default)

    def _find_related(self, first: str, second: str) -> tuple[ConceptDistance | None, list[_Related]]:
        """Return the distance in the hierarchy, and the sets of which both are, or are kinds of, different members."""
        related = []
        for item in self._file.related:
            own, other = ({name for name in item.findings if self.ontology.is_a(of, name)} for of in (first, second))
            if own and other and len(own | other) > 1:
                related.append(item)
        return self._distance_in_hierarchy(first, second), related

    def _distance_in_hierarchy(self, candidate: str, reference: str) -> ConceptDistance | None:
        if candidate == reference:
            return ConceptDistance(0.0, "the same")
        ontology, costs = self.ontology, self.differences
        if candidate not in ontology.findings or reference not in ontology.findings:
            return None
        levels = abs(len(ontology.ancestors[candidate]) - len(ontology.ancestors[reference]))
        further = costs.level * max(levels - 1, 0)
        if ontology.is_a(reference, candidate):
            return ConceptDistance(min(1.0, costs.general + further), "more general")
        if ontology.is_a(candidate, reference):
            return ConceptDistance(min(1.0, costs.specific + further), "more specific")
        is_a, families = ontology.is_a, self._file.families
        shared = [families[name] for name in families if is_a(candidate, name) and is_a(reference, name)]
        return ConceptDistance(min(shared), "similar") if shared else None
