"""Comparison of systems: scores of several results folders on the samples that they share, and their differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from radfact.errors import ErrorCode, InputError
from radfact.results.systems import System, pooled_functions, read_system
from radfact.statistics.bootstrap import Summary, summarize_counts
from radfact.statistics.significance import paired_difference, randomization_test


@dataclass(frozen=True, slots=True)
class Contrast:
    """One score of a system, and its difference to the first system.

    Attributes:
        summary: of the system's own samples among the shared ones.
        difference: to the first system, paired, over samples that both have scored; None for the first itself.
        p: p-value of the randomization test of that difference.
    """

    summary: Summary
    difference: Summary | None = None
    p: float | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Scores of several systems.

    Attributes:
        systems: their names; the first is the one that the others are compared with.
        shared: number of samples that all systems have; only these count.
        own: number of samples of each system.
        scores: by name, one contrast per system.
        notes: limitations of the comparison.
        options: of the bootstrap and the test.
    """

    systems: Sequence[str]
    shared: int
    own: Sequence[int]
    scores: Mapping[str, Sequence[Contrast]]
    notes: Sequence[str]
    options: Mapping[str, int]


def compare(
    folders: Sequence[Path],
    *,
    metrics: Sequence[str] = (),
    replicates: int = 500,
    rounds: int = 1000,
    seed: int = 42,
) -> Comparison:
    """Compare the first of some results folders with the others, on the samples and scores that all have.

    Args:
        folders: two or more results folders.
        metrics: custom metrics as `module:object`, whose pooled scores can then be computed again.
        replicates: of the bootstrap, which resamples two systems in the same way.
        rounds: of approximate randomization, p = (k + 1) / (rounds + 1).
        seed: of both.

    Raises:
        InputError: a folder is incomplete or a duplicate, or the folders have no sample or no score in common.
    """
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
    first = systems[0]
    in_all = set(first.sample_ids).intersection(*(system.sample_ids for system in systems[1:]))
    shared = [key for key in first.sample_ids if key in in_all]
    common = [name for name in first.columns if all(name in system.columns for system in systems)]
    if not shared or not common:
        raise InputError(
            f"expected a {'score' if shared else 'sample'} in common with {folders[0]}, found none",
            code=ErrorCode.MISMATCH,
            file=folders[1],
        )
    scores = {
        name: _contrasts(name, systems, shared, replicates=replicates, rounds=rounds, seed=seed) for name in common
    }
    return Comparison(
        names,
        len(shared),
        [len(system.sample_ids) for system in systems],
        scores,
        _notes(systems, len(shared), common),
        {"replicates": replicates, "seed": seed, "rounds": rounds},
    )


def _contrasts(
    name: str, systems: Sequence[System], shared: Sequence[str], *, replicates: int, rounds: int, seed: int
) -> list[Contrast]:
    column, direction = systems[0].columns[name], systems[0].directions[name]
    functions, has_value, pairing = {name: column.value}, column.has_value, column.pairing
    tables = [system.columns[name].of(shared) for system in systems]
    points = [
        summarize_counts(table, functions, has_value=has_value, replicates=replicates, seed=seed)[name]
        for table in tables
    ]
    contrasts = [Contrast(replace(points[0], direction=direction))]
    for table, point in zip(tables[1:], points[1:], strict=True):
        difference = paired_difference(
            table, tables[0], functions, has_value=has_value, pairing=pairing, replicates=replicates, seed=seed
        )[name]
        p = randomization_test(table, tables[0], functions, pairing=pairing, rounds=rounds, seed=seed)[name]
        contrasts.append(Contrast(replace(point, direction=direction), replace(difference, direction=direction), p))
    return contrasts


def _notes(systems: Sequence[System], shared: int, names: Sequence[str]) -> list[str]:
    notes = [f"{shared} samples are in all of them; no others count here."]
    first = systems[0]
    for system in systems[1:]:
        different = sum(
            system.references[key] != text for key, text in first.references.items() if key in system.references
        )
        if different:
            notes.append(
                f"{different} samples have another reference text in {system.name} than in {first.name}: another "
                "dataset, or another splitter."
            )
        other_metric = [name for name in names if first.metric_of.get(name) != system.metric_of.get(name)]
        if other_metric:
            notes.append(f"{', '.join(other_metric)}: of another metric in {system.name} than in {first.name}.")
        metrics = (first.metric_of[name] for name in names if name in first.metric_of and name not in other_metric)
        notes += [
            f"{metric}: another judge or model, or other settings, in {system.name} than in {first.name}."
            for metric in dict.fromkeys(metrics)
            if system.settings.get(metric) != first.settings.get(metric)
        ]
    dropped = sorted({score for system in systems for score in system.directions} - set(names))
    in_all = [score for score in dropped if all(score in system.directions for system in systems)]
    if missing := [score for score in dropped if score not in in_all]:
        notes.append(f"Not compared, because not all systems have them: {', '.join(missing)}.")
    if in_all:
        notes.append(
            f"Not compared, because the metric that pools them is not known here: {', '.join(in_all)}; name it "
            "with --metric MODULE:OBJECT."
        )
    notes.append("Each p is of one score by itself: of many scores some differ by chance.")
    return notes
