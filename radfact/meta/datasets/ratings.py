"""Expert ratings of candidate reports in one form for all published rating sets."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, filterfalse
from typing import Literal

from radfact.error_categories import ERROR_CATEGORIES
from radfact.errors import ErrorCode, InputError, option_error
from radfact.metrics.llm.responses.corrections import Corrections
from radfact.records import Pair, digest
from radfact.statistics.clusters import Clusters, clusters_of
from radfact.statistics.rater_agreement import Mean, describe_agreement

Better = Literal["higher", "lower"]

COUNTS = ("errors", "significant", "insignificant")
"""Numbers of errors: all, and by significance. `KIND_LETTER` is the number in one of GREEN's categories."""

Count = tuple[str, str, str]
"""A number of errors by significance, category and rater."""

SEVERITY_MAX = "severity_max"
"""The greatest severity that an expert assigned to a line of a report, corrected or not."""


def check_scale(scale: tuple[float, float]) -> tuple[float, float]:
    """Return the lowest and the highest rating, as in `--scale LOW HIGH`."""
    low, high = scale
    if not -math.inf < low < high < math.inf:
        raise option_error(f"expected finite LOW < HIGH, found {low:g} {high:g}", "scale")
    return scale


def is_category_count(quantity: str) -> bool:
    kind, _, letter = quantity.partition("_")
    return kind in COUNTS[1:] and letter in ERROR_CATEGORIES


@dataclass(frozen=True, slots=True)
class RatedReport:
    """A candidate report with expert ratings, quantity -> rater -> value; an absent rater has not rated the report.

    `groups` are by kind, such as site or modality. An expert's `corrections` of lines also rate `SEVERITY_MAX`. In sets
    in which every rater has an own reference, and so an own sample, `candidate_id` is that of their common candidate.
    """

    pair: Pair
    ratings: Mapping[str, Mapping[str, float]]
    groups: Mapping[str, str] = field(default_factory=dict)
    corrections: Corrections | None = None
    candidate_id: str | None = None

    def mean(self, quantity: str) -> float:
        """Return the mean over raters; NaN without a rating."""
        value = Mean.of(self.ratings.get(quantity, {}).values()).value
        return math.nan if value is None else value


