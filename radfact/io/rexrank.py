"""Files of the ReXrank leaderboard: one JSON object that maps ids to studies, with reference sections and prediction.

Source: rajpurkarlab/ReXrank, `data/READMD.md` and `example_files`; rajpurkarlab/ReXrank-metric, README, read
from a stored public copy of the repository that was not verified to be its newest state. Inferred: that
the findings of a prediction end at its heading "Impression:", and that both reports are scored without their headings
if only the findings are scored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from radfact.errors import InputError
from radfact.io.jsonl import read_json, write_json
from radfact.io.options import Section
from radfact.records import Pairs, PatientContext, Row, narrative, validate_model

_FIELDS = ("section_findings", "section_impression", "model_prediction")
_FINDINGS_HEADING = re.compile(r"\A\s*findings\s*:", re.IGNORECASE)
_IMPRESSION_HEADING = re.compile(r"\bimpression\s*:", re.IGNORECASE)
_CONTEXT_LABEL = re.compile(r"(age|gender|indication|comparison)\s*:", re.IGNORECASE)
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


class _Study(Row):
    section_findings: str | None = None
    section_impression: str | None = None
    report: str | None = None
    context: str | None = None
    model_prediction: str | None = None


def is_rexrank(value: object) -> bool:
    """Return whether a JSON document is a ReXrank file."""
    return (
        isinstance(value, dict)
        and bool(value)
        and all(isinstance(study, dict) for study in value.values())
        and any(field in study for study in value.values() for field in _FIELDS)
    )


def read_rexrank(path: Path) -> dict[str, Any] | None:
    """Read the studies of a ReXrank file by id; None for a file in another layout."""
    value = read_json(path) if path.suffix.lower() == ".json" else None
    return value if is_rexrank(value) else None


def read_study(
    key: str, fields: Mapping[str, Any], section: Section | None, *, file: Path
) -> tuple[str | None, str | None, dict[str, Any]]:
    """Return prediction and reference of a study, or only the selected section of them, and its fields as a row.

    `subject_id` is the patient, and the context is in fields of its own.
    """
    if not key.strip():
        raise InputError("expected the id of a study, found an empty key", file=file)
    study = validate_model(_Study, fields, file=file, field=key)
    reference, prediction = _full_report(study), study.model_prediction
    if section != "report":
        reference = study.section_findings
        prediction = None if prediction is None else findings_of(prediction)
    patient = {"patient_id": fields["subject_id"]} if "subject_id" in fields else {}
    row = {**patient, **fields, **_context(study.context or "")}
    return None if prediction is None else prediction.strip(), _text(reference), row


def findings_of(report: str) -> str:
    """Return the findings of a report with the headings "Findings:" and "Impression:"; all of it without headings."""
    match = _IMPRESSION_HEADING.search(report)
    findings = report if match is None else report[: match.start()]
    return _FINDINGS_HEADING.sub("", findings).strip()


def write_rexrank(pairs: Pairs, path: Path, studies: Mapping[str, Any] | None = None) -> None:
    """Write pairs of reports as a ReXrank file with predictions; known studies keep their fields."""
    rows = {}
    for pair in pairs:
        fields = (studies or {}).get(pair.sample_id)
        if fields is None:
            context = _context_text(pair.context)
            fields = {"section_findings": narrative(pair.reference), **({"context": context} if context else {})}
        rows[pair.sample_id] = {**fields, "model_prediction": narrative(pair.candidate)}
    write_json(path, rows)


def _full_report(study: _Study) -> str | None:
    if _text(study.report):
        return study.report
    sections = (("Findings", study.section_findings), ("Impression", study.section_impression))
    return " ".join(f"{name}: {text}" for name, section in sections if (text := _text(section))) or None


def _text(value: str | None) -> str | None:
    """Return a text without surrounding spaces; None for an empty one and for the NaN of pandas."""
    text = (value or "").strip()
    return None if text.lower() in ("", "nan") else text


def _context(text: str) -> dict[str, str | None]:
    """Return the patient in a text such as "Age:50-60.Gender:M.Indication: cough. Comparison: None."."""
    parts = _CONTEXT_LABEL.split(re.sub(r"</?context>", "", text))
    values = {name.lower(): part.strip(" .") for name, part in zip(parts[1::2], parts[2::2], strict=True)}
    # A range of ages is no age.
    age = values.get("age", "") if _NUMBER.fullmatch(values.get("age", "")) else None
    return {"age": age} | {name: _text(values.get(name)) for name in ("indication", "comparison")}


def _context_text(context: PatientContext) -> str:
    age = None if context.age is None else f"{context.age:g}"
    parts = (("Age", age), ("Indication", context.indication), ("Comparison", context.comparison))
    return " ".join(f"{name}: {value}" for name, value in parts if value is not None)
