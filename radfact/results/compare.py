"""Comparison of systems: scores of several results folders on the samples that they share, and their differences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from radfact.errors import ErrorCode, InputError
from radfact.findings.details import FindingContrast, contrast_findings
from radfact.records import NO_CLUSTERS
from radfact.results.reader import read_outcomes
from radfact.results.schema import describe_models, metric_of_scores
from radfact.results.systems import Column, System, metric_settings, pooled_functions, read_system
from radfact.statistics.bootstrap import Direction, Summary, summarize_counts
from radfact.statistics.clusters import Clusters, Resampling
from radfact.statistics.significance import adjust_holm, paired_difference, randomization_test

SIGNIFICANT = 0.05
"""Largest adjusted p-value of a significant difference."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """One score of a system, and its difference to the first; `p` and what is above it are of the same samples."""

    summary: Summary
    baseline: Summary | None = None
    paired: Summary | None = None
    difference: Summary | None = None
    p: float | None = None
    p_holm: float | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Scores of several systems."""

    systems: Sequence[str]
    shared: int
    own: Sequence[int]
    excluded: Sequence[int | None]
    empty_candidates: Sequence[int | None]
    models: Sequence[Mapping[str, str]]
    scores: Mapping[str, Sequence[Contrast]]
    units: Mapping[str, str]
    notes: Sequence[str]
    options: Mapping[str, int]
    tests: int
    resampling: Resampling
    findings: Sequence[Sequence[FindingContrast]] = ()


