"""Statistics of a reader study: outcomes by arm, their differences, non-inferiority, and agreement of readers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from maira.review.effects import ArmEstimates, Estimate, OutcomeValues, estimate_effects
from maira.review.readings import Reading
from maira.review.store import Store
from radfact.errors import ErrorCode, InputError, suggest_name

Direction = Literal["lower", "higher"]
NonInferiorityResult = Literal["non-inferior", "not shown", "inferior"]


class Outcome(NamedTuple):
    """A value of a reading.

    Attributes:
        label: name on the page, with the unit.
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
        "uncorrected", "without correction (share)", "higher", lambda reading: not reading.state.corrections
    ),
    Outcome("implications", "minor or significant implications (share)", "lower",
            lambda reading: _worst_is(reading, 1)),
    Outcome("significant", "significant implications (share)", "lower",
            lambda reading: _worst_is(reading, 2)),
    Outcome("active_seconds", "active time (s)", "lower", lambda reading: reading.active_seconds),
    Outcome("active_ratio", "active time, geometric mean (s)", "lower", _log_time, is_ratio=True),
)  # fmt: skip
"""Outcomes of a reading."""


@dataclass(frozen=True, slots=True)
class Margin:
    """A non-inferiority margin.

    Attributes:
        value: largest difference from the baseline that is acceptable, in the unit of the outcome; for a ratio the
            largest ratio.
        origin: when it was given.
    """

    outcome: str
    value: float
    origin: str


@dataclass(frozen=True, slots=True)
class NonInferiority:
    """Result of an arm against the baseline for one margin; result None without an interval."""

    arm: str
    baseline: str
    margin: Margin
    difference: Estimate
    result: NonInferiorityResult | None


@dataclass(frozen=True, slots=True)
class ReaderStudy:
    """Statistics of the finished and counted readings of a review.

    Attributes:
        arms: names, the baseline first.
        paired: by pair of arms the number of pairs of readings of one reader and sample in both arms, and of samples
            in both arms.
    """

    arms: tuple[str, ...]
    readings: tuple[Reading, ...]
    estimates: dict[Outcome, ArmEstimates]
    paired: dict[tuple[str, str], tuple[int, int]]
    noninferiority: tuple[NonInferiority, ...]
    significance_level: float

    def of_arm(self, arm: str) -> list[Reading]:
        """Return the readings in an arm."""
        return [reading for reading in self.readings if reading.draft.arm == arm]


def analyze(
    readings: Sequence[Reading],
    arms: Sequence[str],
    margins: Sequence[Margin] = (),
    *,
    significance_level: float = 0.05,
) -> ReaderStudy:
    """Compute the statistics of a reader study."""
    used = tuple(reading for reading in readings if reading.is_counted and reading.state.done)
    columns = (
        [reading.draft.arm for reading in used],
        [reading.reader for reading in used],
        [reading.draft.sample_id for reading in used],
    )
    estimates = {}
    for outcome in OUTCOMES:
        estimate = estimate_effects(
            OutcomeValues([float(outcome.value(reading)) for reading in used], *columns),
            arms,
            significance_level=significance_level,
        )
        if outcome.is_ratio:
            estimate = ArmEstimates(
                {arm: effect.exponentiated() for arm, effect in estimate.means.items()},
                {pair: effect.exponentiated() for pair, effect in estimate.differences.items()},
            )
        estimates[outcome] = estimate
    pairs = next(iter(estimates.values())).differences
    return ReaderStudy(
        tuple(arms),
        used,
        estimates,
        {pair: _count_pairs(used, *pair) for pair in pairs},
        tuple(
            NonInferiority(arm, arms[0], margin, difference, check_noninferiority(difference, margin.value, outcome))
            for margin in margins
            for outcome in OUTCOMES
            if outcome.name == margin.outcome
            for arm in arms[1:]
            for difference in [estimates[outcome].differences[arms[0], arm]]
        ),
        significance_level,
    )


def check_noninferiority(difference: Estimate, margin: float, outcome: Outcome) -> NonInferiorityResult | None:
    """Return whether an arm is non-inferior: its interval is on the better side of the margin.

    It is inferior if all of its interval is on the worse side.
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


def read_margins(
    store: Store, baseline: str | None, margins: Sequence[str]
) -> tuple[tuple[str, ...], tuple[Margin, ...], float]:
    """Return the arms, the baseline first, the margins and the significance level."""
    arms = list(dict.fromkeys(draft.arm for draft in store.drafts if not draft.is_training))
    analysis = store.campaign.settings.analysis if store.campaign else None
    if baseline is not None and baseline not in arms:
        message = f"unknown arm {baseline!r}; {suggest_name(baseline, arms, 'see the arms in corrections.csv')}"
        raise InputError(message, code=ErrorCode.UNKNOWN_NAME, field="baseline")
    first = baseline or (analysis.baseline if analysis else None)
    if first in arms:
        arms = [first, *(arm for arm in arms if arm != first)]
    level = analysis.significance_level if analysis else 0.05
    if margins:
        return tuple(arms), tuple(_parse_margin(text) for text in margins), level
    if analysis is None or analysis.margin is None:
        return tuple(arms), (), level
    origin = "in the campaign, before the readings"
    if baseline not in (None, analysis.baseline):
        origin = "in the campaign, before the readings; its baseline is another"
    return tuple(arms), (Margin(analysis.outcome, analysis.margin, origin),), level


def _parse_margin(text: str) -> Margin:
    name, _, number = text.partition("=")
    outcomes = {outcome.name: outcome for outcome in OUTCOMES}
    if name not in outcomes:
        message = f"expected OUTCOME=VALUE with an outcome of {', '.join(outcomes)}, found {text!r}"
        raise InputError(message, code=ErrorCode.INVALID_OPTION, field="margin")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    least = 1 if outcomes[name].is_ratio else 0
    if not (math.isfinite(value) and value > least):
        message = f"expected a number above {least} for {name}, found {number!r}"
        raise InputError(message, code=ErrorCode.INVALID_OPTION, field="margin")
    return Margin(name, value, "with the summary; not known to be before the readings")


def count_readings(readings: Sequence[Reading]) -> dict[str, int]:
    """Return the number of readings that are in the statistics, and why others are not; each counts once."""
    counts = dict.fromkeys(("counted", "unfinished", "training", "excluded"), 0)
    for reading in readings:
        if reading.draft.is_training:
            counts["training"] += 1
        elif not reading.is_counted:
            counts["excluded"] += 1
        else:
            counts["counted" if reading.state.done else "unfinished"] += 1
    return counts


def as_json(study: ReaderStudy) -> dict[str, Any]:
    """Return the statistics as JSON values: `significance_level`, `arms`, `outcomes`, `noninferiority`."""
    return {
        "significance_level": study.significance_level,
        "arms": list(study.arms),
        "outcomes": {
            outcome.name: {
                "means": {arm: asdict(effect) for arm, effect in estimates.means.items()},
                "differences": [
                    {
                        "arms": list(pair),
                        "paired_readings": study.paired[pair][0],
                        "paired_samples": study.paired[pair][1],
                        **asdict(effect),
                    }
                    for pair, effect in estimates.differences.items()
                ],
            }
            for outcome, estimates in study.estimates.items()
        },
        "noninferiority": [asdict(result) for result in study.noninferiority],
    }
