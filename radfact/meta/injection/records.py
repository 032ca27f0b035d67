"""Reports with injected errors: what was changed, and the category of each error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from radfact.error_categories import ERROR_CATEGORIES, CategoryLetter
from radfact.errors import ErrorCode, InputError, check_unique_id
from radfact.io.jsonl import read_jsonl, write_jsonl
from radfact.meta.datasets.ratings import RatedReport, RatingSet, count_directions, count_quantities
from radfact.records import Pair, Record, Text, validate_model

_RATER = "injected"


class InjectedError(Record):
    """One error: the original sentence (None if added) and the modified one (None if removed)."""

    category: CategoryLetter
    operation: str
    original: str | None = None
    modified: str | None = None


class InjectedReport(Record):
    """A reference, a candidate made from it, and the errors in the candidate.

    Attributes:
        sample_id: unique id of the candidate.
        source_id: id of the report that the candidate is made from.
        reference: that report.
        candidate: the report with errors.
        category: category of all errors; None for several categories.
        changes: the errors; without texts where only their categories are known (GREEN, appendix A.4).
        by: `rules`, or the name of the model.
        site: site of the report, if known.
    """

    sample_id: Text
    source_id: Text
    reference: str
    candidate: str
    category: CategoryLetter | None = None
    changes: tuple[InjectedError, ...] = Field(default=())
    by: str = "rules"
    site: str | None = None

    @property
    def pair(self) -> Pair:
        """Candidate and reference."""
        return Pair(self.sample_id, self.candidate, self.reference)

    @property
    def counts(self) -> dict[str, float]:
        """Number of errors by letter."""
        counts = dict.fromkeys(ERROR_CATEGORIES, 0.0)
        for change in self.changes:
            counts[change.category] += 1
        return counts


def write_injected(path: Path | str, reports: Iterable[InjectedReport]) -> int:
    """Write JSON Lines and return the number of reports."""
    return write_jsonl(path, (report.model_dump() for report in reports))


def read_injected(path: Path | str) -> list[InjectedReport]:
    """Read the file of `write_injected`."""
    reports, seen = [], dict[str, int]()
    for line, row in read_jsonl(path):
        report = validate_model(InjectedReport, row, file=path, line=line)
        check_unique_id(seen, report.sample_id, line, file=path)
        reports.append(report)
    if not reports:
        raise InputError("expected reports, found none", code=ErrorCode.EMPTY_INPUT, file=path)
    return reports


def to_rating_set(reports: Iterable[InjectedReport]) -> RatingSet:
    """Return the injected errors as if an expert had counted them as significant errors."""
    samples = []
    for report in reports:
        counts: Mapping[str, Any] = {"significant": {letter: {_RATER: n} for letter, n in report.counts.items()}}
        groups = {"category": report.category, "site": report.site}
        samples.append(
            RatedReport(report.pair, count_quantities(counts), {kind: name for kind, name in groups.items() if name})
        )
    return RatingSet(samples, count_directions(), "errors", "category")
