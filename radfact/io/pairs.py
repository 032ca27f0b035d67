"""Candidate and reference reports from every file format that RadFact accepts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError

from radfact.errors import EMPTY_TEXT, ErrorCode, InputError, check_unique_id, describe, list_columns, list_some
from radfact.io.cluster_labels import Labels, choose_labels, read_labels
from radfact.io.coco import Id, decode_mask, read_coco
from radfact.io.csv_tables import read_csv
from radfact.io.jsonl import read_json, read_jsonl, read_text
from radfact.io.options import Missing, Section
from radfact.io.rexrank import RexrankStudy, read_rexrank
from radfact.records import (
    NO_CONTEXT,
    Pair,
    Pairs,
    PatientContext,
    Report,
    Sentence,
    as_input_error,
    parse_sentences,
    validate_model,
)

"""Handling of a reference without a candidate: an error, a skipped sample, or an empty candidate report."""

_FAILURES = "failures.jsonl"
_NO_CANDIDATE = "no candidate report"
_CSV_COLUMNS = ("example_id", "prediction", "target")
_REFERENCE_FIELDS = ("grounded_findings", "findings", "report")


class _Example(BaseModel):
    """One example of the published layout, whose reports are checked apart."""

    example_id: Id
    prediction: Any
    target: Any


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
    labels: Labels
    context: PatientContext = NO_CONTEXT


_text = TypeAdapter(str)


def read_pairs(path: Path | str, *, cluster: str | None = None, section: Section | None = None) -> Pairs:
    """Read candidates and references from one file, in one of the published layouts.

    `.json`: a list of `{example_id, prediction, target}` whose reports are lists of `{text, boxes}`.
    `.csv`: a table with the columns `example_id, prediction, target` whose reports are narratives; an empty cell is
    an empty report. Rows of both may have further fields, which can name the clusters of samples, or hold the age,
    indication and comparison of the patient (`PatientContext`).
    `.json` of ReXrank: an object with a study by id (`radfact.io.rexrank`).

    Args:
        path: the file.
        cluster: column or field that is the same for samples that belong together, which are then resampled together;
            "none" for no clusters. By default `patient_id`, or else `study_id`, if rows have it.
        section: of a ReXrank file: `findings` (default), or `report` for findings and impression.

    Raises:
        InputError: the file cannot be read or is invalid; the error has the line or the path of the field.
    """
    path = Path(path)
    if (studies := read_rexrank(path, section)) is not None:
        return _pair_up(
            {key: _prediction(study, key, path) for key, study in studies.items()},
            _rexrank_references(studies, cluster, path),
            (path, path),
            missing="refuse",
            cluster=cluster,
        )
    _refuse_section(section, path)
    readers: dict[str, Callable[[Path, str | None], Pairs]] = {
        ".json": _read_grounded_json,
        ".csv": _read_narrative_csv,
    }
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InputError(
            "expected .json (grounded pairs, or a ReXrank file) or .csv (example_id,prediction,target); "
            "drafts and a manifest are given as --candidates and --references",
            code=ErrorCode.INVALID_FORMAT,
            file=path,
        )
    return replace(reader(path, cluster), files=(path,))


def read_candidates_and_references(
    candidates: Path | str,
    references: Path | str,
    *,
    missing: Missing = "refuse",
    cluster: str | None = None,
    section: Section | None = None,
) -> Pairs:
    """Read drafts and the records that hold their references: JSON Lines keyed by `sample_id`, or COCO files (.json).

    Either may also be a ReXrank file (.json), by the ids of its studies.

    A draft has a `report`: a list of sentences or one narrative. The reference of a record is `grounded_findings`, or
    else `findings`, or else `report`. Records where all of these are null, and records of splits without any draft, are
    skipped and counted; drafts of the former are named in the result. Every draft must have a record, which may also
    hold the age, indication and comparison of the patient (`PatientContext`). For COCO files see
    `radfact.io.coco.read_coco`; a list of results as candidates takes sizes and categories from the references.

    Args:
        candidates: drafts, or a COCO dataset or list of results.
        references: a manifest, or a COCO dataset.
        missing: for a reference without a candidate, `refuse` raises, `skip` makes no pair and `empty` pairs it with an
            empty report; the last two name it in the result. The reason comes from `failures.jsonl` next to the drafts,
            if it lists the sample.
        cluster: as in `read_pairs`, a field of the references.
        section: as in `read_pairs`.

    Raises:
        InputError: naming file, line and field, or the first ids that have no counterpart.
    """
    if missing not in get_args(Missing):
        raise InputError(
            f"expected one of {', '.join(get_args(Missing))}, found {missing!r}",
            code=ErrorCode.INVALID_OPTION,
            field="missing",
        )
    candidates, references = Path(candidates), Path(references)
    studies, predictions = read_rexrank(references, section), read_rexrank(candidates, section)
    if studies is None and predictions is None:
        _refuse_section(section, references)
    recorded = (
        _read_references(references, cluster) if studies is None else _rexrank_references(studies, cluster, references)
    )
    models: tuple[str, ...] = ()
    if predictions is None:
        drafted, models = _read_candidates(candidates, references)
    else:
        drafted = {key: _prediction(study, key, candidates) for key, study in predictions.items()}
    paired = _pair_up(drafted, recorded, (candidates, references), missing=missing, cluster=cluster)
    return replace(paired, models=models)


def _pair_up(
    drafted: Mapping[str, Report],
    recorded: Mapping[str, _Reference],
    files: tuple[Path, Path],
    *,
    missing: Missing,
    cluster: str | None,
) -> Pairs:
    """Pair candidates with the references of the same id. See `read_candidates_and_references`."""
    candidates, references = files
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
    reasons = _missing_reasons(candidates, unmatched) if unmatched else {}
    if unmatched and missing == "refuse":
        raise InputError(
            f"{_counted(unmatched, 'reference')} without a candidate in {candidates} (first: {reasons[unmatched[0]]}); "
            "give --missing skip to score the others alone, or --missing empty to count each as an empty report",
            code=ErrorCode.MISMATCH,
            file=references,
        )

    pairs = [
        Pair(key, report, references_by_id[key], context=recorded[key].context)
        for key, report in drafted.items()
        if key in references_by_id
    ]
    paired = Pairs(
        tuple(pairs),
        read=len(recorded),
        skipped=len(recorded) - len(pairs) - len(unmatched),
        without_reference=without_reference,
        files=tuple(dict.fromkeys(files)),
    )
    if missing == "skip":
        paired = replace(paired, without_candidate=reasons)
        return _with_clusters(paired, [recorded[pair.sample_id].labels for pair in pairs], cluster, references)
    pairs += [
        Pair(
            key,
            "" if isinstance(references_by_id[key], str) else [],
            references_by_id[key],
            context=recorded[key].context,
        )
        for key in unmatched
    ]
    paired = replace(paired, pairs=tuple(pairs))
    return _with_clusters(paired, [recorded[pair.sample_id].labels for pair in pairs], cluster, references)


def read_drafts(path: Path | str) -> dict[str, Report]:
    """Read the reports of a drafts file (JSON Lines) by `sample_id`."""
    return _read_keyed(path, _draft)


def read_reports(path: Path | str) -> dict[str, Report]:
    """Read the reports of one file by id: drafts, a manifest, a table, pairs, a COCO file, or sentences.

    `.jsonl`: drafts or a manifest; rows without a report are skipped. `.json`: pairs of grounded reports, a COCO file
    or a ReXrank file. `.csv`: pairs of narratives, or a table with the columns `id` and `report`. `.txt`: one sentence
    per line, each a report. Of pairs, both reports are read.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix == ".txt":
        lines = enumerate(read_text(path).splitlines(), start=1)
        return {str(number): line.strip() for number, line in lines if line.strip()}
    if suffix == ".jsonl":
        return {key: value.report for key, value in _read_references(path, "none").items() if value.report}
    if suffix == ".csv" and "report" in (columns := read_csv(path)[0]):
        if "id" not in columns:
            raise InputError(
                f"expected the columns id and report; found {', '.join(columns)}",
                code=ErrorCode.MISSING_FIELD,
                file=path,
                line=1,
                field="id",
            )
        seen: dict[str, int] = {}
        table: dict[str, Report] = {}
        for line, cells in read_csv(path)[1]:
            check_unique_id(seen, cells["id"], line, file=path, field="id")
            table[cells["id"]] = cells["report"].strip()
        return table
    if (studies := read_rexrank(path, None)) is not None:
        return {
            f"{key}/{side}": text
            for key, study in studies.items()
            for side, text in (("candidate", study.prediction), ("reference", study.reference))
            if text is not None
        }
    if suffix == ".json" and isinstance(read_json(path), dict):
        return dict(read_coco(path))
    pairs = read_pairs(path, cluster="none")
    return {f"{pair.sample_id}/{side}": getattr(pair, side) for pair in pairs for side in ("candidate", "reference")}