@dataclass(frozen=True, slots=True)
class RatingSet:
    """A set of expert ratings in the order of the file, and which values of each quantity are better.

    `target` is correlated with scores, also within each `group` of a kind. `cluster_by` is what samples with the same
    `pair.cluster` share, such as `study_id`. A `numbered` set has the positions of rows as ids.
    """

    samples: Sequence[RatedReport]
    better: Mapping[str, Better]
    target: str
    group: str | None = None
    notes: Sequence[str] = ()
    cluster_by: str | None = None
    numbered: bool = False

    @property
    def clusters(self) -> Clusters:
        """Clusters of the samples, which the bootstrap draws as a whole."""
        return self._clusters(self.samples)

    @property
    def candidate_clusters(self) -> Clusters:
        """Clusters of the candidates, in the order of `values_by_rater`."""
        return self._clusters([samples[-1] for samples in self.candidates()])

    def _clusters(self, samples: Sequence[RatedReport]) -> Clusters:
        labels = [None if self.cluster_by is None else sample.pair.cluster for sample in samples]
        ids = [sample.pair.sample_id for sample in samples]
        if self.numbered:
            ids = [f"{digest(sample.pair.candidate, sample.pair.reference)} {sample.ratings}" for sample in samples]
        return clusters_of(self.cluster_by, labels, ids)

    def candidates(self) -> Collection[list[RatedReport]]:
        """Return the samples of each candidate."""
        candidates: dict[str, list[RatedReport]] = {}
        for sample in self.samples:
            candidates.setdefault(sample.candidate_id or sample.pair.sample_id, []).append(sample)
        return candidates.values()

    @property
    def has_categories(self) -> bool:
        return all(f"{kind}_{letter}" in self.better for kind in COUNTS[1:] for letter in ERROR_CATEGORIES)

    @property
    def pairs(self) -> list[Pair]:
        return [sample.pair for sample in self.samples]

    def select(self, ids: frozenset[str]) -> RatingSet:
        """Return the samples with some ids."""
        selected = [sample for sample in self.samples if not ids.isdisjoint(_id_prefixes(sample.pair.sample_id))]
        missing = ids.difference(*(_id_prefixes(sample.pair.sample_id) for sample in selected))
        if missing:
            known = ", ".join(sample.pair.sample_id for sample in self.samples[:3])
            message = f"no report has the id '{min(missing)}'; ids are {known}, ..."
            raise InputError(message, code=ErrorCode.UNKNOWN_NAME, field="ids")
        return replace(self, samples=selected)

    def means(self, quantity: str) -> list[float]:
        return [sample.mean(quantity) for sample in self.samples]

    def values_by_rater(self, quantity: str) -> dict[str, list[float]]:
        """Return each rater's value of every candidate, in the order of the samples; NaN without a rating."""
        ratings = [
            {rater: value for sample in samples for rater, value in sample.ratings.get(quantity, {}).items()}
            for samples in self.candidates()
        ]
        return {rater: [of.get(rater, math.nan) for of in ratings] for rater in sorted(set[str]().union(*ratings))}

    def agreement_notes(self) -> list[str]:
        """Return a sentence about the agreement of the raters of each candidate on the target, if there are several."""
        columns = self.values_by_rater(self.target)
        known = [[value for value in row if not math.isnan(value)] for row in zip(*columns.values(), strict=True)]
        return [describe_agreement(known, "interval", f"'{self.target}'")] if len(columns) > 1 else []

    def missing_notes(self) -> list[str]:
        """Return a sentence for each quantity with missing ratings, except counts of single categories."""
        notes = []
        for quantity in filterfalse(is_category_count, self.better):
            values = [value for sample in self.samples for value in sample.ratings.get(quantity, {}).values()]
            if missing := sum(map(math.isnan, values)):
                notes.append(f"{missing} of {len(values)} ratings of '{quantity}' are missing and excluded.")
        return notes

    def indices_by_group(self, kind: str | None) -> dict[str, list[int]]:
        """Return the indices of all samples as `all`, then of each group by name; a group `all` is `all (KIND)`."""
        groups: dict[str, list[int]] = {}
        for index, sample in enumerate(self.samples):
            if kind is not None and (name := sample.groups.get(kind)):
                groups.setdefault(f"all ({kind})" if name == "all" else name, []).append(index)
        return {"all": list(range(len(self.samples))), **dict(sorted(groups.items()))}


def _id_prefixes(sample_id: str) -> set[str]:
    return {*accumulate(sample_id.split("_"), "{}_{}".format)}


def count_quantities(counts: Mapping[Count, float]) -> dict[str, dict[str, float]]:
    """Return quantity -> rater -> number; a total with a missing count is NaN, an absent category has no errors."""
    quantities: dict[str, dict[str, float]] = {name: {} for name in count_directions()}
    for rater in sorted({rater for *_, rater in counts}):
        for kind in COUNTS[1:]:
            numbers = {letter: n for (of, letter, by), n in counts.items() if (of, by) == (kind, rater)}
            for letter in ERROR_CATEGORIES:
                quantities[f"{kind}_{letter}"][rater] = numbers.get(letter, 0.0)
            quantities[kind][rater] = sum(numbers.values(), 0.0)
        quantities["errors"][rater] = sum(quantities[kind][rater] for kind in COUNTS[1:])
    return quantities


def count_directions() -> dict[str, Better]:
    names = [*COUNTS, *(f"{kind}_{letter}" for kind in COUNTS[1:] for letter in ERROR_CATEGORIES)]
    return dict.fromkeys(names, "lower")
