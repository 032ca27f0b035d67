"""Statistics of a reader study: outcomes by arm, their differences, non-inferiority, and agreement of readers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from maira.review.effects import Effect, Estimates, Rated, estimate_effects
from maira.review.readings import Reading

Direction = Literal["lower", "higher"]
Verdict = Literal["non-inferior", "not shown", "inferior"]


class Outcome(NamedTuple):
    """A value of a reading.

    Attributes:
        name: name in files.
        label: name on the page, with the unit.
        direction: which values are better.
        value: of a finished reading, NaN = missing.
        is_ratio: whether means are geometric and arms are compared by a ratio.
    """

    name: str
    label: str
    direction: Direction
    value: Callable[[Reading], float]
    is_ratio: bool = False


def _worst_is(reading: Reading, minimum: int) -> float:
    return math.nan if reading.worst is None else float(reading.worst >= minimum)


def _log_time(reading: Reading) -> float:
    seconds = reading.active_seconds
    return math.log(seconds) if seconds > 0 else math.nan


OUTCOMES = (
    Outcome("corrections", "corrections per report", "lower", lambda reading: len(reading.state.corrections)),
    Outcome(
        "uncorrected", "share of reports without correction", "higher", lambda reading: not reading.state.corrections
    ),
    Outcome("implications", "share of reports with minor or significant implications", "lower",
            lambda reading: _worst_is(reading, 1)),
    Outcome("significant", "share of reports with significant implications", "lower",
            lambda reading: _worst_is(reading, 2)),
    Outcome("active_seconds", "active time (s)", "lower", lambda reading: reading.active_seconds),
    Outcome("active_ratio", "active time, geometric mean (s) and ratio", "lower", _log_time, is_ratio=True),
)  # fmt: skip
"""Outcomes of a reading."""


@dataclass(frozen=True, slots=True)
class Margin:
    """A non-inferiority margin.

    Attributes:
        outcome: name of the outcome.
        value: largest difference from the baseline that is acceptable, in the unit of the outcome; for a ratio the
            largest ratio.
        origin: when it was given.
    """

    outcome: str
    value: float
    origin: str


@dataclass(frozen=True, slots=True)
class NonInferiority:
    """Result of an arm against the baseline for one margin; verdict None without an interval."""

    arm: str
    baseline: str
    margin: Margin
    difference: Effect
    verdict: Verdict | None


@dataclass(frozen=True, slots=True)
class ReaderStudy:
    """Statistics of the finished and counted readings of a review.

    Attributes:
        arms: names, the baseline first.
        readings: the readings.
        estimates: by outcome.
        paired: by pair of arms the number of pairs of readings of one reader and sample in both arms, and of samples
            in both arms.
        noninferiority: results of margins.
        alpha: significance level; intervals are at 1 - alpha.
    """

    arms: tuple[str, ...]
    readings: tuple[Reading, ...]
    estimates: dict[Outcome, Estimates]
    paired: dict[tuple[str, str], tuple[int, int]]
    noninferiority: tuple[NonInferiority, ...]
    alpha: float

    def of_arm(self, arm: str) -> list[Reading]:
        """Return the readings in an arm."""
        return [reading for reading in self.readings if reading.draft.arm == arm]


def analyze(
    readings: Sequence[Reading], arms: Sequence[str], margins: Sequence[Margin] = (), *, alpha: float = 0.05
) -> ReaderStudy:
    """Compute the statistics of a reader study.

    Args:
        readings: all readings; those that are finished and counted are used.
        arms: names of the arms, the baseline first.
        margins: non-inferiority margins.
        alpha: significance level.
    """
    used = tuple(reading for reading in readings if reading.is_counted and reading.state.done)
    columns = (
        [reading.draft.arm for reading in used],
        [reading.reader for reading in used],
        [reading.draft.sample_id for reading in used],
    )
    estimates = {}
    for outcome in OUTCOMES:
        found = estimate_effects(
            Rated([float(outcome.value(reading)) for reading in used], *columns), arms, alpha=alpha
        )
        if outcome.is_ratio:
            found = Estimates(
                {arm: effect.exponentiated() for arm, effect in found.means.items()},
                {pair: effect.exponentiated() for pair, effect in found.differences.items()},
            )
        estimates[outcome] = found
    pairs = next(iter(estimates.values())).differences
    return ReaderStudy(
        tuple(arms),
        used,
        estimates,
        {pair: _count_pairs(used, *pair) for pair in pairs},
        tuple(
            NonInferiority(arm, arms[0], margin, difference, judge(difference, margin.value, outcome))
            for margin in margins
            for outcome in OUTCOMES
            if outcome.name == margin.outcome
            for arm in arms[1:]
            for difference in [estimates[outcome].differences[arms[0], arm]]
        ),
        alpha,
    )


def judge(difference: Effect, margin: float, outcome: Outcome) -> Verdict | None:
    """Return whether an arm is non-inferior: its interval is on the better side of the margin.

    It is inferior if all of its interval is on the worse side.

    Args:
        difference: arm minus baseline, or their ratio.
        margin: positive; for a ratio above 1.
        outcome: the outcome.
    """
    if difference.low is None or difference.high is None:
        return None
    if outcome.direction == "lower":
        best, worst, limit = difference.low, difference.high, margin
    else:
        best, worst, limit = -difference.high, -difference.low, margin
    return "non-inferior" if worst < limit else "inferior" if best > limit else "not shown"


def _count_pairs(readings: Sequence[Reading], first: str, second: str) -> tuple[int, int]:
    by_arm = {
        arm: {(reading.reader, reading.draft.sample_id) for reading in readings if reading.draft.arm == arm}
        for arm in (first, second)
    }
    samples = [{sample for _, sample in pairs} for pairs in by_arm.values()]
    return len(by_arm[first] & by_arm[second]), len(samples[0] & samples[1])
