"""Names of columns and fields in files of reports: those that every reader accepts, and a user's own."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Literal

from radfact.errors import ErrorCode, InputError, field_name, list_columns
from radfact.options import parse_key_values

Missing = Literal["refuse", "skip", "empty"]
Section = Literal["findings", "report"]
Place = dict[str, Any]
"""Where a row is, as arguments of an error: file and line or field."""
Columns = Mapping[str, str]
"""A user's own names by field, as in `--columns`."""
Layout = Mapping[str, tuple[str, ...]]
"""Accepted names of each field that a file must have."""

NAMES: Layout = {
    "id": ("id", "sample_id", "example_id"),
    "candidate": ("candidate", "prediction"),
    "reference": ("reference", "target"),
}
EXAMINATION: Layout = {
    "modality": ("modality", "imaging_modality"),
    "anatomy": ("anatomy", "region", "body_region", "body_part", "bodypart", "body_part_examined", "bodypartexamined"),
}
"""Accepted names of the fields of the examination, in any case."""
_EXAMINATION_FIELDS = {name: field for field, accepted in EXAMINATION.items() for name in accepted}
PATIENT = ("patient_id", "study_id", "age", "indication", "comparison", *EXAMINATION)
FIELDS = (*NAMES, "candidate_1", "candidate_2", "site", *PATIENT)
"""Fields to which a user can give an own name."""


def check_columns(columns: Columns, fields: Collection[str] = FIELDS, names: Layout = NAMES) -> Columns:
    """Return own names by field; several may be in one text, as in `id=study,candidate=draft`."""
    text = ",".join(f"{field}={name}" for field, name in columns.items())
    checked: dict[str, str] = {}
    for key, name in parse_key_values(re.split(r",(?=[^,=]+=)", text) if text else [], "columns").items():
        field = next((ours for ours, accepted in names.items() if key in accepted), key)
        if field not in fields:
            message = f"unknown field '{key}'; expected FIELD=NAME with {', '.join(fields)}"
            raise InputError(message, code=ErrorCode.UNKNOWN_NAME, field="columns")
        if field in checked or name in checked.values():
            message = f"expected one name per field, and no name twice, found '{key}={name}' as well"
            raise InputError(message, code=ErrorCode.DUPLICATE, field="columns")
        checked[field] = name
    return checked


def find_columns(names: Collection[str], layout: Layout, columns: Columns, place: Place) -> dict[str, str]:
    """Return what a table calls each field of a layout; a name that the user gave to one is not taken for another."""
    found: dict[str, str] = {}
    for wanted, accepted in layout.items():
        known = [columns[wanted]] if wanted in columns else [name for name in accepted if name not in columns.values()]
        present = [name for name in known if name in names]
        if len(present) != 1:
            code = ErrorCode.DUPLICATE if present else ErrorCode.MISSING_FIELD
            expected = f"{'one of ' if known[1:] else ''}{', '.join(known) or wanted}"
            message = f"expected {expected}, found {' and '.join(present) or list_columns([*names])}"
            name = (present[1:] or known or [wanted])[0]
            hint = f"; name another one with --columns {wanted}=NAME" if "file" in place else ""
            raise InputError(message + hint, code=code, **inside(place, name))
        found[wanted] = present[0]
    return found


def inside(place: Place, name: str) -> Place:
    """Return the place of a field of a row."""
    name = field_name(name)
    return {**place, "field": f"{place['field']}.{name}" if "field" in place else name}


def with_own_names(row: Mapping[str, Any], columns: Columns, place: Place) -> Mapping[str, Any]:
    """Return a row whose fields of the patient and the examination have our names."""
    names = {field: name for field, name in columns.items() if field in PATIENT}
    for name in [name for name in row if name not in columns.values()]:
        field = _EXAMINATION_FIELDS.get(str(name).strip().lower().replace(" ", "_"))
        if field and field not in columns and names.setdefault(field, name) != name:
            message = f"expected one {field}, found '{names[field]}' as well; name one with --columns {field}=NAME"
            raise InputError(message, code=ErrorCode.DUPLICATE, **inside(place, name))
    own = {field: row[name] for field, name in names.items() if name in row}
    return {**row, **own} if own else row
