"""Figures of the samples of a set, computed now or read from results folders."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from radfact.errors import InputError
from radfact.meta.agreement.analysis import Figures
from radfact.meta.datasets.matching import digests_of, match
from radfact.records import Pair
from radfact.results.reader import read_sample_scores
from radfact.statistics.bootstrap import Direction

if TYPE_CHECKING:
    from radfact.pipeline import MetricRunner


def read_figures(folders: Sequence[Path], pairs: Sequence[Pair]) -> Figures:
    """The figures that results folders have of some samples.

    Where two folders have a figure of the same name, each is named FOLDER/FIGURE.

    Args:
        folders: as `radfact evaluate` or `radfact score` writes them.
        pairs: the set; a sample that a folder lacks has no value. `matches` says which these are, and which have other
            texts in a folder.

    Raises:
        InputError: a file is missing or wrong, or a folder has none of the samples.
    """
    sample_ids, wanted = [pair.sample_id for pair in pairs], digests_of(pairs)
    tables = {folder: _read_folder(folder, sample_ids) for folder in dict.fromkeys(folders)}
    names = [name for figures in tables.values() for name in figures.values]
    values: dict[str, Sequence[float]] = {}
    directions: dict[str, Direction] = {}
    for folder, figures in tables.items():
        for name, column in figures.values.items():
            label = name if names.count(name) == 1 else f"{folder.name}/{name}"
            values[label], directions[label] = column, figures.directions[name]
    return Figures(values, directions, matches=[match(folder, wanted) for folder in tables])


def _read_folder(folder: Path, sample_ids: Sequence[str]) -> Figures:
    found = read_sample_scores(folder)
    if not any(key in found.rows for key in sample_ids):
        raise InputError("has none of the samples of the set", file=folder / "samples.jsonl", field="sample_id")
    values = {name: [found.rows.get(key, {}).get(name, math.nan) for key in sample_ids] for name in found.directions}
    return _with_values(values, found.directions)


def _with_values(values: Mapping[str, Sequence[float]], directions: Mapping[str, Direction]) -> Figures:
    """Without figures that no sample has, such as those of boxes where reports have none: they are no tests either."""
    kept = {name: column for name, column in values.items() if not all(map(math.isnan, column))}
    return Figures(kept, {name: directions[name] for name in kept})


def compute_figures(pairs: Sequence[Pair], work: MetricRunner, folder: Path, *, headline: bool = False) -> Figures:
    """The figures of pairs by the metrics of `work`, kept as a results folder.

    A metric that stands there with the same input is not computed again.

    Args:
        pairs: to be scored.
        work: the metrics, already made.
        folder: of the results, which have all figures in any case.
        headline: whether a metric that was named is its headline figure alone, beside those named by themselves.

    Raises:
        RunError: no metric could score anything.
        InputError: two pairs have one id.
    """
    from radfact.pipeline import write_results_and_page

    evaluation = work.run(pairs, bootstrap=0, seed=0, folder=folder)
    write_results_and_page(evaluation, folder)
    runs = evaluation.runs.values()
    directions = {
        name: run.directions[name]
        for run in runs
        for name in (run.selection.main_scores(run.metric) if headline else run.directions)
    }
    values = {name: column for name, column in evaluation.values.items() if name in directions}
    return replace(_with_values(values, directions), unavailable=dict(evaluation.unavailable))
