"""Files of the ReXrank leaderboard: one JSON object that maps ids to studies, with reference sections and prediction.

Source: rajpurkarlab/ReXrank, `data/READMD.md` and `example_files`; rajpurkarlab/ReXrank-metric, README, in a public
copy that may not be the newest. Inferred: that the findings of a prediction end at its heading "Impression:", and that
both reports are scored without their headings if only the findings are scored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from radfact.errors import InputError, describe
from radfact.io.columns import NAMES, Columns, Section, find_columns, with_own_names
from radfact.io.jsonl import KeyLines, read_json, write_json
from radfact.records import Pairs, Row, is_missing, narrative, validate_model

CANDIDATE_NAMES = ("model_prediction", *NAMES["candidate"])
_FIELDS = ("section_findings", "section_impression", *CANDIDATE_NAMES, *NAMES["reference"])
_FINDINGS_HEADING = re.compile(r"\A\s*findings\s*:", re.IGNORECASE)
_IMPRESSION_HEADING = re.compile(r"\bimpression\s*:", re.IGNORECASE)
_CONTEXT_LABEL = re.compile(r"(age|gender|indication|comparison)\s*:", re.IGNORECASE)
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


class _Study(Row):
    section_findings: str | None = None
    section_impression: str | None = None
    report: str | None = None
    context: str | None = None


def is_rexrank(value: object, columns: Columns) -> bool:
    studies = [*value.values()] if isinstance(value, dict) else []
    names = {*_FIELDS, *columns.values()}
    return all(isinstance(study, dict) for study in studies) and any(names & study.keys() for study in studies)


def read_rexrank(path: Path, columns: Columns) -> dict[str, Any] | None:
    """Read the studies of a ReXrank file by id; None for a file in another layout."""
    value = read_json(path) if path.suffix.lower() == ".json" else None
    return value if is_rexrank(value, columns) else None


def read_study(
    key: str, fields: Mapping[str, Any], section: Section | None, columns: Columns, file: Path, lines: KeyLines
) -> tuple[str | None, str | None, Mapping[str, Any], dict[str, Any], list[str]]:
    """Return prediction, reference, fields and place of a study, and the names of the reports that it lacks."""
    place: dict[str, Any] = {"file": file, "line": lines[(key,)]}
    if not key.strip():
        raise InputError("expected the id of a study, found an empty key", **place)
    study = validate_model(_Study, fields, **place, field=key)
    texts = {"candidate": None, "reference": study.section_findings}
    if section == "report":
        sections = (("Findings", study.section_findings), ("Impression", study.section_impression))
        parts = (f"{name}: {text}" for name, value in sections if (text := _text(value)))
        texts["reference"] = study.report if _text(study.report) else " ".join(parts)
    names = {"candidate": "model_prediction", "reference": "section_findings"}
    for side, accepted in (("candidate", CANDIDATE_NAMES), ("reference", NAMES["reference"])):
        if any(name in fields for name in ([columns[side]] if side in columns else accepted)):
            names |= find_columns(fields, {side: accepted}, columns, {**place, "field": key})
            texts[side] = fields[names[side]]
            if not isinstance(texts[side], str | None):
                message = f"expected a string or null, found {describe(texts[side])}"
                raise InputError(message, **place, field=f"{key}.{names[side]}")
    prediction, reference = texts["candidate"], _text(texts["reference"])
    if prediction is not None:
        prediction = None if is_missing(prediction) else prediction.strip()
    if prediction and section != "report":
        prediction = findings_of(prediction)
    missing = [names[side] for side, text in (("candidate", prediction), ("reference", reference)) if text is None]
    place["line"] = lines.get((key, *missing[:1]), place["line"])
    patient = {"patient_id": fields["subject_id"]} if "subject_id" in fields else {}
    row = with_own_names({**patient, **fields, **_context(study.context or "")}, columns, place)
    return prediction, reference, row, place, missing


def findings_of(report: str) -> str:
    """Return the findings of a report with the headings "Findings:" and "Impression:"; all of it without headings."""
    return _FINDINGS_HEADING.sub("", _IMPRESSION_HEADING.split(report, maxsplit=1)[0]).strip()


def write_rexrank(pairs: Pairs, path: Path, studies: Mapping[str, Any] | None = None) -> None:
    """Write pairs of reports as a ReXrank file with predictions; known studies keep their fields."""
    rows = {}
    for pair in pairs:
        fields = (studies or {}).get(pair.sample_id)
        if fields is None:
            age = None if pair.context.age is None else f"{pair.context.age:g}"
            parts = (("Age", age), ("Indication", pair.context.indication), ("Comparison", pair.context.comparison))
            context = " ".join(f"{name}: {value}" for name, value in parts if value is not None)
            fields = {"section_findings": narrative(pair.reference), **({"context": context} if context else {})}
        kept = {name: value for name, value in fields.items() if name not in CANDIDATE_NAMES}
        rows[pair.sample_id] = {**kept, "model_prediction": narrative(pair.candidate)}
    write_json(path, rows)


def _text(value: str | None) -> str | None:
    """Return a text without surrounding spaces; None for an empty or missing one."""
    text = (value or "").strip()
    return None if not text or is_missing(text) else text


def _context(text: str) -> dict[str, str | None]:
    """Return the patient in a text such as "Age:50-60.Gender:M.Indication: cough. Comparison: None."."""
    parts = _CONTEXT_LABEL.split(re.sub(r"</?context>", "", text))
    values = {name.lower(): part.strip(" .") for name, part in zip(parts[1::2], parts[2::2], strict=True)}
    # A range of ages is no age.
    age = values.get("age", "") if _NUMBER.fullmatch(values.get("age", "")) else None
    return {"age": age} | {name: values.get(name) for name in ("indication", "comparison")}
