"""Statistics of a reader study: readings, outcomes by arm, their differences and non-inferiority, and their tables."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import combinations, product
from statistics import median
from typing import Any, Literal, NamedTuple

from maira.review.changes import State
from maira.review.database import Draft
from maira.review.effects import Estimate, Rating, estimate_effects
from maira.review.form import Form
from maira.review.store import Store
from maira.review.summary import MEASURES, worst_names
from maira.review.times import IDLE_AFTER, StudyTime, study_times
from radfact.errors import ErrorCode, InputError, suggest_name
from radfact.pages.meta_page import Table

USES = ("counted", "unfinished", "training", "excluded")


@dataclass(frozen=True, slots=True)
class Reading:
    reader: str
    is_excluded: bool
    draft: Draft
    state: State
    time: StudyTime

    @property
    def use(self) -> str:
        if self.draft.is_training:
            return "training"
        if self.is_excluded:
            return "excluded"
        return "counted" if self.state.done else "unfinished"

    @property
    def active_seconds(self) -> float:
        """Active time of a finished reading; NaN unless all of it is known."""
        return math.nan if self.time.reason else self.time.active_seconds


def collect_readings(store: Store, readers: Sequence[str], *, idle_after: float = IDLE_AFTER) -> list[Reading]:
    """Return the readings that were opened or changed, by reader in the order of studies."""
    counted = store.counted_readers()
    readings = []
    for reader in map(store.registered_name, readers):
        reviews = store.reviews(reader)
        changed = {number: (each.began, each.finished) for number, each in enumerate(reviews, 1) if each.began}
        times = study_times(store.events(reader), changed, idle_after=idle_after)
        for number, (draft, review) in enumerate(zip(store.drafts, reviews, strict=True), 1):
            if number in times:
                readings.append(Reading(reader, reader not in counted, draft, review.state, times[number]))
    return readings


class Outcome(NamedTuple):
    """A value of a reading."""

    label: str
    direction: Literal["lower", "higher"]
    value: Callable[[Reading], float]
    is_ratio: bool = False


def _worst_is(reading: Reading, minimum: int) -> float:
    worst = reading.state.worst_severity
    return math.nan if worst is None else worst >= minimum


OUTCOMES = {
    "corrections": Outcome("corrections per report", "lower", lambda reading: len(reading.state.corrections)),
    "uncorrected": Outcome("without correction (share)", "higher", lambda reading: not reading.state.corrections),
    "implications": Outcome("minor or significant implications (share)", "lower", lambda each: _worst_is(each, 1)),
    "significant": Outcome("significant implications (share)", "lower", lambda reading: _worst_is(reading, 2)),
    "active_seconds": Outcome("active time (s)", "lower", lambda reading: reading.active_seconds),
    "active_ratio": Outcome(
        "active time, geometric mean (s)",
        "lower",
        lambda reading: math.log(reading.active_seconds) if reading.active_seconds > 0 else math.nan,
        is_ratio=True,
    ),
}


def outcomes_of(form: Form) -> dict[str, Outcome]:
    """Return the outcomes of a form: corrections, numbers that it asks about a study, and times."""
    if form.layout == "ratings":
        return OUTCOMES
    kinds = ("corrections", "uncorrected", "active") if form.edits else ("active",)
    fields = [field for field in form.fields if field.type == "number" and form.unit == "study"]
    asked = {field.name: Outcome(field.label, "lower", partial(_answered_number, field.name)) for field in fields}
    return {**asked, **{name: outcome for name, outcome in OUTCOMES.items() if name.startswith(kinds)}}


def _answered_number(name: str, reading: Reading) -> float:
    value = reading.state.answers.get(name)
    return float(value) if isinstance(value, int) else math.nan


@dataclass(frozen=True, slots=True)
class Margin:
    """A non-inferiority margin."""

    outcome: str
    value: float
    origin: str


def analyze(
    readings: Sequence[Reading],
    arms: Sequence[str],
    margins: Sequence[Margin] = (),
    *,
    form: Form,
    significance_level: float = 0.05,
) -> dict[str, Any]:
    """Return the statistics of a reader study as JSON values; the first arm is the baseline."""
    used = [reading for reading in readings if reading.use == "counted"]
    paired = {pair: _count_pairs(used, *pair) for pair in combinations(arms, 2)}
    outcomes, estimates, tests = {}, {}, []
    for name, outcome in outcomes_of(form).items():
        ratings = [
            Rating(float(outcome.value(each)), each.draft.arm, each.reader, each.draft.sample_id) for each in used
        ]
        effects = estimate_effects(ratings, arms, significance_level=significance_level)
        if outcome.is_ratio:
            effects = {key: _exponentiated(effect) for key, effect in effects.items()}
        means = {arm: asdict(effects[(arm,)]) for arm in arms}
        differences = [{"arms": list(pair), **counts, **asdict(effects[pair])} for pair, counts in paired.items()]
        outcomes[name], estimates[name] = {"means": means, "differences": differences}, effects
    for margin, arm in product(margins, arms[1:]):
        difference = estimates[margin.outcome][arms[0], arm]
        compared = {"arm": arm, "baseline": arms[0], "margin": asdict(margin), "difference": asdict(difference)}
        tests.append({**compared, "result": check_noninferiority(difference, margin)})
    settings = {"significance_level": significance_level, "arms": list(arms)}
    return {**settings, "outcomes": outcomes, "noninferiority": tests}


def _exponentiated(effect: Estimate) -> Estimate:
    value, low, high = (None if each is None else math.exp(each) for each in (effect.value, effect.low, effect.high))
    return replace(effect, value=value, low=low, high=high)


def check_noninferiority(difference: Estimate, margin: Margin) -> str | None:
    """Return on which side of the margin an interval is, as the result for its arm; None without an interval."""
    if difference.low is None or difference.high is None:
        return None
    is_lower_better = OUTCOMES[margin.outcome].direction == "lower"
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
    analysis = store.campaign.settings.analysis if store.campaign.settings else None
    if baseline is not None and baseline not in arms:
        message = f"unknown arm {baseline!r}; {suggest_name(baseline, arms, 'see the arms in corrections.csv')}"
        raise InputError(message, code=ErrorCode.UNKNOWN_NAME, field="baseline")
    first = baseline or (analysis.baseline if analysis else None)
    arms.sort(key=lambda arm: arm != first)
    level = analysis.significance_level if analysis else 0.05
    known = outcomes_of(store.form).keys() & OUTCOMES.keys()
    if margins or analysis is None or analysis.margin is None:
        return tuple(arms), tuple(_parse_margin(text, sorted(known)) for text in margins), level
    if analysis.outcome not in known:
        message = f"expected an outcome of the form, {', '.join(sorted(known))}, found {analysis.outcome!r}"
        raise InputError(message, code=ErrorCode.INVALID_OPTION, field="analysis.outcome")
    origin = "in the campaign, before the readings"
    if baseline not in (None, analysis.baseline):
        origin += "; its baseline is another"
    return tuple(arms), (Margin(analysis.outcome, analysis.margin, origin),), level


def _parse_margin(text: str, known: Sequence[str]) -> Margin:
    name, _, number = text.partition("=")
    if name not in known:
        message = f"expected OUTCOME=VALUE with an outcome of {', '.join(known)}, found {text!r}"
        raise InputError(message, code=ErrorCode.INVALID_OPTION, field="margin")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    least = 1 if OUTCOMES[name].is_ratio else 0
    if not (math.isfinite(value) and value > least):
        message = f"expected a number above {least} for {name}, found {number!r}"
        raise InputError(message, code=ErrorCode.INVALID_OPTION, field="margin")
    return Margin(name, value, "with the summary; not known to be before the readings")


_EFFECT = {
    "estimate": "value",
    "low": "low",
    "high": "high",
    "readings": "n",
    "readers": "readers",
    "studies": "samples",
}


def make_tables(readings: Sequence[Reading], result: Mapping[str, Any], form: Form) -> dict[str, Table]:
    fields = {field.name: field.label for field in form.fields if field.name not in MEASURES}
    labels = {name: label for name, (label, _) in MEASURES.items()} | fields
    used = [reading for reading in readings if reading.use == "counted"]
    by_arm = {arm: [reading for reading in used if reading.draft.arm == arm] for arm in result["arms"]}
    means, differences = [], []
    for name, estimates in result["outcomes"].items():
        outcome = outcomes_of(form)[name]
        for arm, effect in estimates["means"].items():
            values = [float(outcome.value(reading)) for reading in by_arm[arm]]
            known = [value for value in values if not math.isnan(value)]
            average = _average(known)
            mean = math.exp(average) if average is not None and outcome.is_ratio else average
            missing = len(values) - len(known)
            means.append([outcome.label, _arm_name(arm), mean, *_cells(effect), missing, effect["method"]])
        label, sign = ("ratio of active times", "/") if outcome.is_ratio else (outcome.label, "-")
        for effect in estimates["differences"]:
            first, second = map(_arm_name, effect["arms"])
            differences.append([label, f"{second} {sign} {first}", *_cells(effect), effect["method"]])
    margins = []
    for each in result["noninferiority"]:
        margin, compared = each["margin"], (_arm_name(each["arm"]), _arm_name(each["baseline"]))
        interval = (each["difference"][name] for name in ("value", "low", "high"))
        margins.append([margin["outcome"], *compared, margin["value"], *interval, each["result"], margin["origin"]])
    alphas = []
    for row in result["krippendorff_alpha"]:
        numbers = (row[name] for name in ("level", "alpha", "low", "high", "n"))
        alphas.append([labels[row["measure"]], _arm_name(row["arm"]), *numbers])
    kappas = []
    for pair in result["agreement"]:
        entries = {label: pair[name] for name, label in labels.items() if name in pair}
        entries |= {f"error type {name}": entry for name, entry in pair["error_types"].items()}
        for label, entry in entries.items():
            numbers = (entry[name] for name in ("kappa", "low", "high", "n"))
            kappas.append([" and ".join(pair["readers"]), label, pair["studies"], *numbers])
    margin_headings = ["outcome", "arm", "baseline", "margin", "difference", "low", "high", "result", "margin given"]
    return {
        "arms": Table(["outcome", "arm", "mean", *_EFFECT, "missing", "method"], means),
        "differences": Table(["outcome", "arms", *_EFFECT, "method"], differences),
        "noninferiority": Table(margin_headings, margins),
        "times": _time_table(used, by_arm),
        **({"implications": _implication_table(by_arm, form)} if form.edits else {}),
        "krippendorff_alpha": Table(["measure", "arm", "level", "alpha", "low", "high", "n"], alphas),
        "cohens_kappa": Table(["readers", "measure", "studies of both", "kappa", "low", "high", "n"], kappas),
    }


def _cells(effect: Mapping[str, Any]) -> list[float | int | None]:
    return [effect[name] for name in _EFFECT.values()]


def _arm_name(arm: str | None) -> str:
    """Return the name of an arm; a review with one arm has none."""
    return "all arms" if arm is None else arm or "all drafts"


def _average(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _time_table(readings: Sequence[Reading], by_arm: Mapping[str, Sequence[Reading]]) -> Table:
    """Return times by reader and arm, with the readings without a known time by reason."""
    reasons = sorted({reading.time.reason for reading in readings} - {""})
    rows = []
    for reader in (None, *dict.fromkeys(reading.reader for reading in readings)):
        for arm, of_arm in by_arm.items():
            times = [reading.time for reading in of_arm if reader in (None, reading.reader)]
            known = [time for time in times if not time.reason]
            seconds = [time.active_seconds for time in known]
            totals = [time.total_seconds for time in known]
            spread = [function(seconds) if seconds else None for function in (median, _average, min, max)]
            counts = Counter(time.reason for time in times)
            row = [reader or "all readers", _arm_name(arm), len(times), len(known), *spread]
            rows.append([*row, median(totals) if totals else None, *(counts[reason] for reason in reasons)])
    headings = ["reader", "arm", "readings", "with a time", "median (s)", "mean (s)", "min (s)", "max (s)",
                "median from opening to finishing (s)", *reasons]  # fmt: skip
    return Table(headings, rows)


def _implication_table(by_arm: Mapping[str, Sequence[Reading]], form: Form) -> Table:
    names = worst_names(form)
    worst = {arm: Counter(reading.state.worst_severity for reading in readings) for arm, readings in by_arm.items()}
    present = [key for key in names if any(key in counts for counts in worst.values())]
    rated = [key for key in form.severities if key is not None]
    rows = []
    for arm, readings in by_arm.items():
        severities = Counter(item.severity for reading in readings for item in reading.state.corrections)
        counts = [*(worst[arm][key] for key in present), *(severities[key] for key in rated)]
        rows.append([_arm_name(arm), len(readings), *counts])
    heads = [f"worst: {names[key]}" if key in rated else names[key] for key in present]
    return Table(["arm", "reports", *heads, *(f"corrections: {names[key]}" for key in rated)], rows)
