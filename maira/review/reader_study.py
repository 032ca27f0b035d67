"""Statistics of a reader study: outcomes by arm, their differences and non-inferiority, and their tables."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from statistics import median
from typing import Any, Literal, NamedTuple

from maira.review.agreement import worst_severity
from maira.review.effects import Estimate, OutcomeValues, estimate_effects
from maira.review.readings import Reading
from maira.review.store import Store
from maira.review.summary import NO_CORRECTION, SEVERITY_NAMES, WORST_NAMES, worst_name
from radfact.errors import ErrorCode, InputError, suggest_name
from radfact.pages.meta_page import Table

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
    worst = worst_severity(reading.state)
    return math.nan if worst is None else float(worst >= minimum)


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

_BY_NAME = {outcome.name: outcome for outcome in OUTCOMES}


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


def analyze(
    readings: Sequence[Reading],
    arms: Sequence[str],
    margins: Sequence[Margin] = (),
    *,
    significance_level: float = 0.05,
) -> dict[str, Any]:
    """Return the statistics of a reader study as JSON values; the first arm is the baseline."""
    used = [reading for reading in readings if reading.use == "counted"]
    columns = (
        [reading.draft.arm for reading in used],
        [reading.reader for reading in used],
        [reading.draft.sample_id for reading in used],
    )
    estimates = {}
    for outcome in OUTCOMES:
        values = OutcomeValues([float(outcome.value(reading)) for reading in used], *columns)
        estimate = estimate_effects(values, arms, significance_level=significance_level)
        estimates[outcome.name] = estimate.exponentiated() if outcome.is_ratio else estimate
    paired = {pair: _count_pairs(used, *pair) for pair in combinations(arms, 2)}
    results = [
        (margin, arm, estimates[margin.outcome].differences[arms[0], arm]) for margin in margins for arm in arms[1:]
    ]
    return {
        "significance_level": significance_level,
        "arms": list(arms),
        "outcomes": {
            name: {
                "means": {arm: asdict(effect) for arm, effect in estimate.means.items()},
                "differences": [
                    {"arms": list(pair), **paired[pair], **asdict(effect)}
                    for pair, effect in estimate.differences.items()
                ],
            }
            for name, estimate in estimates.items()
        },
        "noninferiority": [
            {
                "arm": arm,
                "baseline": arms[0],
                "margin": asdict(margin),
                "difference": asdict(difference),
                "result": check_noninferiority(difference, margin),
            }
            for margin, arm, difference in results
        ],
    }


def check_noninferiority(difference: Estimate, margin: Margin) -> NonInferiorityResult | None:
    """Return whether an arm is non-inferior: its interval is on the better side of the margin.

    It is inferior if all of its interval is on the worse side; None without an interval.
    """
    if difference.low is None or difference.high is None:
        return None
    is_lower_better = _BY_NAME[margin.outcome].direction == "lower"
    best, worst = (difference.low, difference.high) if is_lower_better else (-difference.high, -difference.low)
    return "non-inferior" if worst < margin.value else "inferior" if best > margin.value else "not shown"


def _count_pairs(readings: Sequence[Reading], *arms: str) -> dict[str, int]:
    """Return the numbers of readings of one reader and sample in both arms, and of samples in both arms."""
    first, second = (
        {(reading.reader, reading.draft.sample_id) for reading in readings if reading.draft.arm == arm} for arm in arms
    )
    samples = {sample for _, sample in first} & {sample for _, sample in second}
    return {"paired_readings": len(first & second), "paired_samples": len(samples)}


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
    if name not in _BY_NAME:
        message = f"expected OUTCOME=VALUE with an outcome of {', '.join(_BY_NAME)}, found {text!r}"
        raise InputError(message, code=ErrorCode.INVALID_OPTION, field="margin")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    least = 1 if _BY_NAME[name].is_ratio else 0
    if not (math.isfinite(value) and value > least):
        message = f"expected a number above {least} for {name}, found {number!r}"
        raise InputError(message, code=ErrorCode.INVALID_OPTION, field="margin")
    return Margin(name, value, "with the summary; not known to be before the readings")


_MEASURES = {
    "needs_correction": "sentence needs correction",
    "severity": "severity of a correction",
    "worst_severity": "worst implication of a report",
    "corrections": "corrections per report",
}
_EFFECT_HEADINGS = ("estimate", "low", "high", "readings", "readers", "studies")


def make_tables(readings: Sequence[Reading], result: Mapping[str, Any]) -> dict[str, Table]:
    """Return the tables of a summary by name, from the readings and the content of `summary.json`."""
    used = [reading for reading in readings if reading.use == "counted"]
    by_arm = {arm: [reading for reading in used if reading.draft.arm == arm] for arm in result["arms"]}
    readers = list(dict.fromkeys(reading.reader for reading in used))
    return {
        "arms": _arm_table(by_arm, result["outcomes"]),
        "differences": _difference_table(result["outcomes"]),
        "noninferiority": _noninferiority_table(result["noninferiority"]),
        "times": _time_table(by_arm, readers),
        "implications": _implication_table(by_arm),
        "krippendorff_alpha": _alpha_table(result["krippendorff_alpha"]),
        "cohens_kappa": _kappa_table(result["agreement"]),
    }


def _arm_name(arm: str | None) -> str:
    """Return the name of an arm; a review with one arm has none."""
    return "all arms" if arm is None else arm or "all drafts"


def _average(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _arm_table(by_arm: Mapping[str, Sequence[Reading]], outcomes: Mapping[str, Any]) -> Table:
    rows = []
    for name, estimates in outcomes.items():
        outcome = _BY_NAME[name]
        for arm, effect in estimates["means"].items():
            values = [float(outcome.value(reading)) for reading in by_arm[arm]]
            known = [value for value in values if not math.isnan(value)]
            average = _average(known) if known else None
            if average is not None and outcome.is_ratio:
                average = math.exp(average)
            missing = len(values) - len(known)
            rows.append([outcome.label, _arm_name(arm), average, *_effect(effect), missing, effect["method"]])
    return Table(["outcome", "arm", "mean", *_EFFECT_HEADINGS, "missing", "method"], rows)


def _difference_table(outcomes: Mapping[str, Any]) -> Table:
    rows = []
    for name, estimates in outcomes.items():
        label, sign = ("ratio of active times", "/") if _BY_NAME[name].is_ratio else (_BY_NAME[name].label, "-")
        for effect in estimates["differences"]:
            first, second = map(_arm_name, effect["arms"])
            rows.append([label, f"{second} {sign} {first}", *_effect(effect), effect["method"]])
    return Table(["outcome", "arms", *_EFFECT_HEADINGS, "method"], rows)


def _noninferiority_table(results: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        [
            result["margin"]["outcome"],
            *(_arm_name(result[name]) for name in ("arm", "baseline")),
            result["margin"]["value"],
            *(result["difference"][name] for name in ("value", "low", "high")),
            result["result"],
            result["margin"]["origin"],
        ]
        for result in results
    ]
    headings = ["outcome", "arm", "baseline", "margin", "difference", "low", "high", "result", "margin given"]
    return Table(headings, rows)


def _time_table(by_arm: Mapping[str, Sequence[Reading]], readers: Sequence[str]) -> Table:
    """Return times by reader and arm, with the readings without a known time by reason."""
    reasons = sorted({reading.time.reason for readings in by_arm.values() for reading in readings} - {""})
    rows = []
    for reader in (None, *readers):
        for arm, of_arm in by_arm.items():
            times = [reading.time for reading in of_arm if reader in (None, reading.reader)]
            known = [time for time in times if not time.reason]
            seconds = [time.active_seconds for time in known]
            spread = [function(seconds) if seconds else None for function in (median, _average, min, max)]
            total = median(time.total_seconds for time in known) if known else None
            unknown = Counter(time.reason for time in times)
            counts = [unknown[reason] for reason in reasons]
            rows.append([reader or "all readers", _arm_name(arm), len(times), len(known), *spread, total, *counts])
    headings = ["reader", "arm", "readings", "with a time", "median (s)", "mean (s)", "min (s)", "max (s)",
                "median from opening to finishing (s)", *reasons]  # fmt: skip
    return Table(headings, rows)


def _implication_table(by_arm: Mapping[str, Sequence[Reading]]) -> Table:
    """Return the number of reports by arm and worst implication, and of corrections by severity."""
    worst = {
        arm: Counter(worst_name(worst_severity(reading.state)) for reading in readings)
        for arm, readings in by_arm.items()
    }
    names = [name for name in WORST_NAMES if any(name in counts for counts in worst.values())]
    rows = []
    for arm, readings in by_arm.items():
        rated = Counter(item.assessment.severity for reading in readings for item in reading.state.corrections)
        rows.append(
            [
                _arm_name(arm),
                len(readings),
                *(worst[arm][name] for name in names),
                *(rated[number] for number in (0, 1, 2)),
            ]
        )
    heads = [name if name in (NO_CORRECTION, "not rated") else f"worst: {name}" for name in names]
    return Table(["arm", "reports", *heads, *(f"corrections: {SEVERITY_NAMES[number]}" for number in (0, 1, 2))], rows)


def _alpha_table(results: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        [
            _MEASURES[row["measure"]],
            _arm_name(row["arm"]),
            row["level"],
            row["alpha"],
            row["low"],
            row["high"],
            row["n"],
        ]
        for row in results
    ]
    return Table(["measure", "arm", "level", "alpha", "low", "high", "n"], rows)


def _kappa_table(results: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        [" and ".join(pair["readers"]), label, pair["studies"], *(entry[key] for key in ("kappa", "low", "high", "n"))]
        for pair in results
        for label, entry in [
            *((_MEASURES[name], pair[name]) for name in ("needs_correction", "severity", "worst_severity")),
            *((f"error type {name}", entry) for name, entry in pair["error_types"].items()),
        ]
    ]
    return Table(["readers", "measure", "studies of both", "kappa", "low", "high", "n"], rows)


def _effect(effect: Mapping[str, Any]) -> list[float | int | None]:
    return [effect[name] for name in ("value", "low", "high", "n", "readers", "samples")]
