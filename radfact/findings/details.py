"""Compared findings as the details of a sample in a results folder, and counts by finding over the set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, NonNegativeInt, model_validator

from radfact.findings.records import TIERS, FindingError, FindingMatch, Verdict, describe_finding
from radfact.metrics.radfact.scores import PARTS
from radfact.reader.ontology import Ontology
from radfact.records import validate_model

if TYPE_CHECKING:
    from radfact.findings.comparison import FindingComparison

_SEVERITY = {"correct": 0, "attribute_error": 1, "omitted": 2, "unsupported": 2, "contradicted": 3}


class _Row(BaseModel):
    # A results folder may come from a later version.
    model_config = ConfigDict(extra="ignore")


class ListedFinding(_Row):
    """A finding of a report.

    Attributes:
        concept: name in the ontology.
        name: the same for a person.
        description: with side, zone and other attributes, for a person.
        text: source sentence.
        sentence: its index in the report.
        is_positive: whether it is scored: neither absent nor a statement of normality.
        verdict: None for an absent finding that the other report does not mention.
        attributes: that differ.
    """

    concept: str
    name: str
    description: str
    text: str = ""
    sentence: NonNegativeInt = 0
    is_positive: bool
    verdict: Verdict | None = None
    attributes: tuple[str, ...] = ()


class FindingDetails(_Row):
    """Details of a metric of findings about one sample: the findings of both reports, and how they compare."""

    candidate: tuple[ListedFinding, ...]
    reference: tuple[ListedFinding, ...]
    matches: tuple[FindingMatch, ...]
    errors: tuple[FindingError, ...]

    @model_validator(mode="after")
    def _check_indices(self) -> FindingDetails:
        for side in PARTS:
            count = len(getattr(self, side))
            for link in (*self.matches, *self.errors):
                if any(not 0 <= index < count for index in getattr(link, side)):
                    raise ValueError(f"expected indices of the {count} findings of the {side}")
        return self

    @property
    def links(self) -> list[FindingMatch | FindingError]:
        """Matches and errors without a match; errors come first, and then the most significant."""
        unmatched = [error for error in self.errors if error.kind != "attribute_error"]
        return sorted([*self.matches, *unmatched], key=lambda link: (link.verdict == "correct", TIERS.index(link.tier)))

    @property
    def outcomes(self) -> dict[str, FindingOutcome]:
        """What the candidate makes of each finding, by concept."""
        outcomes: dict[str, FindingOutcome] = {}
        for side in PARTS:
            for finding in getattr(self, side):
                is_unmatched = finding.verdict in ("unsupported", "contradicted")
                if not finding.is_positive or finding.verdict is None or not (side == "reference" or is_unmatched):
                    continue
                outcome = outcomes.setdefault(finding.concept, FindingOutcome(finding.name))
                if side == "reference":
                    outcome.reference = _worse(outcome.reference, finding.verdict)
                    outcome.is_side_error |= "side" in finding.attributes
                else:
                    outcome.candidate = _worse(outcome.candidate, finding.verdict)
        return outcomes


def record_comparison(comparison: FindingComparison, ontology: Ontology) -> dict[str, Any]:
    """Return a comparison as the JSON values that `read_details` reads; attributes that are not stated are excluded."""
    record: dict[str, Any] = {}
    for side in PARTS:
        positive = {index for unit in comparison.units[side] for index in unit.indices}
        judged = zip(comparison.findings[side], comparison.verdicts[side], strict=True)
        record[side] = [
            {
                **finding.model_dump(mode="json", exclude_defaults=True, exclude={"tier"}),
                "status": finding.status,
                **asdict(verdict),
                "name": ontology.terms.get(finding.concept, finding.concept),
                "description": describe_finding(finding, ontology),
                "is_positive": index in positive,
            }
            for index, (finding, verdict) in enumerate(judged)
        ]
    return {**record, "matches": list(map(asdict, comparison.matches)), "errors": list(map(asdict, comparison.errors))}


def read_details(
    record: Mapping[str, Any], *, file: Path | None = None, line: int | None = None
) -> FindingDetails | None:
    """Return the findings of a sample; None without scores, where the details have at most the counts of repeats."""
    is_compared = any(name in record for name in FindingDetails.model_fields)
    return validate_model(FindingDetails, record, file=file, line=line, field="details") if is_compared else None


@dataclass(slots=True)
class FindingOutcome:
    """What a candidate makes of one kind of finding. Where a report states it twice, the worse verdict counts.

    Attributes:
        name: of the finding, for a person.
        reference: verdict on the finding in the reference; None if the reference does not state it.
        candidate: the same on findings of the candidate that match nothing.
        is_side_error: whether a matched finding is on another side.
    """

    name: str
    reference: Verdict | None = None
    candidate: Verdict | None = None
    is_side_error: bool = False

    @property
    def verdict(self) -> Verdict | None:
        """The worse one of both; None if neither report states the finding."""
        return self.reference if self.candidate is None else _worse(self.reference, self.candidate)


def _worse(first: Verdict | None, second: Verdict) -> Verdict:
    return second if first is None else max(first, second, key=severity)


def severity(verdict: Verdict | None) -> int:
    """Return the order of verdicts; the finding is right at 0."""
    return 0 if verdict is None else _SEVERITY[verdict]


@dataclass(slots=True)
class FindingCounts:
    """Numbers of samples by what the candidate makes of one kind of finding.

    Attributes:
        support: the reference states it; the sum of the next counts without `side_error`.
        correct: all of it is correct.
        attribute_error: it is matched, with another attribute.
        side_error: of these, with another side.
        omitted: the candidate does not mention it.
        reference_contradicted: the candidate denies it.
        unsupported: the candidate states it, without a match in the reference.
        candidate_contradicted: the candidate states it, and the reference denies it.
    """

    support: int = 0
    correct: int = 0
    attribute_error: int = 0
    side_error: int = 0
    omitted: int = 0
    reference_contradicted: int = 0
    unsupported: int = 0
    candidate_contradicted: int = 0

    def add(self, outcome: FindingOutcome) -> None:
        """Count a sample."""
        verdicts = (("reference", outcome.reference), ("candidate", outcome.candidate))
        self.support += outcome.reference is not None
        self.side_error += outcome.is_side_error and outcome.reference == "attribute_error"
        for side, verdict in verdicts:
            if verdict is not None:
                name = f"{side}_contradicted" if verdict == "contradicted" else verdict
                setattr(self, name, getattr(self, name) + 1)


FINDING_COLUMNS = ("metric", "finding", *(field.name for field in fields(FindingCounts)))
"""Columns of `findings.csv`."""


class FindingTable:
    """Counts by finding over the samples of a set."""

    def __init__(self) -> None:
        """Create an empty table; `names` has the names of all positive findings, by concept."""
        self.names: dict[str, str] = {}
        self._counts: dict[str, FindingCounts] = {}

    def add(self, details: FindingDetails) -> None:
        """Count a sample."""
        for finding in (*details.candidate, *details.reference):
            if finding.is_positive:
                self.names[finding.concept] = finding.name
        for concept, outcome in details.outcomes.items():
            self._counts.setdefault(concept, FindingCounts()).add(outcome)

    @property
    def rows(self) -> list[tuple[str, FindingCounts]]:
        """Counts by concept, those of the most samples first."""

        def key(row: tuple[str, FindingCounts]) -> tuple[int, int, str]:
            concept, counts = row
            return -counts.support, -counts.unsupported - counts.candidate_contradicted, concept

        return sorted(self._counts.items(), key=key)


def count_findings(details: Iterable[Mapping[str, Any]]) -> FindingTable:
    """Return the counts by finding."""
    table = FindingTable()
    for record in details:
        if (compared := read_details(record)) is not None:
            table.add(compared)
    return table


def finding_rows(tables: Mapping[str, FindingTable]) -> list[tuple[str | int, ...]]:
    """Return the rows of `findings.csv`."""
    return [(metric, concept, *astuple(counts)) for metric, table in tables.items() for concept, counts in table.rows]
