"""A finding of a report as a record, and the protocol of extractors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args, runtime_checkable

from pydantic import ConfigDict, Field, NonNegativeFloat, NonNegativeInt

from radfact.errors import Failure
from radfact.reader.facts import Fact, Place
from radfact.reader.ontology import Ontology
from radfact.reader.reasons import describe_fact
from radfact.reader.segmentation import segment_sentences
from radfact.reader.tokens import CERTAIN, POSSIBLE
from radfact.records import Box, Mask, PatientContext, Record, Report, Sentence

Status = Literal["present", "uncertain", "absent"]
Tier = Literal["urgent", "actionable", "minor", "expected"]
TIERS: tuple[Tier, ...] = get_args(Tier)
"""Clinical significance, the highest first."""
Verdict = Literal["correct", "attribute_error", "omitted", "unsupported", "contradicted"]
ErrorKind = Literal["attribute_error", "omitted", "unsupported", "contradicted"]
Attribute = Literal["finding", "certainty", "side", "zone", "region", "degree", "size", "change", "device_position"]
"""What is compared between matched findings; `finding` is its name."""


class Finding(Record):
    """One finding of a report, or the change of a structure ("the heart is unchanged").

    Attributes:
        concept: name of the finding or structure in the ontology; another name if the ontology lacks it.
        status: `uncertain` is probable or possible; a conclusion ("consistent with") is present.
        places: where it is; empty if not stated.
        degree: possible levels from 0 (borderline) to 4 (large or severe), ascending; empty if not stated.
        sizes: mm.
        change: change over time, with all implied changes.
        character: descriptors, such as `calcified`.
        position: of a device, such as `above_carina`, `good_position` or `malpositioned`.
        is_conclusion: whether the sentence concludes it from what it describes ("consistent with").
        sentence: index of the sentence in the report, from 0.
        text: the sentence.
        boxes: of the sentence on the current image.
        masks: likewise.
        tier: significance, if the extractor assigns it.
    """

    # A results folder may come from a later version.
    model_config = ConfigDict(extra="ignore")

    concept: str
    status: Status = "present"
    places: tuple[Place, ...] = ()
    degree: tuple[NonNegativeInt, ...] = ()
    sizes: tuple[NonNegativeFloat, ...] = ()
    change: tuple[str, ...] = ()
    character: tuple[str, ...] = ()
    position: tuple[str, ...] = ()
    is_conclusion: bool = False
    sentence: NonNegativeInt = 0
    text: str = ""
    boxes: tuple[Box, ...] | None = None
    masks: tuple[Mask, ...] | None = None
    tier: Tier | None = None

    @property
    def is_positive(self) -> bool:
        """Whether it is present or uncertain."""
        return self.status != "absent"

    @property
    def sides(self) -> frozenset[str]:
        """Stated sides; "each" counts as both."""
        sides = {side for side, _ in self.places if side is not None}
        return frozenset({"left", "right"} if "each" in sides else sides)

    @property
    def located_sentence(self) -> Sentence | None:
        """The sentence with its region; None if it has none."""
        if self.boxes is None and self.masks is None:
            return None
        return Sentence(text=self.text or self.concept, boxes=self.boxes, masks=self.masks)

    @property
    def zones(self) -> frozenset[str]:
        """Stated zones."""
        return frozenset(zone for _, zone in self.places if zone is not None)


Extraction = tuple[Finding, ...] | Failure
"""The findings of a report in reading order, or why they are unknown."""


@runtime_checkable
class FindingExtractor(Protocol):
    """Reads the findings of reports."""

    name: str

    def extract(self, reports: Sequence[Report], contexts: Sequence[PatientContext]) -> list[Extraction]:
        """Return the findings of each report, in order; none of an empty report.

        A report without any readable statement is a failure. A single invalid response must not raise.

        Args:
            reports: narratives or sentences.
            contexts: of the patients, one per report, for an extractor that assigns tiers.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """Return everything that changes a finding (name, version, prompt hash, ontology) as JSON values."""
        ...

    def usage(self) -> dict[str, int]:
        """Return the cost so far: `calls`, `tokens_in`, `tokens_out`, `repairs`, `failures`, `cached`."""
        ...


def report_sentences(report: Report) -> Sequence[Sentence]:
    """Return the sentences of a report; `Finding.sentence` is an index of them."""
    return [Sentence(text=text) for text in segment_sentences(report)] if isinstance(report, str) else report


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


class JudgedFinding(Finding):
    """A finding with its verdict, the weight of an error about it and the attributes that differ, as in results."""

    status: Status
    tier: Tier
    verdict: Verdict | None
    weight: float
    attributes: tuple[str, ...]
    reason: str
    name: str
    description: str
    is_scored: bool = Field(alias="is_positive")


@dataclass(frozen=True, slots=True)
class AttributeDifference:
    """Values of an attribute as JSON, None if not stated; `cost` is a part of the weight, 0 where they agree."""

    attribute: Attribute
    candidate: Any
    reference: Any
    cost: float


@dataclass(frozen=True, slots=True)
class FindingMatch:
    """Findings of both reports, by their indices, that describe the same thing, and the cost of their differences."""

    candidate: tuple[int, ...]
    reference: tuple[int, ...]
    relation: str
    tier: Tier
    weight: float
    cost: float
    attributes: tuple[AttributeDifference, ...]
    reason: str

    @property
    def differing(self) -> tuple[str, ...]:
        return tuple(item.attribute for item in self.attributes if item.cost > 0)

    @property
    def verdict(self) -> Verdict:
        return "attribute_error" if self.differing else "correct"


@dataclass(frozen=True, slots=True)
class FindingError:
    """An error of the candidate, about findings of both reports by their indices; `cost` is its share of the sum."""

    kind: ErrorKind
    tier: Tier
    cost: float
    candidate: tuple[int, ...]
    reference: tuple[int, ...]
    attribute: str | None
    reason: str

    @property
    def differing(self) -> tuple[str, ...]:
        return () if self.attribute is None else (self.attribute,)

    @property
    def verdict(self) -> Verdict:
        return self.kind
