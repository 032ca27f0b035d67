"""Compared findings as the details of a sample in a results folder, counts by finding, and changes between systems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
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
    """What a candidate makes of a kind of finding: the worst verdicts in both reports, None where it is not stated."""

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
    return second if first is None else max(first, second, key=_severity)


def _severity(verdict: Verdict | None) -> int:
    """Return the order of verdicts; the finding is right at 0."""
    return 0 if verdict is None else _SEVERITY[verdict]


Outcomes = Mapping[str, Mapping[str, Mapping[str, FindingOutcome]]]
"""Metric -> sample_id -> concept -> what the candidate makes of the finding."""


class FindingTable:
    """Counts by finding over the samples of a set; `names` has the names of all scored findings, by concept."""

    def __init__(self, details: Iterable[Mapping[str, Any]] = ()) -> None:
        self.names: dict[str, str] = {}
        self._counts: dict[str, Counter[str]] = {}
        for compared in filter(None, map(read_details, details)):
            self.add(compared)

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


def finding_rows(tables: Mapping[str, FindingTable]) -> list[tuple[str | int, ...]]:
    return [(metric, concept, *counts) for metric, table in tables.items() for concept, counts in table.rows]


@dataclass(frozen=True, slots=True)
class FindingChange:
    """A study in which two systems differ in a finding; a verdict is None where neither report states the finding."""

    sample_id: str
    baseline: Verdict | None
    system: Verdict | None


@dataclass(slots=True)
class FindingContrast:
    """One kind of finding, over the samples whose findings were compared for two systems."""

    metric: str
    finding: str
    name: str
    support: int = 0  # samples whose reference states the finding
    baseline_errors: int = 0
    errors: int = 0  # samples in which the system is wrong about it
    improved: list[FindingChange] = field(default_factory=list)
    worse: list[FindingChange] = field(default_factory=list)

    @property
    def net(self) -> int:
        """Number of improved samples minus that of worse ones."""
        return len(self.improved) - len(self.worse)


def contrast_findings(baseline: Outcomes, system: Outcomes) -> list[FindingContrast]:
    """Compare two systems by kind of finding; those with the largest net improvement come first."""
    contrasts: dict[tuple[str, str], FindingContrast] = {}
    for metric in (name for name in baseline if name in system):
        for sample_id, first in baseline[metric].items():
            second = system[metric].get(sample_id)
            if second is None:
                continue
            for concept in dict.fromkeys((*first, *second)):
                name = (first.get(concept) or second[concept]).name
                own, other = (outcomes.get(concept) or FindingOutcome(name) for outcomes in (first, second))
                contrast = contrasts.setdefault((metric, concept), FindingContrast(metric, concept, name))
                contrast.support += own.reference is not None or other.reference is not None
                severities = _severity(own.verdict), _severity(other.verdict)
                contrast.baseline_errors += severities[0] > 0
                contrast.errors += severities[1] > 0
                if severities[0] != severities[1]:
                    changes = contrast.worse if severities[0] < severities[1] else contrast.improved
                    changes.append(FindingChange(sample_id, own.verdict, other.verdict))
    return sorted(contrasts.values(), key=lambda contrast: (contrast.metric, -contrast.net, contrast.finding))
