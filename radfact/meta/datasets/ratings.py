"""Expert ratings of candidate reports in one form for all published rating sets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import filterfalse
from typing import Literal

from radfact.error_categories import ERROR_CATEGORIES
from radfact.errors import ErrorCode, InputError
from radfact.metrics.llm.responses.corrections import Corrections
from radfact.records import Pair
from radfact.statistics.clusters import Clusters, clusters_of

Better = Literal["higher", "lower"]

COUNTS = ("errors", "significant", "insignificant")
"""Numbers of errors: all, and by significance. `KIND_LETTER` is the number in one of GREEN's categories."""

SEVERITY_MAX = "severity_max"
"""The greatest severity that an expert assigned to a line of a report, corrected or not."""


def is_category_count(quantity: str) -> bool:
    """Return whether a quantity is the number of errors in one category."""
    kind, _, letter = quantity.partition("_")
    return kind in COUNTS[1:] and letter in ERROR_CATEGORIES


@dataclass(frozen=True, slots=True)
class RatedReport:
    """A candidate report with expert ratings.

    Attributes:
        pair: candidate and reference.
        ratings: quantity -> rater -> value; an absent rater has not rated the report.
        groups: kind of group, such as site or modality -> group of the report.
        corrections: the expert's corrections of lines, in sets that have them; these also rate `SEVERITY_MAX`.
        candidate_id: id of the candidate in sets in which every rater has an own reference, and so an own sample, of
            the same candidate; None if the candidate has one sample.
    """

    pair: Pair
    ratings: Mapping[str, Mapping[str, float]]
    groups: Mapping[str, str] = field(default_factory=dict)
    corrections: Corrections | None = None
    candidate_id: str | None = None

    def mean(self, quantity: str) -> float:
        """Return the mean over raters; NaN without a rating."""
        values = [value for value in self.ratings.get(quantity, {}).values() if not math.isnan(value)]
        return sum(values) / len(values) if values else math.nan


@dataclass(frozen=True, slots=True)
class RatingSet:
    """A set of expert ratings.

    Attributes:
        samples: rated reports in the order of the file.
        better: which values are better, by quantity.
        target: quantity that metrics are correlated with.
        group: default kind of group for correlations within groups.
        notes: sentences about missing ratings.
        cluster_by: what the samples with the same `pair.cluster` share, such as `study_id`; None if samples are
            resampled.
    """

    samples: Sequence[RatedReport]
    better: Mapping[str, Better]
    target: str
    group: str | None = None
    notes: Sequence[str] = ()
    cluster_by: str | None = None

    @property
    def clusters(self) -> Clusters | None:
        """Clusters of the samples, which the bootstrap draws as a whole."""
        return clusters_of(self.cluster_by, [self._cluster(sample) for sample in self.samples])

    @property
    def candidate_clusters(self) -> Clusters | None:
        """Clusters of the candidates, in the order of `values_by_candidate`."""
        labels = {sample.candidate_id or sample.pair.sample_id: self._cluster(sample) for sample in self.samples}
        return clusters_of(self.cluster_by, list(labels.values()))

    def _cluster(self, sample: RatedReport) -> str | None:
        return None if self.cluster_by is None else sample.pair.cluster

    @property
    def pairs(self) -> list[Pair]:
        """Candidates and references."""
        return [sample.pair for sample in self.samples]

    def select(self, ids: frozenset[str]) -> RatingSet:
        """Return the samples with some ids."""
        selected = [sample for sample in self.samples if not ids.isdisjoint(_id_prefixes(sample.pair.sample_id))]
        missing = ids.difference(*(_id_prefixes(sample.pair.sample_id) for sample in selected))
        if missing:
            known = ", ".join(sample.pair.sample_id for sample in self.samples[:3])
            raise InputError(
                f"no report has the id '{min(missing)}'; ids are {known}, ...", code=ErrorCode.UNKNOWN_NAME, field="ids"
            )
        return replace(self, samples=selected)

    def means(self, quantity: str) -> list[float]:
        """Return the mean over raters of every sample."""
        return [sample.mean(quantity) for sample in self.samples]

    def raters(self, quantity: str) -> list[str]:
        """Return all raters of a quantity, sorted."""
        return sorted({rater for sample in self.samples for rater in sample.ratings.get(quantity, {})})

    def values_by_sample(self, quantity: str, rater: str) -> list[float]:
        """Return one rater's value of every sample; NaN without a rating."""
        return [sample.ratings.get(quantity, {}).get(rater, math.nan) for sample in self.samples]

    def values_by_candidate(self, quantity: str, rater: str) -> list[float]:
        """Return one rater's value of every candidate, in the order of the samples; NaN without a rating."""
        values: dict[str, float] = {}
        for sample in self.samples:
            key = sample.candidate_id or sample.pair.sample_id
            values[key] = sample.ratings.get(quantity, {}).get(rater, values.get(key, math.nan))
        return list(values.values())

    def missing_notes(self) -> list[str]:
        """Return a sentence for each quantity with missing ratings, except counts of single categories."""
        notes = []
        for quantity in filterfalse(is_category_count, self.better):
            values = [value for sample in self.samples for value in sample.ratings.get(quantity, {}).values()]
            if missing := sum(map(math.isnan, values)):
                notes.append(f"{missing} of {len(values)} ratings of '{quantity}' are missing and excluded.")
        return notes

    def indices_by_group(self, kind: str | None) -> dict[str, list[int]]:
        """Return the indices of all samples as `all`, then those of each group, sorted by name.

        A group with the name `all` becomes `all (KIND)`.
        """
        groups: dict[str, list[int]] = {}
        for index, sample in enumerate(self.samples):
            if kind is not None and (name := sample.groups.get(kind)):
                groups.setdefault(f"all ({kind})" if name == "all" else name, []).append(index)
        return {"all": list(range(len(self.samples))), **dict(sorted(groups.items()))}


def _id_prefixes(sample_id: str) -> set[str]:
    parts = sample_id.split("_")
    return {"_".join(parts[:count]) for count in range(1, len(parts) + 1)}


def count_quantities(counts: Mapping[str, Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """Convert error counts, kind -> letter -> rater -> number, to quantities, quantity -> rater -> number.

    A rater's total is NaN if one of its counts is NaN; an absent category has no errors.
    """
    quantities: dict[str, dict[str, float]] = {}
    raters = {rater for kind in counts.values() for letter in kind.values() for rater in letter}
    for rater in sorted(raters):
        total = 0.0
        for kind in ("significant", "insignificant"):
            by_letter = {letter: counts.get(kind, {}).get(letter, {}).get(rater, 0.0) for letter in ERROR_CATEGORIES}
            others = [
                by.get(rater, 0.0) for letter, by in counts.get(kind, {}).items() if letter not in ERROR_CATEGORIES
            ]
            for letter, number in by_letter.items():
                quantities.setdefault(f"{kind}_{letter}", {})[rater] = number
            quantities.setdefault(kind, {})[rater] = sum(by_letter.values()) + sum(others)
            total += quantities[kind][rater]
        quantities.setdefault("errors", {})[rater] = total
    return quantities


def count_directions() -> dict[str, Better]:
    """Return that fewer errors are better, for every count of errors."""
    names = [*COUNTS, *(f"{kind}_{letter}" for kind in COUNTS[1:] for letter in ERROR_CATEGORIES)]
    return dict.fromkeys(names, "lower")
