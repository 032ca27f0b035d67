"""What experts say of candidate reports: one layout for all published sets of ratings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from radfact.error_categories import ERROR_CATEGORIES
from radfact.errors import InputError
from radfact.metrics.responses.corrections import Corrections
from radfact.records import Pair

Better = Literal["higher", "lower"]

COUNTS = ("errors", "significant", "insignificant")
"""Numbers of errors: all, and by significance. `KIND_LETTER` is the number in one category of paper 000."""

SEVERITY_MAX = "severity_max"
"""The greatest grade that an expert gave a line of a report, which he may have changed or not."""


def is_of_category(quantity: str) -> bool:
    """Whether a quantity is the number of errors in one category."""
    kind, _, letter = quantity.partition("_")
    return kind in COUNTS[1:] and letter in ERROR_CATEGORIES


@dataclass(frozen=True, slots=True)
class Rated:
    """A candidate report that experts have rated.

    Attributes:
        pair: the reports.
        ratings: quantity -> rater -> value; a rater that is absent has not rated it.
        groups: kind of group -> the sample's, such as site or modality.
        corrections: the expert's correction of every line, where the set has them; `SEVERITY_MAX` is rated then too.
        candidate_id: of the candidate alone, where every rater has it beside a reference of his own and so in a sample
            of his own; None where the sample is the candidate's only one.
    """

    pair: Pair
    ratings: Mapping[str, Mapping[str, float]]
    groups: Mapping[str, str] = field(default_factory=dict)
    corrections: Corrections | None = None
    candidate_id: str | None = None

    def mean(self, quantity: str) -> float:
        """The mean over raters; NaN where none has rated it."""
        values = [value for value in self.ratings.get(quantity, {}).values() if not math.isnan(value)]
        return sum(values) / len(values) if values else math.nan


@dataclass(frozen=True, slots=True)
class Ratings:
    """A set of ratings.

    Attributes:
        samples: in the order of the file.
        better: which way is better, by quantity.
        target: the quantity that stands for the whole opinion.
        group: kind of group that correlations are taken in, if none is asked for.
        notes: what was left out, a sentence each.
    """

    samples: Sequence[Rated]
    better: Mapping[str, Better]
    target: str
    group: str | None = None
    notes: Sequence[str] = ()

    @property
    def pairs(self) -> list[Pair]:
        """The reports."""
        return [one.pair for one in self.samples]

    def only(self, ids: frozenset[str]) -> Ratings:
        """The samples of these ids, in their order.

        Args:
            ids: of samples, or what their ids begin with before an underscore: all candidates of a study.

        Raises:
            InputError: there is no sample of one of them.
        """
        kept = [one for one in self.samples if not ids.isdisjoint(_beginnings(one.pair.sample_id))]
        missing = ids.difference(*(_beginnings(one.pair.sample_id) for one in kept))
        if missing:
            known = ", ".join(one.pair.sample_id for one in self.samples[:3])
            raise InputError(f"no report has the id '{min(missing)}'; there are {known}, ...", field="ids")
        return replace(self, samples=kept)

    def means(self, quantity: str) -> list[float]:
        """The mean over raters of every sample."""
        return [one.mean(quantity) for one in self.samples]

    def raters(self, quantity: str) -> list[str]:
        """All who have rated it, in the order of their names."""
        return sorted({rater for one in self.samples for rater in one.ratings.get(quantity, {})})

    def of_samples(self, quantity: str, rater: str) -> list[float]:
        """One rater's value of every sample; NaN where there is none."""
        return [one.ratings.get(quantity, {}).get(rater, math.nan) for one in self.samples]

    def by_rater(self, quantity: str, rater: str) -> list[float]:
        """One rater's value of every candidate, in the order of the samples; NaN where there is none."""
        values: dict[str, float] = {}
        for one in self.samples:
            key = one.candidate_id or one.pair.sample_id
            values[key] = one.ratings.get(quantity, {}).get(rater, values.get(key, math.nan))
        return list(values.values())

    def in_group(self, kind: str | None) -> dict[str, list[int]]:
        """Places of the samples of each group, named `all` first; groups in the order of their names.

        A group that is itself called `all`, as a site may be, is named with its kind, `all (site)`.
        """
        groups: dict[str, list[int]] = {}
        for place, one in enumerate(self.samples):
            if kind is not None and (name := one.groups.get(kind)):
                groups.setdefault(f"all ({kind})" if name == "all" else name, []).append(place)
        return {"all": list(range(len(self.samples))), **dict(sorted(groups.items()))}


def _beginnings(sample_id: str) -> set[str]:
    parts = sample_id.split("_")
    return {"_".join(parts[:count]) for count in range(1, len(parts) + 1)}


def count_quantities(counts: Mapping[str, Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """The quantities of error counts: kind -> letter -> rater -> number becomes quantity -> rater -> number.

    A rater's total is NaN where one of the counts in it is not known; a category that is absent has no errors.

    Args:
        counts: of `significant` and `insignificant` errors.
    """
    found: dict[str, dict[str, float]] = {}
    raters = {rater for kind in counts.values() for letter in kind.values() for rater in letter}
    for rater in sorted(raters):
        total = 0.0
        for kind in ("significant", "insignificant"):
            of_kind = {letter: counts.get(kind, {}).get(letter, {}).get(rater, 0.0) for letter in ERROR_CATEGORIES}
            others = [
                by.get(rater, 0.0) for letter, by in counts.get(kind, {}).items() if letter not in ERROR_CATEGORIES
            ]
            for letter, number in of_kind.items():
                found.setdefault(f"{kind}_{letter}", {})[rater] = number
            found.setdefault(kind, {})[rater] = sum(of_kind.values()) + sum(others)
            total += found[kind][rater]
        found.setdefault("errors", {})[rater] = total
    return found


def count_directions() -> dict[str, Better]:
    """Fewer errors are better, of every kind."""
    names = [*COUNTS, *(f"{kind}_{letter}" for kind in COUNTS[1:] for letter in ERROR_CATEGORIES)]
    return dict.fromkeys(names, "lower")