def _missing_reasons(candidates: Path, sample_ids: Sequence[str]) -> dict[str, str]:
    """Return why samples have no candidate, by `failures.jsonl` of the command that wrote the candidates."""
    path = candidates.with_name(_FAILURES)
    rows = [row for _, row in read_jsonl(path)] if path.is_file() else []
    failures = {row.get("sample_id"): row.get("reason") for row in rows if row.get("source") == candidates.name}
    return {key: f"{_NO_CANDIDATE}: {failures[key]}" if failures.get(key) else _NO_CANDIDATE for key in sample_ids}


def _refuse_section(section: Section | None, path: Path) -> None:
    if section is not None:
        raise InputError(
            f"expected a ReXrank file, found {path}; omit --section",
            code=ErrorCode.CONFLICTING_OPTIONS,
            field="section",
        )


def _prediction(study: RexrankStudy, key: str, path: Path) -> str:
    if study.prediction is None:
        raise InputError(
            "expected the report of the model; give a ReXrank file without predictions as --references, and the drafts "
            "as --candidates",
            code=ErrorCode.MISSING_FIELD,
            file=path,
            field=f"{key}.model_prediction",
        )
    return study.prediction


def _rexrank_references(studies: Mapping[str, RexrankStudy], cluster: str | None, path: Path) -> dict[str, _Reference]:
    """Return the references of a ReXrank file; `subject_id` is the patient."""
    references = {}
    for key, study in studies.items():
        row = (
            {"patient_id": study.fields["subject_id"], **study.fields} if "subject_id" in study.fields else study.fields
        )
        labels = read_labels(row, cluster, file=path, field=key)
        references[key] = _Reference(study.reference, study.fields.get("split"), labels, study.context)
    return references


