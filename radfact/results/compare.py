"""Comparison of systems: scores of several results folders on the samples that they share, and their differences."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from radfact.errors import ErrorCode, InputError, option_error
from radfact.findings.details import FindingContrast, contrast_findings
from radfact.records import NO_CLUSTERS
from radfact.results.display import main_scores, select_scores
from radfact.results.paper import comparison_table
from radfact.results.reader import read_outcomes
from radfact.results.schema import ScoresFile, describe_models, metric_of_scores
from radfact.results.systems import Column, System, metric_settings, pooled_functions, read_system
from radfact.statistics.bootstrap import Direction, Summary, summarize_counts
from radfact.statistics.clusters import Clusters, Resampling
from radfact.statistics.significance import adjust_holm, paired_difference, randomization_test

SIGNIFICANT = 0.05
"""Largest adjusted p-value of a significant difference."""
SCORE_COLUMNS = (
    *("score", "direction", "is_main", "system", "n", "baseline", "point"),
    *("difference", "difference_low", "difference_high", "p", "p_holm"),
    *("own_n", "own_point", "own_low", "own_high"),
)
"""Columns of `comparison.csv`."""
_ROUNDS = 1000
_ROUNDS_PER_TEST = 200
"""Rounds for each test of Holm's method, which multiplies the smallest p, 1 / (rounds + 1), by the number of tests."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """One score of a system, and its difference to the first.

    `summary` is the value to report, over all shared samples for which the system has one. `baseline`, `paired`, the
    difference and p are over those for which both systems have one. Only main scores have a `p_holm`.
    """

    summary: Summary
    baseline: Summary | None = None
    paired: Summary | None = None
    difference: Summary | None = None
    p: float | None = None
    p_holm: float | None = None

    @property
    def verdict(self) -> Literal["better", "worse", "different"] | None:
        """How the system differs from the first, if significantly; `different` for scores without a direction."""
        if self.p_holm is None or self.p_holm > SIGNIFICANT or self.difference is None or not self.difference.point:
            return None
        if self.summary.direction == "neutral":
            return "different"
        return "better" if (self.difference.point > 0) == (self.summary.direction == "higher") else "worse"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Scores of several systems; `main_scores` are those over which Holm's method runs."""

    systems: Sequence[str]
    main_scores: Sequence[str]
    shared: int
    own: Sequence[int]
    excluded: Sequence[int | None]
    empty_candidates: Sequence[int | None]
    models: Sequence[Mapping[str, str]]
    versions: Sequence[str | None]
    scores: Mapping[str, Sequence[Contrast]]
    units: Mapping[str, str]
    notes: Sequence[str]
    options: Mapping[str, int]
    tests: int
    resampling: Resampling
    findings: Sequence[Sequence[FindingContrast]] = ()

    def score_rows(self, names: Collection[str] = ()) -> list[list[Any]]:
        """Return one row per score and system with unrounded numbers, in the order of `SCORE_COLUMNS`."""
        rows = []
        for name, contrasts in self.scores.items():
            for system, contrast in zip(self.systems, contrasts, strict=True) if not names or name in names else ():
                own, difference = contrast.summary, contrast.difference or Summary(None)
                points = [score and score.point for score in (contrast.baseline, contrast.paired)]
                n = contrast.difference and difference.n
                row = [name, own.direction, name in self.main_scores, system, n, *points]
                row += [difference.point, difference.low, difference.high, contrast.p, contrast.p_holm]
                rows.append([*row, own.n, own.point, own.low, own.high])
        return rows

    def to_dataframe(self) -> Any:
        """Return one row per score and system as a pandas DataFrame, with the columns of `comparison.csv`.

        Raises:
            ImportError: pandas is not installed.
        """
        return importlib.import_module("pandas").DataFrame(self.score_rows(), columns=SCORE_COLUMNS)

    def to_latex(self) -> str:
        """Return a table of the main scores for a paper in LaTeX with booktabs; its caption explains the marks."""
        return comparison_table(self, self.main_scores).to_latex()

    def to_markdown(self) -> str:
        """Return a table of the main scores for a paper in Markdown."""
        return comparison_table(self, self.main_scores).to_markdown()

    def results(self, display: Callable[[str], str] = str) -> list[str]:
        """Return a sentence for each system but the first: in which main scores it is better or worse."""
        return [self._result(index, display) for index in range(1, len(self.systems)) if self.tests]

    def _result(self, index: int, display: Callable[[str], str]) -> str:
        first, system = self.systems[0], self.systems[index]
        count = f"{len(self.main_scores)} main score{'s' * (len(self.main_scores) > 1)}"
        parts = []
        for verdict in ("better", "worse", "different"):
            names = [display(name) for name in self.main_scores if self.scores[name][index].verdict == verdict]
            if names:
                than = "from" if verdict == "different" else "than"
                parts.append(f"{verdict} {than} {first} in {len(names)} of {count} ({', '.join(names)})")
        if not parts:
            return f"No difference between {system} and {first} in {count} is significant."
        return f"{system} is significantly {' and '.join(parts)}."


