"""Candidate reports with errors that were put in on purpose: what was changed, and of which kind it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from radfact.error_categories import ERROR_CATEGORIES, CategoryLetter
from radfact.errors import InputError, check_unique_id
from radfact.io.jsonl import read_jsonl, write_jsonl
from radfact.meta.datasets.ratings import Rated, Ratings, count_directions, count_quantities
from radfact.records import Pair, Record, Text, validated

BY = "injected"
"""The rater that stands for the one who put the errors in."""


class Change(Record):
    """One error: the sentence as it was (None: the sentence is added) and as it is (None: it is taken out)."""

    category: CategoryLetter
    operation: str
    original: str | None = None
    modified: str | None = None


class Injected(Record):
    """A reference, a candidate made of it, and the errors that tell them apart.

    Attributes:
        sample_id: unique.
        source_id: of the report that it was made of.
        reference: that report.
        candidate: with the errors.
        category: of all its errors, where they are of one kind.
        changes: one an error; where only the kinds are known (paper 000, A.4), without texts.
        by: who put the errors in: rules, or the model's name.
        site: of the report, if known.
    """

    sample_id: Text
    source_id: Text
    reference: str
    candidate: str
    category: CategoryLetter | None = None
    changes: tuple[Change, ...] = Field(default=())
    by: str = "rules"
    site: str | None = None

    @property
    def pair(self) -> Pair:
        """The two reports."""
        return Pair(self.sample_id, self.candidate, self.reference)

    @property
    def counts(self) -> dict[str, float]:
        """Number of errors by letter."""
        found = dict.fromkeys(ERROR_CATEGORIES, 0.0)
        for change in self.changes:
            found[change.category] += 1
        return found


def write_injected(path: Path | str, rows: Iterable[Injected]) -> int:
    """Write JSON Lines and return how many there were."""
    return write_jsonl(path, (row.model_dump() for row in rows))


def read_injected(path: Path | str) -> list[Injected]:
    """Read what `write_injected` wrote.

    Raises:
        InputError: naming file, line and field.
    """
    found, seen = [], dict[str, int]()
    for line, row in read_jsonl(path):
        one = validated(Injected, row, file=path, line=line)
        check_unique_id(seen, one.sample_id, line, file=path)
        found.append(one)
    if not found:
        raise InputError("holds no reports", file=path)
    return found


def as_ratings(rows: Iterable[Injected]) -> Ratings:
    """The errors that were put in, in the place of an expert's counts of significant errors."""
    samples = []
    for row in rows:
        counts: Mapping[str, Any] = {"significant": {letter: {BY: n} for letter, n in row.counts.items()}}
        groups: dict[str, str] = {"category": row.category} if row.category else {}
        if row.site:
            groups["site"] = row.site
        samples.append(Rated(row.pair, count_quantities(counts), groups))
    return Ratings(samples, count_directions(), "errors", "category")