def compare(folders: Sequence[Path], *, metrics: Sequence[str] = (), **options: Any) -> Comparison:
    """Compare the first of some results folders with the others; the options are those of `compare_systems`."""
    if len(folders) < 2:
        raise InputError("expected two or more results folders to compare", code=ErrorCode.MISSING_OPTION)
    names = [Path(folder).resolve().name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    functions = pooled_functions(metrics)
    systems = [read_system(Path(folder), name, functions) for folder, name in zip(folders, names, strict=True)]
    for left, right in combinations(map(Path, folders), 2):
        if left.samefile(right):
            raise InputError(f"expected different folders, found {left} twice", code=ErrorCode.DUPLICATE, file=right)
    shared, common = _shared_samples(systems), _common_scores(systems)
    if not shared or not common:
        hint = _variants_hint(systems) if shared else ""
        message = f"expected a {'score' if shared else 'sample'} in common with {folders[0]}, found none{hint}"
        raise InputError(message, code=ErrorCode.MISMATCH, file=folders[1])
    comparison = compare_systems(systems, **options)
    outcomes = [read_outcomes(Path(folder), shared) for folder in folders]
    return replace(comparison, findings=[[], *(contrast_findings(outcomes[0], other) for other in outcomes[1:])])


def compare_systems(
    systems: Sequence[System],
    *,
    other_columns: Sequence[Mapping[str, Column]] = (),
    has_baseline: bool = True,
    replicates: int = 500,
    rounds: int = 1000,
    seed: int = 42,
    cluster: str | None = None,
) -> Comparison:
    """Compare the first of some systems with the others, on the samples and scores that all have."""
    shared, common = _shared_samples(systems), _common_scores(systems)
    clusters = _clusters(systems, shared, cluster)
    draws = {"replicates": replicates, "rounds": rounds, "seed": seed}
    directions = systems[0].directions
    contrasts_by_score = {
        name: _contrasts(
            [system.columns[name] for system in systems], shared, clusters, has_baseline, directions[name], **draws
        )
        for name in common
    }
    for name in other_columns[0] if other_columns else ():
        columns = [by_name[name] for by_name in other_columns]
        if keys := [key for key in columns[0].counts if all(key in column.counts for column in columns)]:
            alone = Clusters(None, [None] * len(keys), keys)
            contrasts_by_score[name] = _contrasts(columns, keys, alone, has_baseline, "higher", **draws)
    scores = {
        name: contrasts
        for name, contrasts in contrasts_by_score.items()
        if any(contrast.summary.point is not None for contrast in contrasts)
    }
    adjusted = iter(adjust_holm([contrast.p for contrasts in scores.values() for contrast in contrasts]))
    for name, contrasts in scores.items():
        scores[name] = [replace(contrast, p_holm=next(adjusted)) for contrast in contrasts]
    tests = sum(contrast.p is not None for contrasts in scores.values() for contrast in contrasts)
    notes = _notes(systems, len(shared), common, scores, clusters)
    return Comparison(
        [system.name for system in systems],
        len(shared),
        [len(system.samples.rows) for system in systems],
        [system.scores.counts.get("excluded") for system in systems],
        [system.scores.counts.get("empty_candidates") for system in systems],
        [describe_models(system.scores) for system in systems],
        scores,
        {name: record.unit for name, record in systems[0].scores.scores.items() if record.unit and name in scores},
        [*notes, _describe_tests(tests, rounds)] if has_baseline else notes,
        draws,
        tests,
        clusters.resampling(),
    )


def _shared_samples(systems: Sequence[System]) -> list[str]:
    return [key for key in systems[0].samples.rows if all(key in system.samples.rows for system in systems)]


def _common_scores(systems: Sequence[System]) -> list[str]:
    return [name for name in systems[0].columns if all(name in system.columns for system in systems)]


def _variants_hint(systems: Sequence[System]) -> str:
    """Return a hint for an error if the systems have different variants of a metric, or an empty text."""
    names = [name for name in systems[0].variants if len({system.variants.get(name) for system in systems}) > 1]
    hint = "; score them with the same --compat, because they have different variants of "
    return hint + ", ".join(names) if names else ""


def _clusters(systems: Sequence[System], shared: Sequence[str], cluster: str | None) -> Clusters:
    """Return the clusters of the shared samples, from the first system that has them."""
    samples = Clusters(None, [None] * len(shared), shared)
    if cluster == NO_CLUSTERS:
        return samples
    clustered = [system for system in systems if system.cluster_by is not None]
    if cluster is not None:
        clustered = [system for system in clustered if system.cluster_by == cluster]
        if not clustered:
            in_folders = ", ".join(dict.fromkeys(system.cluster_by or NO_CLUSTERS for system in systems))
            message = (
                f"expected the clusters of the folders ({in_folders}) or {NO_CLUSTERS}, found '{cluster}'; score the "
                "pairs again with this --cluster"
            )
            raise InputError(message, code=ErrorCode.MISMATCH, field="cluster")
    if not clustered:
        return samples
    return Clusters(clustered[0].cluster_by, [clustered[0].samples.clusters[key] for key in shared], shared)


def _describe_tests(tests: int, rounds: int) -> str:
    number = "1 test" if tests == 1 else f"{tests} tests"
    note = (
        "Each p is for one score of one system. 'Holm' is p adjusted by Holm's method for all tests of this comparison "
        f"({number}): every score of every system against the first."
    )
    # The smallest p of a randomization test is 1 / (rounds + 1), and Holm's method multiplies it by the tests.
    if tests / (rounds + 1) > SIGNIFICANT:
        note += (
            f" With {rounds} rounds, no adjusted p can be {SIGNIFICANT} or less: use --rounds "
            f"{math.ceil(tests / SIGNIFICANT)} or more for {number}."
        )
    return note


def _contrasts(
    columns: Sequence[Column],
    keys: Sequence[str],
    clusters: Clusters,
    has_baseline: bool,
    direction: Direction,
    *,
    replicates: int,
    rounds: int,
    seed: int,
) -> list[Contrast]:
    """Return a score of each system, and its difference to the first one."""
    functions, has_value, pairing = {"": columns[0].value}, columns[0].has_value, columns[0].pairing
    tables = [column.of(keys) for column in columns]
    draws: dict[str, Any] = {"seed": seed, "clusters": clusters}

    def only(summaries: Mapping[str, Summary]) -> Summary:
        return replace(summaries[""], direction=direction)

    contrasts = [
        Contrast(only(summarize_counts(table, functions, has_value=has_value, replicates=replicates, **draws)))
        for table in tables
    ]
    for index in range(1, len(columns) if has_baseline else 0):
        table, baseline = tables[index], tables[0]
        paired = [
            only(summarize_counts(counts, functions, has_value=has_value, replicates=0))
            for counts in pairing(table, baseline)
        ]
        differences = paired_difference(
            table, baseline, functions, has_value=has_value, pairing=pairing, replicates=replicates, **draws
        )
        p = randomization_test(table, baseline, functions, pairing=pairing, rounds=rounds, **draws)[""]
        contrasts[index] = Contrast(contrasts[index].summary, paired[1], paired[0], only(differences), p)
    return contrasts


def _notes(
    systems: Sequence[System],
    shared: int,
    common: Sequence[str],
    scores: Mapping[str, Sequence[Contrast]],
    clusters: Clusters,
) -> list[str]:
    notes = [f"{shared} samples are in all of them; no others count here."]
    differences = [contrast.difference for row in scores.values() for contrast in row if contrast.difference]
    if any(difference.n < shared for difference in differences):
        notes.append(
            f"n: samples in which both systems have the score; fewer than {shared} where one of them has no value, as "
            "the precision of an empty candidate. n of an F1 counts those with both precision and recall in both "
            "systems; the F1 itself is that of the precision and the recall in its table, each over its own n."
        )
    notes.append(f"Intervals: {clusters.resampling().describe()}.")
    if clusters.by is not None:
        notes += [
            f"{system.name} was resampled by {system.cluster_by or 'sample'}."
            for system in systems
            if system.cluster_by != clusters.by
        ]
    for system in systems[1:]:
        notes += _system_notes(system, systems[0], list(scores))
    if without := [name for name in common if name not in scores]:
        notes.append(f"Without a value in any system: {', '.join(without)}.")
    dropped = sorted({score for system in systems for score in system.directions} - set(common))
    in_all = [score for score in dropped if all(score in system.directions for system in systems)]
    if missing := [score for score in dropped if score not in in_all]:
        notes.append(f"Not compared, because not all systems have them: {', '.join(missing)}.")
    if in_all:
        notes.append(
            f"Not compared, because the metric that pools them is not known here: {', '.join(in_all)}; name it "
            "with --metric MODULE:OBJECT."
        )
    return notes


def _system_notes(system: System, first: System, names: Sequence[str]) -> Iterator[str]:
    """Yield how the dataset, the metrics and their settings of a system differ from those of the first."""
    texts = system.references.items()
    if different := sum(first.references.get(key, text) != text for key, text in texts):
        yield (
            f"{different} samples have another reference text in {system.name} than in {first.name}: another "
            "dataset, or another splitter."
        )
    metric_of, other_metric_of = metric_of_scores(first.scores), metric_of_scores(system.scores)
    other_metric = [name for name in names if metric_of.get(name) != other_metric_of.get(name)]
    if other_metric:
        yield f"{', '.join(other_metric)}: of another metric in {system.name} than in {first.name}."
    other_variant = [name for name, variant in system.variants.items() if first.variants.get(name, variant) != variant]
    for name in other_variant:
        yield (
            f"{name}: the variant {system.variants[name] or 'none'} in {system.name}, "
            f"{first.variants[name] or 'none'} in {first.name}; their values are not comparable."
        )
    settings, other_settings = metric_settings(first.scores), metric_settings(system.scores)
    for metric in dict.fromkeys(metric_of[name] for name in names if name in metric_of and name not in other_metric):
        if metric not in other_variant and other_settings.get(metric) != settings.get(metric):
            yield f"{metric}: another judge or model, or other settings, in {system.name} than in {first.name}."