def compare(
    folders: Sequence[Path], *, metrics: Sequence[str] = (), names: Sequence[str] = (), **options: Any
) -> Comparison:
    """Compare the first of some results folders, named by default as they are, with the others as `compare_systems`."""
    if len(folders) < 2:
        raise InputError("expected two or more results folders to compare", code=ErrorCode.MISSING_OPTION)
    names = names or [Path(folder).resolve().name for folder in folders]
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
    scores: str | Sequence[str] = (),
    other_columns: Sequence[Mapping[str, Column]] = (),
    has_baseline: bool = True,
    replicates: int = 500,
    rounds: int | None = None,
    seed: int = 42,
    cluster: str | None = None,
) -> Comparison:
    """Compare the first of some systems with the others, on the samples and scores that all have.

    `scores` names the main scores of the comparison, or metrics; by default, and of a metric, the first main score.
    There are by default so many rounds of the randomization tests that the adjusted p of each can be small.
    """
    shared, common = _shared_samples(systems), _common_scores(systems)
    clusters = _clusters(systems, shared, cluster)
    first = systems[0].scores
    main = select_scores(first, common, scores) if scores else _main_scores(first, common)
    main += other_columns[0] if other_columns and not scores else ()
    rounds = rounds or max(_ROUNDS, _ROUNDS_PER_TEST * len(main) * (len(systems) - 1))
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
    with_value = {
        name: contrasts
        for name, contrasts in contrasts_by_score.items()
        if any(contrast.summary.point is not None for contrast in contrasts)
    }
    if scores and not with_value.keys() & main:
        message = f"expected a score with a value in some system, found none of {', '.join(main)}"
        raise option_error(message, "scores", ErrorCode.NOTHING_SCORED)
    main = [name for name in with_value if name in main]
    p_values = [contrast.p for name in main for contrast in with_value[name]]
    adjusted = iter(adjust_holm(p_values))
    for name in main:
        with_value[name] = [replace(contrast, p_holm=next(adjusted)) for contrast in with_value[name]]
    tests = sum(p is not None for p in p_values)
    notes = _notes(systems, len(shared), common, with_value, clusters)
    return Comparison(
        [system.name for system in systems],
        main,
        len(shared),
        [len(system.samples.rows) for system in systems],
        [system.scores.counts.get("excluded") for system in systems],
        [system.scores.counts.get("empty_candidates") for system in systems],
        [describe_models(system.scores) for system in systems],
        [system.version for system in systems],
        with_value,
        {name: record.unit for name, record in systems[0].scores.scores.items() if record.unit and name in with_value},
        [*notes, _describe_tests(tests, rounds)] if has_baseline else notes,
        draws,
        tests,
        clusters.resampling(),
    )


def _shared_samples(systems: Sequence[System]) -> list[str]:
    return [key for key in systems[0].samples.rows if all(key in system.samples.rows for system in systems)]


def _common_scores(systems: Sequence[System]) -> list[str]:
    return [name for name in systems[0].columns if all(name in system.columns for system in systems)]


def _main_scores(scores: ScoresFile, common: Sequence[str]) -> list[str]:
    """Return one main score of each metric, and the scores of none."""
    main, of_metrics = main_scores(scores), metric_of_scores(scores)
    names = (
        next((name for name in (*main[metric], *record.scores) if name in common), None)
        for metric, record in scores.metrics.items()
    )
    return [*filter(None, names), *(name for name in common if name not in of_metrics)]


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
        "Each p is for one score of one system. 'Holm' is p adjusted by Holm's method for the main scores of all "
        f"systems ({number}); a difference is significant if it is at most {SIGNIFICANT}."
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
            "A value is over all shared samples for which its system has one, a difference over the n samples for "
            f"which both have: fewer than {shared} where one has no value, as the precision of an empty candidate. n "
            "of an F1 counts samples with both precision and recall in both systems; the F1 itself is that of the "
            "precision and the recall, each over its own n."
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
