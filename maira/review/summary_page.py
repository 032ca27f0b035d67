"""Tables and the page of the summary of a reader study."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from maira.review.effects import Estimate
from maira.review.plot import WORST_COLORS
from maira.review.reader_study import NonInferiority, ReaderStudy
from maira.review.summary import NO_CORRECTION, SEVERITY_NAMES, worst_name
from radfact.pages.meta_page import Plot, Section, Table, Tag, write_page

_MEASURES = {
    "needs_correction": "sentence needs correction",
    "severity": "severity of a correction",
    "worst_severity": "worst implication of a report",
    "corrections": "corrections per report",
}
_ONE_ARM = "all drafts"
_EFFECT_HEADINGS = ("estimate", "low", "high", "readings", "readers", "studies")


def arm_name(arm: str | None) -> str:
    """Return the name of an arm; a review with one arm has none."""
    return "all arms" if arm is None else arm or _ONE_ARM


def write_summary(folder: Path, study: ReaderStudy, result: Mapping[str, Any], idle_after: float) -> None:
    """Write the tables as CSV, and `summary.html` with figure 4."""
    tables = {
        "arms": arm_table(study),
        "differences": difference_table(study),
        "noninferiority": noninferiority_table(study.noninferiority),
        "times": time_table(study),
        "implications": implication_table(study),
        "krippendorff_alpha": alpha_table(result["krippendorff_alpha"]),
        "cohens_kappa": kappa_table(result["agreement"]),
    }
    for name, table in tables.items():
        table.write(folder / f"{name}.csv")
    level = f"{100 * (1 - study.significance_level):g}%"
    sections = [
        Section("Outcomes by arm", [
            f"Finished studies of the readers in the statistics. Intervals are {level} intervals; the column method "
            "says how they were computed. The mean is that of the readings, the estimate that of the model. The models "
            "are linear, so the interval of a share may reach beyond 0 and 1.",
            tables["arms"],
        ]),
        *_difference_sections(study, tables, level),
        Section("Implications", [
            "Reports by the worst implication of their corrections.",
            tables["implications"],
        ]),
        Section("Time", [
            "Active time: the study is open in a visible window with the focus, until the study was last finished. "
            f"Idle time is excluded: it begins {idle_after:g} s after the last activity and ends with the next. "
            "Readings without a known time are counted with the reason, and are not part of the statistics of time.",
            tables["times"],
        ]),
        Section("Agreement", _agreement_parts(tables)),
        Section("Corrections by reader (MAIRA-2, figure 4)", [Plot(folder / "figure4.png", "MAIRA-2, figure 4")]),
    ]  # fmt: skip
    write_page(folder / "summary.html", "Summary of the reader study", summary_notes(study, result), sections)


def summary_notes(study: ReaderStudy, result: Mapping[str, Any]) -> list[str]:
    """Return the sentences at the top of the page."""
    readers = len({reading.reader for reading in study.readings})
    samples = len({reading.draft.sample_id for reading in study.readings})
    counts = result["readings"]
    return [
        f"{counts['counted']} finished readings of {samples} studies by {readers} readers in {len(study.arms)} "
        f"{'arm' if len(study.arms) == 1 else 'arms'}.",
        "Finished of the assigned studies: "
        + ", ".join(f"{name} {item['finished']} of {item['assigned']}" for name, item in result["readers"].items())
        + ".",
        f"Not in the statistics: {counts['unfinished']} unfinished readings, {counts['training']} of training cases, "
        f"{counts['excluded']} of excluded readers.",
    ]


def _difference_sections(study: ReaderStudy, tables: Mapping[str, Table], level: str) -> list[Section]:
    if len(study.arms) < 2:
        return []
    pairs = "; ".join(
        f"{arm_name(second)} and {arm_name(first)}: {samples} studies in both arms, {readings} of them read in both "
        "arms by the same reader"
        for (first, second), (readings, samples) in study.paired.items()
    )
    sections = [
        Section("Differences between arms", [
            f"The second arm minus the first, or their ratio, with {level} intervals. {pairs}.",
            tables["differences"],
        ])
    ]  # fmt: skip
    if study.noninferiority:
        sections.append(
            Section("Non-inferiority", [
                f"An arm is non-inferior if its {level} interval is on the better side of the margin.",
                tables["noninferiority"],
            ])
        )  # fmt: skip
    return sections


def _agreement_parts(tables: Mapping[str, Table]) -> list[Table | str]:
    if not tables["krippendorff_alpha"].rows:
        return ["Agreement requires two readers."]
    if not any(row[-1] for row in tables["krippendorff_alpha"].rows):
        return ["No report was finished by two readers, so there is no agreement."]
    return [
        "Krippendorff’s alpha of all readers, with 95% bootstrap intervals; n counts items that two readers rated.",
        tables["krippendorff_alpha"],
        "Cohen’s kappa of each pair of readers; severities are weighted linearly.",
        tables["cohens_kappa"],
    ]


def arm_table(study: ReaderStudy) -> Table:
    """Return means and estimates by outcome and arm."""
    rows = []
    for outcome, estimates in study.estimates.items():
        for arm, effect in estimates.means.items():
            values = [float(outcome.value(reading)) for reading in study.of_arm(arm)]
            known = [value for value in values if not math.isnan(value)]
            mean = sum(known) / len(known) if known else None
            if mean is not None and outcome.is_ratio:
                mean = math.exp(mean)
            rows.append([outcome.label, arm_name(arm), mean, *_effect(effect), len(values) - len(known), effect.method])
    return Table(["outcome", "arm", "mean", *_EFFECT_HEADINGS, "missing", "method"], rows)


def difference_table(study: ReaderStudy) -> Table:
    """Return differences by outcome and pair of arms."""
    rows = [
        [
            "ratio of active times" if outcome.is_ratio else outcome.label,
            f"{arm_name(second)} {'/' if outcome.is_ratio else '-'} {arm_name(first)}",
            *_effect(effect),
            effect.method,
        ]
        for outcome, estimates in study.estimates.items()
        for (first, second), effect in estimates.differences.items()
    ]
    return Table(["outcome", "arms", *_EFFECT_HEADINGS, "method"], rows)


def noninferiority_table(results: Sequence[NonInferiority]) -> Table:
    """Return the results of margins."""
    tags = {
        "non-inferior": Tag("non-inferior", "yes"),
        "inferior": Tag("inferior", "no"),
        "not shown": "not shown",
        None: None,
    }
    rows = [
        [
            result.margin.outcome,
            arm_name(result.arm),
            arm_name(result.baseline),
            result.margin.value,
            *(result.difference.value, result.difference.low, result.difference.high),
            tags[result.result],
            result.margin.origin,
        ]
        for result in results
    ]
    headings = ["outcome", "arm", "baseline", "margin", "difference", "low", "high", "result", "margin given"]
    return Table(headings, rows)


def time_table(study: ReaderStudy) -> Table:
    """Return times by reader and arm, with the readings without a known time by reason."""
    reasons = sorted({reading.time.reason for reading in study.readings if math.isnan(reading.active_seconds)})
    rows = []
    groups: list[tuple[str | None, str]] = [(None, arm) for arm in study.arms]
    readers = dict.fromkeys(reading.reader for reading in study.readings)
    groups += [(reader, arm) for reader in readers for arm in study.arms]
    for reader, arm in groups:
        readings = [reading for reading in study.of_arm(arm) if reader in (None, reading.reader)]
        seconds = [value for reading in readings if not math.isnan(value := reading.active_seconds)]
        total = [reading.time.total_seconds for reading in readings if not math.isnan(reading.active_seconds)]
        unknown = Counter(reading.time.reason for reading in readings if math.isnan(reading.active_seconds))
        rows.append([
            reader or "all readers", arm_name(arm), len(readings), len(seconds),
            *((median(seconds), sum(seconds) / len(seconds), min(seconds), max(seconds)) if seconds else [None] * 4),
            median(total) if total else None,
            *(unknown[reason] for reason in reasons),
        ])  # fmt: skip
    headings = ["reader", "arm", "readings", "with a time", "median (s)", "mean (s)", "min (s)", "max (s)",
                "median from opening to finishing (s)", *reasons]  # fmt: skip
    return Table(headings, rows)


def implication_table(study: ReaderStudy) -> Table:
    """Return the number of reports by arm and worst implication, and of corrections by severity."""
    worst = {arm: Counter(worst_name(reading.worst) for reading in study.of_arm(arm)) for arm in study.arms}
    names = [name for name in WORST_COLORS if any(name in counts for counts in worst.values())]
    severities = {arm: sum((reading.severities for reading in study.of_arm(arm)), Counter()) for arm in study.arms}
    rows = [
        [
            arm_name(arm),
            len(study.of_arm(arm)),
            *(worst[arm][name] for name in names),
            *(severities[arm][severity] for severity in (0, 1, 2)),
        ]
        for arm in study.arms
    ]
    heads = [name if name in (NO_CORRECTION, "not rated") else f"worst: {name}" for name in names]
    return Table(["arm", "reports", *heads, *(f"corrections: {SEVERITY_NAMES[n]}" for n in (0, 1, 2))], rows)


def alpha_table(results: Sequence[Mapping[str, Any]]) -> Table:
    """Return Krippendorff's alpha by measure and arm."""
    rows = [
        [_MEASURES[row["measure"]], arm_name(row["arm"]), row["level"], row["alpha"], row["low"], row["high"], row["n"]]
        for row in results
    ]
    return Table(["measure", "arm", "level", "alpha", "low", "high", "n"], rows)


def kappa_table(results: Sequence[Mapping[str, Any]]) -> Table:
    """Return Cohen's kappa by pair of readers and measure."""
    rows = [
        [" and ".join(pair["readers"]), label, pair["studies"], *(entry[key] for key in ("kappa", "low", "high", "n"))]
        for pair in results
        for label, entry in [
            *((_MEASURES[name], pair[name]) for name in ("needs_correction", "severity", "worst_severity")),
            *((f"error type {name}", entry) for name, entry in pair["error_types"].items()),
        ]
    ]
    return Table(["readers", "measure", "studies of both", "kappa", "low", "high", "n"], rows)


def _effect(effect: Estimate) -> tuple[float | int | None, ...]:
    return effect.value, effect.low, effect.high, effect.n, effect.readers, effect.samples
