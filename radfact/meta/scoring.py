"""Figures of the samples of a set, computed now or read from results folders."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from radfact.errors import InputError
from radfact.files import Pair
from radfact.jsonl import read_json, read_jsonl
from radfact.meta.agreement import Figures
from radfact.report import validated
from radfact.stats import Direction

if TYPE_CHECKING:
    from radfact.metrics.evaluate import Work


class _Figure(BaseModel):
    model_config = ConfigDict(extra="ignore")

    direction: Direction = "higher"


class _Scores(BaseModel):
    model_config = ConfigDict(extra="ignore")

    figures: dict[str, _Figure] = Field(default_factory=dict)


def read_figures(folders: Sequence[Path], sample_ids: Sequence[str]) -> Figures:
    """The figures that results folders have of some samples.

    Where two folders have a figure of the same name, each is named FOLDER/FIGURE.

    Args:
        folders: as `radfact evaluate` or `radfact score` writes them.
        sample_ids: of the set; a sample that a folder lacks has no value.

    Raises:
        InputError: a file is missing or wrong, or a folder has none of the samples.
    """
    tables = {folder: _read_folder(folder, sample_ids) for folder in dict.fromkeys(folders)}
    names = [name for figures in tables.values() for name in figures.values]
    values: dict[str, Sequence[float]] = {}
    directions: dict[str, Direction] = {}
    for folder, figures in tables.items():
        for name, column in figures.values.items():
            label = name if names.count(name) == 1 else f"{folder.name}/{name}"
            values[label], directions[label] = column, figures.directions[name]
    return Figures(values, directions)


def _read_folder(folder: Path, sample_ids: Sequence[str]) -> Figures:
    scores = folder / "scores.json"
    directions = {
        name: one.direction for name, one in validated(_Scores, read_json(scores), file=scores).figures.items()
    }
    rows: dict[Any, dict[str, Any]] = {row.get("sample_id"): row for _, row in read_jsonl(folder / "samples.jsonl")}
    if not any(key in rows for key in sample_ids):
        raise InputError("has none of the samples of the set", file=folder / "samples.jsonl", field="sample_id")
    values = {name: [_number(rows.get(key, {}).get(name)) for key in sample_ids] for name in directions}
    return _with_values(values, directions)


def _with_values(values: Mapping[str, Sequence[float]], directions: Mapping[str, Direction]) -> Figures:
    """Without figures that no sample has, such as those of boxes where reports have none: they are no tests either."""
    kept = {name: column for name, column in values.items() if not all(map(math.isnan, column))}
    return Figures(kept, {name: directions[name] for name in kept})


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def compute_figures(pairs: Sequence[Pair], work: Work, folder: Path) -> Figures:
    """The figures of pairs by the metrics of `work`, kept as a results folder.

    A metric that stands there with the same input is not computed again.

    Args:
        pairs: to be scored.
        work: the metrics, already made.
        folder: of the results.

    Raises:
        RunFailed: no metric could score anything.
        InputError: two pairs have one id.
    """
    from radfact.metrics.folder import write_evaluation
    from radfact.page import write_page

    evaluation = work.run(pairs, bootstrap=0, seed=0, folder=folder)
    write_evaluation(evaluation, folder)
    write_page(folder)
    directions = {name: one for run in evaluation.runs.values() for name, one in run.figures.items()}
    return replace(_with_values(evaluation.values, directions), unavailable=dict(evaluation.unavailable))
