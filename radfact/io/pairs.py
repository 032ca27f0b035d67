"""Candidate and reference reports from every file format that RadFact accepts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError

from radfact.errors import ErrorCode, InputError, check_unique_id, list_some
from radfact.io.coco import Id, decode_mask, read_coco
from radfact.io.csv_tables import read_csv
from radfact.io.jsonl import read_json, read_jsonl
from radfact.io.options import Missing
from radfact.records import Pair, Pairs, Report, Sentence, as_input_error, parse_sentences, validate_model

"""Handling of a reference without a candidate: an error, a skipped sample, or an empty candidate report."""

_CSV_COLUMNS = ("example_id", "prediction", "target")
_REFERENCE_FIELDS = ("grounded_findings", "findings", "report")


class _GroundedRow(BaseModel):
    """One example of the published grounded layout."""

    example_id: Id
    prediction: list[Sentence]
    target: list[Sentence]


class _NarrativeRow(BaseModel):
    """One row of the published narrative table."""

    example_id: Id
    prediction: str
    target: str


class _Keyed(BaseModel):
    """What a draft and a record of a manifest have in common."""

    sample_id: Id


@dataclass(frozen=True, slots=True)
class _Reference:
    report: Report | None
    split: object


_text = TypeAdapter(str)


def read_pairs(path: Path | str) -> Pairs:
    """Read candidates and references from one file, in one of the two published layouts.

    `.json`: a list of `{example_id, prediction, target}` whose reports are lists of `{text, boxes}`.
    `.csv`: a table with the columns `example_id, prediction, target` whose reports are narratives; an empty cell is
    an empty report.

    Raises:
        InputError: the file cannot be read or is invalid; the error has the line or the path of the field.
    """
    path = Path(path)
    readers: dict[str, Callable[[Path], Pairs]] = {".json": _read_grounded_json, ".csv": _read_narrative_csv}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InputError(
            "expected .json (grounded pairs) or .csv (example_id,prediction,target); "
            "drafts and a manifest are given as --candidates and --references",
            code=ErrorCode.INVALID_FORMAT,
            file=path,
        )
    return replace(reader(path), files=(path,))


def read_candidates_and_references(
    candidates: Path | str, references: Path | str, *, missing: Missing = "refuse"
) -> Pairs:
    """Read drafts and the records that hold their references: JSON Lines keyed by `sample_id`, or COCO files (.json).

    A draft has a `report`: a list of sentences or one narrative. The reference of a record is `grounded_findings`, or
    else `findings`, or else `report`. Records where all of these are null, and records of splits without any draft, are
    skipped and counted; drafts of the former are named in the result. Every draft must have a record. For COCO files
    see `radfact.io.coco.read_coco`; a list of results as candidates takes sizes and categories from the references.

    Args:
        candidates: drafts, or a COCO dataset or list of results.
        references: a manifest, or a COCO dataset.
        missing: for a reference without a candidate, `refuse` raises, `skip` makes no pair and `empty` pairs it with an
            empty report; the last two name it in the result.

    Raises:
        InputError: naming file, line and field, or the first ids that have no counterpart.
    """
    if missing not in get_args(Missing):
        raise InputError(
            f"expected one of {', '.join(get_args(Missing))}, found {missing!r}",
            code=ErrorCode.INVALID_OPTION,
            field="missing",
        )
    recorded = _read_references(references)
    drafted = _read_candidates(candidates, references)
    references_by_id = {key: record.report for key, record in recorded.items() if record.report is not None}

    unknown = [key for key in drafted if key not in recorded]
    if unknown:
        raise InputError(
            f"{_counted(unknown, 'candidate')} not in {references}; drafts of other studies can be shown on the page "
            "from another file, --unscored FILE",
            code=ErrorCode.MISMATCH,
            file=candidates,
        )
    without_reference = tuple(key for key in drafted if key not in references_by_id)
    splits = {recorded[key].split for key in drafted}
    unmatched = tuple(key for key in references_by_id if key not in drafted and recorded[key].split in splits)
    if unmatched and missing == "refuse":
        raise InputError(
            f"{_counted(unmatched, 'reference')} without a candidate in {candidates}; give --missing skip to score "
            "the others alone, or --missing empty to count each as an empty report",
            code=ErrorCode.MISMATCH,
            file=references,
        )

    pairs = [Pair(key, report, references_by_id[key]) for key, report in drafted.items() if key in references_by_id]
    paired = Pairs(
        tuple(pairs),
        read=len(recorded),
        skipped=len(recorded) - len(pairs) - len(unmatched),
        without_reference=without_reference,
        files=(Path(candidates), Path(references)),
    )
    if missing == "skip":
        return replace(paired, without_candidate=unmatched)
    pairs += [
        Pair(key, "" if isinstance(references_by_id[key], str) else [], references_by_id[key]) for key in unmatched
    ]
    return replace(paired, pairs=tuple(pairs), empty_candidates=unmatched)


def read_drafts(path: Path | str) -> dict[str, Report]:
    """Read the reports of a drafts file (JSON Lines) by `sample_id`.

    Raises:
        InputError: naming file, line and field.
    """
    return _read_keyed(path, _draft)


def _is_coco(path: Path | str) -> bool:
    return Path(path).suffix.lower() == ".json"


def _read_references(path: Path | str) -> dict[str, _Reference]:
    if _is_coco(path):
        return {key: _Reference(report, None) for key, report in read_coco(path).items()}
    return _read_keyed(path, _reference)


def _read_candidates(path: Path | str, references: Path | str) -> Mapping[str, Report]:
    if _is_coco(path):
        return read_coco(path, dataset=references if _is_coco(references) else None)
    return read_drafts(path)


def _counted(ids: Sequence[str], noun: str) -> str:
    return f"{len(ids)} {noun}{'' if len(ids) == 1 else 's'} ({list_some(ids)})"


def _read_grounded_json(path: Path) -> Pairs:
    rows = read_json(path)
    if not isinstance(rows, list):
        raise InputError(
            f"expected a list of {{example_id, prediction, target}}, found {_kind(rows)}; "
            "COCO files are given as --candidates and --references",
            code=ErrorCode.INVALID_FORMAT,
            file=path,
            field="(top)",
        )
    seen: dict[str, str] = {}
    pairs = []
    for index, value in enumerate(rows):
        field = f"[{index}]"
        _check_grounded(value, file=path, field=field)
        row = validate_model(_GroundedRow, value, file=path, field=field)
        check_unique_id(seen, row.example_id, field, file=path, field="example_id")
        for name in ("prediction", "target"):
            _check_masks(getattr(row, name), file=path, field=f"{field}.{name}")
        pairs.append(Pair(row.example_id, row.prediction, row.target))
    return Pairs(tuple(pairs), read=len(rows))


def _check_grounded(row: Any, *, file: Path, field: str) -> None:
    """Refuse a narrative in the layout of grounded reports, and explain where narratives belong."""
    for name in ("prediction", "target"):
        if isinstance(row, dict) and isinstance(row.get(name), str):
            raise InputError(
                "expected a list of {text, boxes}, found a narrative; narratives go into a table (.csv) "
                f"with the columns {', '.join(_CSV_COLUMNS)}",
                file=file,
                field=f"{field}.{name}",
            )


def _read_narrative_csv(path: Path) -> Pairs:
    seen: dict[str, int] = {}
    pairs = []
    columns, rows = read_csv(path)
    missing = [name for name in _CSV_COLUMNS if name not in columns]
    if missing:
        raise InputError(
            f"expected the columns {', '.join(_CSV_COLUMNS)}; found {', '.join(columns) or 'none'}",
            code=ErrorCode.MISSING_FIELD,
            file=path,
            line=1,
            field=missing[0],
        )
    for line, cells in rows:
        row = validate_model(_NarrativeRow, cells, file=path, line=line)
        check_unique_id(seen, row.example_id, line, file=path, field="example_id")
        pairs.append(Pair(row.example_id, row.prediction.strip(), row.target.strip()))
    return Pairs(tuple(pairs), read=len(pairs))


_ValueT = TypeVar("_ValueT")


def _read_keyed(path: Path | str, value_of: Callable[[dict[str, Any], Path | str, int], _ValueT]) -> dict[str, _ValueT]:
    """Read JSON Lines by `sample_id`; `value_of` extracts the value of a row."""
    seen: dict[str, int] = {}
    values: dict[str, _ValueT] = {}
    for line, row in read_jsonl(path):
        key = validate_model(_Keyed, row, file=path, line=line).sample_id
        check_unique_id(seen, key, line, file=path)
        values[key] = value_of(row, path, line)
    return values


def _draft(row: dict[str, Any], path: Path | str, line: int) -> Report:
    if row.get("report") is None:
        raise InputError(
            "expected a list of {text, boxes} or one narrative, found none",
            code=ErrorCode.MISSING_FIELD,
            file=path,
            line=line,
            field="report",
        )
    return _report(row["report"], path, line, "report")


def _reference(row: dict[str, Any], path: Path | str, line: int) -> _Reference:
    if not any(field in row for field in _REFERENCE_FIELDS):
        raise InputError(
            f"expected one of {', '.join(_REFERENCE_FIELDS)}, found none",
            code=ErrorCode.MISSING_FIELD,
            file=path,
            line=line,
        )
    field = next((field for field in _REFERENCE_FIELDS if row.get(field) is not None), None)
    split = row.get("split")
    if not isinstance(split, str | None):
        raise InputError(f"expected a text or null, found {_kind(split)}", file=path, line=line, field="split")
    return _Reference(None if field is None else _report(row[field], path, line, field), split)


def _report(value: Any, path: Path | str, line: int, field: str) -> Report:
    if isinstance(value, list):
        sentences = parse_sentences(value, file=path, line=line, field=field)
        _check_masks(sentences, file=path, line=line, field=field)
        return sentences
    if not isinstance(value, str):
        raise InputError(
            f"expected a list of {{text, boxes}} or one narrative, found {_kind(value)}",
            file=path,
            line=line,
            field=field,
        )
    try:
        # Half a surrogate pair, which JSON can carry, is a str that is no text.
        return _text.validate_python(value).strip()
    except ValidationError as error:
        raise as_input_error(error, file=path, line=line, field=field) from None


def _check_masks(sentences: Sequence[Sentence], *, file: Path | str, line: int | None = None, field: str) -> None:
    for index, sentence in enumerate(sentences):
        for place, mask in enumerate(sentence.masks or ()):
            try:
                decode_mask(mask)
            except InputError as error:
                mask_field = f"{field}[{index}].masks[{place}].{error.field}"
                raise InputError(error.message, file=file, line=line, field=mask_field) from None


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")