def _is_coco(path: Path | str) -> bool:
    return Path(path).suffix.lower() == ".json"


def _read_references(path: Path | str, cluster: str | None) -> dict[str, _Reference]:
    if _is_coco(path):
        return {key: _Reference(report, None, {}) for key, report in read_coco(path).items()}
    return _read_keyed(path, lambda row, file, line: _reference(row, file, line, cluster))


def _with_clusters(pairs: Pairs, labels: Sequence[Labels], cluster: str | None, file: Path | str | None) -> Pairs:
    """Return pairs with their clusters."""
    by, clusters = choose_labels(labels, cluster, file=file)
    if by is None:
        return pairs
    labeled = [replace(pair, cluster=label) for pair, label in zip(pairs, clusters, strict=True)]
    return replace(pairs, pairs=tuple(labeled), cluster_by=by)


def _read_candidates(path: Path | str, references: Path | str) -> tuple[Mapping[str, Report], tuple[str, ...]]:
    """Return the candidates by id, and the models that drafts name."""
    if _is_coco(path):
        return read_coco(path, dataset=references if _is_coco(references) else None), ()
    models: dict[str, None] = {}

    def read(row: dict[str, Any], file: Path | str, line: int) -> Report:
        if isinstance(row.get("model"), str):
            models.setdefault(row["model"])
        return _draft(row, file, line)

    return _read_keyed(path, read), tuple(models)


def _counted(ids: Sequence[str], noun: str) -> str:
    return f"{len(ids)} {noun}{'' if len(ids) == 1 else 's'} ({list_some(ids)})"


