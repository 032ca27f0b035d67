"""Findings in a results folder: those of each study in `metrics/NAME.jsonl`, and counts by finding over the set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import NonNegativeInt, model_validator

from radfact.findings.comparison import ErrorKind, Verdict
from radfact.findings.records import Tier
from radfact.findings.significance import TIERS
from radfact.io.jsonl import read_jsonl
from radfact.metrics.radfact.scores import PARTS
from radfact.records import validate_model
from radfact.results.schema import METRICS_FOLDER, MetricCacheRow, Row, ScoresFile

_SEVERITY: Mapping[Verdict, int] = {
    "correct": 0,
    "attribute_error": 1,
    "omitted": 2,
    "unsupported": 2,
    "contradicted": 3,
}


class ListedFinding(Row):
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


class _Attribute(Row):
    attribute: str
    cost: float


class _Match(Row):
    candidate: tuple[NonNegativeInt, ...]
    reference: tuple[NonNegativeInt, ...]
    tier: Tier
    reason: str
    attributes: tuple[_Attribute, ...]


class _Error(Row):
    kind: ErrorKind
    candidate: tuple[NonNegativeInt, ...]
    reference: tuple[NonNegativeInt, ...]
    tier: Tier
    reason: str


class FindingLink(NamedTuple):
    """Findings of both reports that match, or a finding without a match and those that deny it.

    Attributes:
        verdict: on them.
        tier: their clinical significance.
        candidate: indices of the findings of the candidate.
        reference: indices of the findings of the reference.
        attributes: that differ.
        reason: in words.
    """

    verdict: Verdict
    tier: Tier
    candidate: tuple[int, ...]
    reference: tuple[int, ...]
    attributes: tuple[str, ...]
    reason: str


class FindingDetails(Row):
    """Details of a metric of findings about one sample: the findings of both reports, and how they compare."""

    candidate: tuple[ListedFinding, ...]
    reference: tuple[ListedFinding, ...]
    matches: tuple[_Match, ...]
    errors: tuple[_Error, ...]

    @model_validator(mode="after")
    def _check_indices(self) -> FindingDetails:
        for side in PARTS:
            count = len(getattr(self, side))
            for link in (*self.matches, *self.errors):
                if any(index >= count for index in getattr(link, side)):
                    raise ValueError(f"expected indices of the {count} findings of the {side}")
        return self

    @property
    def links(self) -> list[FindingLink]:
        """Matches and errors without a match; errors come first, and then the most significant."""
        links = []
        for match in self.matches:
            differing = tuple(item.attribute for item in match.attributes if item.cost > 0)
            verdict: Verdict = "attribute_error" if differing else "correct"
            links.append(FindingLink(verdict, match.tier, match.candidate, match.reference, differing, match.reason))
        links += [
            FindingLink(error.kind, error.tier, error.candidate, error.reference, (), error.reason)
            for error in self.errors
            if error.kind != "attribute_error"
        ]
        return sorted(links, key=lambda link: (link.verdict == "correct", TIERS.index(link.tier)))

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


def read_details(
    record: Mapping[str, Any], *, file: Path | None = None, line: int | None = None
) -> FindingDetails | None:
    """Return the findings of a sample; None without scores, where the details have at most the counts of repeats.

    Args:
        record: details of a metric of findings.
        file: for error messages.
        line: for error messages.

    Raises:
        InputError: the record does not match the schema.
    """
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
    """Return the order of verdicts; the finding is right at 0.

    Args:
        verdict: None if neither report states the finding.
    """
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
    """Return the counts by finding.

    Args:
        details: of a metric of findings, one record per sample.
    """
    table = FindingTable()
    for record in details:
        if (compared := read_details(record)) is not None:
            table.add(compared)
    return table


def finding_rows(tables: Mapping[str, FindingTable]) -> list[tuple[str | int, ...]]:
    """Return the rows of `findings.csv`.

    Args:
        tables: by metric.
    """
    return [(metric, concept, *astuple(counts)) for metric, table in tables.items() for concept, counts in table.rows]


def finding_metrics(settings: Mapping[str, Mapping[str, Any] | None]) -> list[str]:
    """Return the metrics that compare findings.

    Args:
        settings: what each metric says of itself (`Metric.describe`), by name.
    """
    return [name for name, record in settings.items() if record and {"extractor", "significance"} <= record.keys()]


def finding_metrics_of(scores: ScoresFile) -> list[str]:
    """Return the metrics of a results folder that compare findings."""
    return finding_metrics({name: metric.settings for name, metric in scores.metrics.items()})


def iter_outcomes(folder: Path, metric: str) -> Iterator[tuple[str, dict[str, FindingOutcome]]]:
    """Yield the samples that a metric of findings scored, each with what the candidate makes of its findings.

    Args:
        folder: results folder.
        metric: from `finding_metrics_of`.

    Raises:
        InputError: the file is missing or does not match its schema.
    """
    path = folder / METRICS_FOLDER / f"{metric}.jsonl"
    for line, values in read_jsonl(path):
        row = validate_model(MetricCacheRow, values, file=path, line=line)
        if (compared := read_details(row.details, file=path, line=line)) is not None:
            yield row.sample_id, compared.outcomes
