"""Compared findings as the details of a sample in a results folder, and counts by finding over the set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from radfact.findings.records import TIERS, FindingError, FindingMatch, JudgedFinding, Verdict
from radfact.metrics.radfact.scores import PARTS
from radfact.records import validate_model

_SEVERITY = {"correct": 0, "attribute_error": 1, "omitted": 2, "unsupported": 2, "contradicted": 3}

COUNTS = (
    *("support", "correct", "attribute_error", "side_error", "omitted", "reference_contradicted"),
    *("unsupported", "candidate_contradicted"),
)
"""Numbers of samples by what the candidate makes of one kind of finding.

`support`, in which the reference states it, is the sum of the next counts, without `side_error`, which is a part of
`attribute_error`. In the last two, the candidate states it without a match in the reference.
"""
FINDING_COLUMNS = ("metric", "finding", *COUNTS)
"""Columns of `findings.csv`."""


class FindingDetails(BaseModel):
    """Details of a metric of findings about one sample: the findings of both reports, and how they compare."""

    # A results folder may come from a later version.
    model_config = ConfigDict(extra="ignore")

    candidate: list[JudgedFinding]
    reference: list[JudgedFinding]
    matches: list[FindingMatch]
    errors: list[FindingError]

    @model_validator(mode="after")
    def _check_indices(self) -> FindingDetails:
        for side in PARTS:
            count = len(getattr(self, side))
            for link in (*self.matches, *self.errors):
                if any(not 0 <= index < count for index in getattr(link, side)):
                    raise ValueError(f"expected indices of the {count} findings of the {side}")
        return self

    def as_record(self) -> dict[str, Any]:
        """Return the JSON values that `read_details` reads; attributes that are not stated are excluded."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)

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
                # Of the candidate, those that match nothing.
                counted = _SEVERITY if side == "reference" else ("unsupported", "contradicted")
                if finding.is_scored and finding.verdict in counted:
                    outcome = outcomes.setdefault(finding.concept, FindingOutcome(finding.name))
                    setattr(outcome, side, _worse(getattr(outcome, side), finding.verdict))
                    outcome.is_side_error |= side == "reference" and "side" in finding.attributes
        return outcomes


def read_details(
    record: Mapping[str, Any], *, file: Path | None = None, line: int | None = None
) -> FindingDetails | None:
    """Return the findings of a sample; None without scores, where the details have at most the counts of repeats."""
    is_compared = any(name in record for name in FindingDetails.model_fields)
    return validate_model(FindingDetails, record, file=file, line=line, field="details") if is_compared else None


@dataclass(slots=True)
class FindingOutcome:
    """What a candidate makes of one kind of finding. Where a report states it twice, the worse verdict counts.

    `reference` is the verdict on the finding in the reference, `candidate` that on findings of the candidate that match
    nothing; None if the report does not state it.
    """

    name: str
    reference: Verdict | None = None
    candidate: Verdict | None = None
    is_side_error: bool = False

    @property
    def verdict(self) -> Verdict | None:
        """The worse one of both; None if neither report states the finding."""
        return self.reference if self.candidate is None else _worse(self.reference, self.candidate)

    def counted(self) -> Iterator[str]:
        """Yield the names of the counts that the sample adds to."""
        if self.reference is not None:
            yield "support"
        if self.is_side_error and self.reference == "attribute_error":
            yield "side_error"
        for side, verdict in (("reference", self.reference), ("candidate", self.candidate)):
            if verdict is not None:
                yield f"{side}_contradicted" if verdict == "contradicted" else verdict


def _worse(first: Verdict | None, second: Verdict) -> Verdict:
    return second if first is None else max(first, second, key=severity)


def severity(verdict: Verdict | None) -> int:
    """Return the order of verdicts; the finding is right at 0."""
    return 0 if verdict is None else _SEVERITY[verdict]


class FindingTable:
    """Counts by finding over the samples of a set; `names` has the names of all scored findings, by concept."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self._counts: dict[str, Counter[str]] = {}

    def add(self, details: FindingDetails) -> None:
        for finding in (*details.candidate, *details.reference):
            if finding.is_scored:
                self.names[finding.concept] = finding.name
        for concept, outcome in details.outcomes.items():
            self._counts.setdefault(concept, Counter()).update(outcome.counted())

    @property
    def rows(self) -> list[tuple[str, tuple[int, ...]]]:
        """`COUNTS` by concept, those with the most references, then the most unmatched candidates, first."""
        rows = [(concept, tuple(counts[name] for name in COUNTS)) for concept, counts in self._counts.items()]
        return sorted(rows, key=lambda row: (-row[1][0], -sum(row[1][-2:]), row[0]))


def count_findings(details: Iterable[Mapping[str, Any]]) -> FindingTable:
    table = FindingTable()
    for record in details:
        if (compared := read_details(record)) is not None:
            table.add(compared)
    return table


def finding_rows(tables: Mapping[str, FindingTable]) -> list[tuple[str | int, ...]]:
    return [(metric, concept, *counts) for metric, table in tables.items() for concept, counts in table.rows]
