"""Reading a results folder."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from radfact.errors import ErrorCode, InputError, check_unique_id, describe_choice
from radfact.io.jsonl import read_json, read_jsonl
from radfact.io.outputs import finish_interrupted
from radfact.metrics.radfact.scores import Side
from radfact.records import validate_model
from radfact.results.schema import (
    METRICS_FOLDER,
    VERSION,
    MetricRow,
    NarrativeRow,
    RunFile,
    SampleRow,
    ScoresFile,
    finding_metrics,
)
from radfact.statistics.bootstrap import Direction

if TYPE_CHECKING:
    from radfact.findings.details import Outcomes

_RowT = TypeVar("_RowT", bound=SampleRow)


def read_scores(folder: Path | str) -> ScoresFile:
    """Read `scores.json` of a results folder."""
    path = Path(folder) / "scores.json"
    finish_interrupted(path.parent)
    if not path.is_file():
        raise InputError(
            "expected a finished results folder, but it has no scores.json", code=ErrorCode.FILE_NOT_FOUND, file=folder
        )
    values = read_json(path)
    version = values.get("version", 1) if isinstance(values, dict) else VERSION
    if version != VERSION:
        remedy = "update maira-radfact" if isinstance(version, int) and version > VERSION else "score the reports again"
        message = f"expected version {VERSION} of the results schema, found {describe_choice(version)}; {remedy}"
        raise InputError(message, code=ErrorCode.UNSUPPORTED_VERSION, file=path, field="version")
    return validate_model(ScoresFile, values, file=path)


def read_run(folder: Path | str) -> RunFile:
    """Read `run.json` of a results folder; a folder without one has an empty record."""
    path = Path(folder) / "run.json"
    return validate_model(RunFile, read_json(path) if path.exists() else {}, file=path)


def iter_samples(folder: Path | str, model: type[_RowT], names: Sequence[str] = ()) -> Iterator[_RowT]:
    """Read the rows of `samples.jsonl` of a results folder one at a time."""
    path = Path(folder) / "samples.jsonl"
    seen: dict[str, int] = {}
    for line, values in read_jsonl(path):
        row = validate_model(model, values, file=path, line=line)
        check_unique_id(seen, row.sample_id, line, file=path)
        for name in names:
            value = values.get(name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if value is not None and not is_number:
                message = f"expected a finite number or null, found {describe_choice(value)}"
                raise InputError(message, file=path, line=line, field=name)
        yield row


@dataclass(frozen=True, slots=True)
class SampleScores:
    """Sample-level scores of a results folder."""

    rows: Mapping[str, Mapping[str, float]]
    directions: Mapping[str, Direction]
    clusters: Mapping[str, str | None]


def read_sample_scores(folder: Path | str) -> SampleScores:
    directions = {name: score.direction for name, score in read_scores(folder).scores.items()}
    rows: dict[str, Mapping[str, float]] = {}
    clusters: dict[str, str | None] = {}
    for sample in iter_samples(folder, SampleRow, list(directions)):
        clusters[sample.sample_id] = sample.cluster
        columns = sample.model_extra or {}
        rows[sample.sample_id] = {
            name: math.nan if columns[name] is None else float(columns[name]) for name in directions if name in columns
        }
    return SampleScores(rows, directions, clusters)


def read_texts(folder: Path) -> dict[tuple[str, Side], str]:
    """Read the reports of a results folder by sample and side, with sentences joined by spaces."""
    path = folder / "sentences.jsonl"
    texts: dict[tuple[str, Side], str] = {}
    for line, values in read_jsonl(path):
        row = validate_model(NarrativeRow, values, file=path, line=line)
        key = row.sample_id, row.side
        texts[key] = f"{texts[key]} {row.text}" if key in texts else row.text
    return texts


def read_digests(folder: Path | str) -> dict[str, str | None]:
    """Read the digest of the reports of each sample; None for a sample without a candidate."""
    return {sample.sample_id: sample.reports for sample in iter_samples(folder, SampleRow)}


def read_outcomes(folder: Path, sample_ids: Collection[str]) -> Outcomes:
    """Return what the candidates of a results folder make of each finding, by each metric that compares findings."""
    from radfact.findings.details import FindingOutcome, read_details

    wanted, outcomes = frozenset(sample_ids), dict[str, dict[str, dict[str, FindingOutcome]]]()
    for metric in finding_metrics(read_scores(folder)):
        outcomes[metric] = {}
        path = folder / METRICS_FOLDER / f"{metric}.jsonl"
        for line, values in read_jsonl(path):
            row = validate_model(MetricRow, values, file=path, line=line)
            compared = read_details(row.details, file=path, line=line)
            if compared is not None and row.sample_id in wanted:
                outcomes[metric][row.sample_id] = compared.outcomes
    return outcomes