def _read_grounded_json(path: Path, cluster: str | None) -> Pairs:
    rows = read_json(path)
    if not isinstance(rows, list):
        raise InputError(
            f"expected a list of {{example_id, prediction, target}}, found {_kind(rows)}; "
            "COCO files are given as --candidates and --references",
            code=ErrorCode.INVALID_FORMAT,
            file=path,
            field="(top)",
        )
    for index, row in enumerate(rows):
        _check_grounded(row, file=path, field=f"[{index}]")
    return parse_pairs(rows, cluster=cluster, file=path)


def parse_pairs(rows: Sequence[Any], *, cluster: str | None = None, file: Path | None = None) -> Pairs:
    """Parse pairs in the published layout, `{example_id, prediction, target}` with grounded reports or narratives."""
    seen: dict[str, str] = {}
    pairs, labels = [], []
    for index, value in enumerate(rows):
        field = f"[{index}]"
        row = validate_model(_Example, value, file=file, field=field)
        check_unique_id(seen, row.example_id, field, file=file, field="example_id")
        prediction = parse_report(row.prediction, file=file, field=f"{field}.prediction")
        target = parse_report(row.target, file=file, field=f"{field}.target")
        pairs.append(Pair(row.example_id, prediction, target, context=PatientContext.of(value)))
        labels.append(read_labels(value, cluster, file=file, field=field))
    return _with_clusters(Pairs(tuple(pairs), read=len(rows)), labels, cluster, file)


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


def _read_narrative_csv(path: Path, cluster: str | None) -> Pairs:
    seen: dict[str, int] = {}
    pairs, labels = [], []
    columns, rows = read_csv(path)
    missing = [name for name in _CSV_COLUMNS if name not in columns]
    if missing:
        raise InputError(
            f"expected the columns {', '.join(_CSV_COLUMNS)}; found {list_columns(columns)}",
            code=ErrorCode.MISSING_FIELD,
            file=path,
            line=1,
            field=missing[0],
        )
    for line, cells in rows:
        row = validate_model(_NarrativeRow, cells, file=path, line=line)
        check_unique_id(seen, row.example_id, line, file=path, field="example_id")
        context = PatientContext.of(cells)
        pairs.append(Pair(row.example_id, row.prediction.strip(), row.target.strip(), context=context))
        labels.append(read_labels(cells, cluster, file=path, line=line))
    return _with_clusters(Pairs(tuple(pairs), read=len(pairs)), labels, cluster, path)


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
    return parse_report(row["report"], file=path, line=line, field="report")


def _reference(row: dict[str, Any], path: Path | str, line: int, cluster: str | None) -> _Reference:
    if not any(field in row for field in _REFERENCE_FIELDS):
        raise InputError(
            f"expected one of {', '.join(_REFERENCE_FIELDS)}, found none",
            code=ErrorCode.MISSING_FIELD,
            file=path,
            line=line,
        )
    field = next((field for field in _REFERENCE_FIELDS if row.get(field) is not None), None)
    if field == "findings" and isinstance(row[field], str) and not row[field].strip():
        raise InputError(EMPTY_TEXT, file=path, line=line, field=field)
    split = row.get("split")
    if not isinstance(split, str | None):
        raise InputError(f"expected a string or null, found {_kind(split)}", file=path, line=line, field="split")
    report = None if field is None else parse_report(row[field], file=path, line=line, field=field)
    labels = read_labels(row, cluster, file=path, line=line)
    return _Reference(report, split, labels, PatientContext.of(row))


def parse_report(value: Any, *, file: Path | str | None = None, line: int | None = None, field: str) -> Report:
    """Parse a report: a list of sentences or of `{text, boxes, ...}` objects, or one narrative."""
    if isinstance(value, list | tuple):
        sentences = parse_sentences(value, file=file, line=line, field=field)
        _check_masks(sentences, file=file, line=line, field=field)
        return sentences
    if not isinstance(value, str):
        raise InputError(
            f"expected a list of {{text, boxes}} or one narrative, found {describe(value)}",
            file=file,
            line=line,
            field=field,
        )
    try:
        # Half a surrogate pair, which JSON can carry, is a str that is no text.
        return _text.validate_python(value).strip()
    except ValidationError as error:
        raise as_input_error(error, file=file, line=line, field=field) from None


def _check_masks(
    sentences: Sequence[Sentence], *, file: Path | str | None, line: int | None = None, field: str
) -> None:
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
