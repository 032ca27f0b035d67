"""Labels of the clusters of samples, such as the patient of each study, from a column or field of an input file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from radfact.errors import ErrorCode, InputError, brief
from radfact.records import NO_CLUSTERS

AUTOMATIC_COLUMNS = ("patient_id", "study_id")
"""Columns that give the clusters if none is named; the first one with a value is used."""

Labels = Mapping[str, str | None]
"""Labels of one record by column; None = no value."""


def read_labels(
    record: Mapping[str, Any],
    cluster: str | None,
    *,
    file: Path | str | None,
    line: int | None = None,
    field: str | None = None,
) -> Labels:
    """Return the labels of a record in the columns that may give the clusters."""
    if cluster == NO_CLUSTERS:
        return {}
    labels: dict[str, str | None] = {}
    for name in AUTOMATIC_COLUMNS if cluster is None else (cluster,):
        if name not in record:
            continue
        value = record[name]
        if isinstance(value, bool) or not isinstance(value, str | int | None):
            path = name if field is None else f"{field}.{name}"
            raise InputError(
                f"expected text, a whole number or null, found {brief(value)}", file=file, line=line, field=path
            )
        labels[name] = str(value).strip() or None if value is not None else None
    return labels


def choose_labels(
    labels: Sequence[Labels], cluster: str | None, *, file: Path | str | None
) -> tuple[str | None, list[str | None]]:
    """Return the column that gives the clusters, and the label of each record; None for the column if there is none."""
    if cluster not in (None, NO_CLUSTERS) and not any(cluster in row for row in labels):
        message = f"expected a column or field of {file}, or {NO_CLUSTERS}, found '{cluster}'"
        raise InputError(message, code=ErrorCode.MISSING_FIELD, field="cluster")
    names = AUTOMATIC_COLUMNS if cluster is None else (cluster,)
    by = next((name for name in names if any(row.get(name) is not None for row in labels)), None)
    return by, [None if by is None else row.get(by) for row in labels]
