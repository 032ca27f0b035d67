"""Candidate and reference reports from every file format that RadFact accepts, and from Python values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from radfact.errors import EMPTY_TEXT, ErrorCode, InputError, brief, check_unique_id, describe, list_columns, list_some
from radfact.io.jsonl import read_json, read_jsonl
from radfact.io.options import Missing, Section
from radfact.io.rexrank import is_rexrank, read_rexrank, read_study
from radfact.records import (
    NO_CLUSTERS,
    Id,
    Pair,
    Pairs,
    PatientContext,
    Report,
    Row,
    Sentence,
    parse_sentences,
    validate_model,
)

PairLike = Pair | Mapping[str, Any]
"""A pair, or an object `{example_id, prediction, target}` as in the published files."""
ReportLike = Report | Sequence[Sentence | Mapping[str, Any]]
"""A narrative, or a list of sentences or of objects `{text, boxes, masks}`."""

_CLUSTER_COLUMNS = ("patient_id", "study_id")
"""Columns that give the clusters if none is named; the first one with a value is used."""
_PATIENT = (*_CLUSTER_COLUMNS, "age", "indication", "comparison")
_FAILURES = "failures.jsonl"
_NO_CANDIDATE = "no candidate report"
_PUBLISHED = ("example_id", "prediction", "target")
_REFERENCES = ("grounded_findings", "findings", "report")
"""Fields of a manifest that may hold the reference; the first one with a value does."""
_EXPECTED_REPORT = "expected a list of {text, boxes} or one narrative, found"

Place = dict[str, Any]
"""Where a row is, as arguments of an error: file and line or field."""


class _Example(Row):
    """A row of the published layout, whose reports are checked apart."""

    example_id: Id
    prediction: Any
    target: Any


class _Keyed(Row):
    """What a draft and a record of a manifest have in common."""

    sample_id: Id


@dataclass(frozen=True, slots=True)
class _Record:
    """What a file holds of a study, with its row, which may have the patient; a report that it lacks is None."""

    candidate: Report | None = None
    reference: Report | None = None
    row: Mapping[str, Any] = field(default_factory=dict)
    place: Place = field(default_factory=dict)


_Records = Mapping[str, _Record]
_ReadRow = Callable[[dict[str, Any], Place], _Record]


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
    suffix = path.suffix.lower()
    value: Any = read_json(path) if suffix == ".json" else None
    if is_rexrank(value):
        records = _read_studies(value, path, section)
    else:
        _refuse_section(section, path)
        if suffix == ".json":
            rows = _grounded_rows(value, path)
        elif suffix == ".csv":
            rows = _narrative_rows(path)
        else:
            message = (
                "expected .json (grounded pairs, or a ReXrank file) or .csv (example_id,prediction,target); "
                "drafts and a manifest are given as --candidates and --references"
            )
            raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=path)
        records = _read_published(rows)
    return _pair_up(_candidates(records, path), records, (path, path), cluster=cluster)


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
        message = f"expected one of {', '.join(get_args(Missing))}, found {missing!r}"
        raise InputError(message, code=ErrorCode.INVALID_OPTION, field="missing")
    candidates, references = Path(candidates), Path(references)
    if section is not None and read_rexrank(references) is None and read_rexrank(candidates) is None:
        _refuse_section(section, references)
    recorded = _read_records(references, section, lambda row, place: _manifest_record(row, place, cluster))
    drafted = _read_records(candidates, section, _draft, references if _is_json(references) else None)
    paired = _pair_up(
        _candidates(drafted, candidates), recorded, (candidates, references), missing=missing, cluster=cluster
    )
    models = (draft.row.get("model") for draft in drafted.values())
    return replace(paired, models=tuple(dict.fromkeys(model for model in models if isinstance(model, str))))


def read_drafts(path: Path | str) -> dict[str, Report]:
    """Read the reports of a drafts file (JSON Lines) by `sample_id`."""
    path = Path(path)
    return _candidates(_read_keyed(path, _draft), path)


def read_references(path: Path | str) -> dict[str, Report]:
    """Read the reports of a manifest, or of drafts, by `sample_id`; rows without a report are skipped."""
    records = _read_keyed(Path(path), lambda row, place: _manifest_record(row, place, None))
    return {key: record.reference for key, record in records.items() if record.reference}


def read_clusters(
    rows: Sequence[tuple[Mapping[str, Any], Place]], cluster: str | None, *, file: Path | str | None
) -> tuple[str | None, list[str | None]]:
    """Return the column that gives the clusters, and the label of each row; None for the column if there is none."""
    names = _cluster_columns(cluster)
    labels = [_labels(row, place, names) for row, place in rows]
    if cluster in names and not any(cluster in row for row, _ in rows):
        message = f"expected a column or field of {file}, or {NO_CLUSTERS}, found '{cluster}'"
        raise InputError(message, code=ErrorCode.MISSING_FIELD, field="cluster")
    by = next((name for name in names if any(row[name] is not None for row in labels)), None)
    return by, [None if by is None else row[by] for row in labels]


def _cluster_columns(cluster: str | None) -> Sequence[str]:
    return _CLUSTER_COLUMNS if cluster is None else () if cluster == NO_CLUSTERS else (cluster,)


def _labels(row: Mapping[str, Any], place: Place, names: Sequence[str]) -> dict[str, str | None]:
    """Return the labels of a row in the columns that may give the clusters."""
    labels: dict[str, str | None] = {}
    for name in names:
        value = row.get(name)
        if isinstance(value, bool) or not isinstance(value, str | int | None):
            raise InputError(f"expected text, a whole number or null, found {brief(value)}", **_inside(place, name))
        labels[name] = None if value is None else str(value).strip() or None
    return labels


def as_pairs(
    candidates: Iterable[PairLike] | Iterable[ReportLike], references: Iterable[ReportLike] | None = None
) -> Pairs:
    """Return valid pairs from Python values: pairs, objects in the published layout, or two lists of reports."""
    items = _list(candidates)
    if references is not None:
        targets = _list(references)
        if len(items) != len(targets):
            found = f"found {len(items)} candidates and {len(targets)} references"
            raise InputError(f"expected as many references as candidates, {found}", code=ErrorCode.MISMATCH)
        items = [Pair(str(i), *reports) for i, reports in enumerate(zip(items, targets, strict=True))]
    elif items and all(isinstance(item, Mapping) for item in items):
        records = _read_published(({"file": None, "field": f"[{index}]"}, item) for index, item in enumerate(items))
        return _pair_up(_candidates(records, None), records, None)
    seen: set[str] = set()
    pairs = []
    for item in items:
        if not isinstance(item, Pair):
            raise InputError(
                "expected pairs or objects {example_id, prediction, target}; only RadFact.score takes a list of "
                f"candidates and the list of their references; found {describe(item)}"
            )
        if item.sample_id in seen:
            raise InputError(f"duplicate id '{item.sample_id}'", code=ErrorCode.DUPLICATE, field="sample_id")
        seen.add(item.sample_id)
        candidate, reference = _checked_report(item, "candidate"), _checked_report(item, "reference")
        pairs.append(replace(item, candidate=candidate, reference=reference))
    if isinstance(candidates, Pairs):
        return replace(candidates, pairs=tuple(pairs))
    return Pairs(tuple(pairs), read=len(pairs), numbered=references is not None)


def _checked_report(pair: Pair, side: str) -> Report:
    """Return a report of a pair; sentences that are valid already are not checked again."""
    value: Any = getattr(pair, side)
    is_valid = isinstance(value, list) and all(isinstance(item, Sentence) for item in value)
    return value if isinstance(value, str) or is_valid else _report({side: value}, side, {"field": pair.sample_id})


def _list(values: Any) -> list[Any]:
    if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
        raise InputError(f"expected a list of reports or of pairs, found {describe(values)}")
    return list(values)


def _pair_up(
    drafted: Mapping[str, Report],
    recorded: _Records,
    files: tuple[Path, Path] | None,
    *,
    missing: Missing = "refuse",
    cluster: str | None = None,
) -> Pairs:
    """Pair candidates with the references of the same id. See `read_candidates_and_references`."""
    candidates, references = files or (None, None)
    unknown = [key for key in drafted if key not in recorded]
    if unknown:
        message = (
            f"{_counted(unknown, 'candidate')} not in {references}; drafts of other studies can be shown on the page "
            "from another file, --unscored FILE"
        )
        raise InputError(message, code=ErrorCode.MISMATCH, file=candidates)
    with_reference = {key: record.reference for key, record in recorded.items() if record.reference is not None}
    split_of = {key: str(record.row.get("split")) for key, record in recorded.items()}
    splits = {split_of[key] for key in drafted}
    unmatched = [key for key in with_reference if key not in drafted and split_of[key] in splits]
    reasons = _missing_reasons(candidates, unmatched) if candidates and unmatched else {}
    if unmatched and missing == "refuse":
        message = (
            f"{_counted(unmatched, 'reference')} without a candidate in {candidates} (first: {reasons[unmatched[0]]}); "
            "give --missing skip to score the others alone, or --missing empty to count each as an empty report"
        )
        raise InputError(message, code=ErrorCode.MISMATCH, file=references)
    reports = {key: report for key, report in drafted.items() if key in with_reference}
    skipped = len(recorded) - len(reports) - len(unmatched)
    if missing == "empty":
        reports |= {key: "" if isinstance(with_reference[key], str) else [] for key in unmatched}
    rows = [(recorded[key].row, recorded[key].place) for key in reports]
    by, clusters = read_clusters(rows, cluster, file=references)
    pairs = (
        Pair(key, report, with_reference[key], label, PatientContext.of(recorded[key].row))
        for (key, report), label in zip(reports.items(), clusters, strict=True)
    )
    return Pairs(
        tuple(pairs),
        read=len(recorded),
        skipped=skipped,
        without_candidate=reasons if missing == "skip" else {},
        without_reference=tuple(key for key in drafted if key not in with_reference),
        files=tuple(dict.fromkeys(files or ())),
        cluster_by=by,
    )


def _counted(ids: Sequence[str], noun: str) -> str:
    return f"{len(ids)} {noun}{'' if len(ids) == 1 else 's'} ({list_some(ids)})"


def _missing_reasons(candidates: Path, sample_ids: Sequence[str]) -> dict[str, str]:
    """Return why samples have no candidate, by `failures.jsonl` of the command that wrote the candidates."""
    path = candidates.with_name(_FAILURES)
    rows = [row for _, row in read_jsonl(path)] if path.is_file() else []
    failures = {row.get("sample_id"): row.get("reason") for row in rows if row.get("source") == candidates.name}
    return {key: f"{_NO_CANDIDATE}: {failures[key]}" if failures.get(key) else _NO_CANDIDATE for key in sample_ids}


def _candidates(records: _Records, path: Path | None) -> dict[str, Report]:
    """Return the candidates of records, all of which must have one."""
    for key, record in records.items():
        if record.candidate is None:
            message = (
                "expected the report of the model; give a ReXrank file without predictions as --references, and the "
                "drafts as --candidates"
            )
            raise InputError(message, code=ErrorCode.MISSING_FIELD, file=path, field=f"{key}.model_prediction")
    return {key: record.candidate for key, record in records.items() if record.candidate is not None}


def _refuse_section(section: Section | None, path: Path) -> None:
    if section is not None:
        message = f"expected a ReXrank file, found {path}; omit --section"
        raise InputError(message, code=ErrorCode.CONFLICTING_OPTIONS, field="section")


def _is_json(path: Path) -> bool:
    return path.suffix.lower() == ".json"


def _read_studies(studies: Mapping[str, Any], path: Path, section: Section | None) -> dict[str, _Record]:
    """Return the records of a ReXrank file."""
    return {
        key: _Record(*read_study(key, fields, section, file=path), {"file": path, "field": key})
        for key, fields in studies.items()
    }


def _read_records(
    path: Path, section: Section | None, read: _ReadRow, dataset: Path | None = None
) -> dict[str, _Record]:
    """Return the records of a ReXrank or COCO file (.json), or of JSON Lines; the reports of COCO are both."""
    if (studies := read_rexrank(path)) is not None:
        return _read_studies(studies, path, section)
    if _is_json(path):
        from radfact.io.coco import read_coco

        return {key: _Record(report, report) for key, report in read_coco(path, dataset).items()}
    return _read_keyed(path, read)


def _grounded_rows(rows: Any, path: Path) -> Iterable[tuple[Place, Any]]:
    if not isinstance(rows, list):
        expected = "expected a list of {example_id, prediction, target}"
        message = f"{expected}, found {describe(rows)}; COCO files are given as --candidates and --references"
        raise InputError(message, code=ErrorCode.INVALID_FORMAT, file=path, field="(top)")
    for index, row in enumerate(rows):
        place = {"file": path, "field": f"[{index}]"}
        for name in ("prediction", "target"):
            if isinstance(row, dict) and isinstance(row.get(name), str):
                raise InputError(
                    "expected a list of {text, boxes}, found a narrative; narratives go into a table (.csv) "
                    f"with the columns {', '.join(_PUBLISHED)}",
                    **_inside(place, name),
                )
        yield place, row


def _narrative_rows(path: Path) -> Iterable[tuple[Place, Any]]:
    from radfact.io.csv_tables import read_csv

    columns, rows = read_csv(path)
    if missing := [name for name in _PUBLISHED if name not in columns]:
        message = f"expected the columns {', '.join(_PUBLISHED)}; found {list_columns(columns)}"
        raise InputError(message, code=ErrorCode.MISSING_FIELD, file=path, line=1, field=missing[0])
    return (({"file": path, "line": line}, cells) for line, cells in rows)


def _read_published(rows: Iterable[tuple[Place, Any]]) -> dict[str, _Record]:
    """Return the records of rows `{example_id, prediction, target}` with grounded reports or narratives."""

    def read(row: Mapping[str, Any], place: Place) -> _Record:
        return _Record(_report(row, "prediction", place), _report(row, "target", place), row, place)

    return _by_id(rows, _Example, "example_id", read)


def _read_keyed(path: Path, read: _ReadRow) -> dict[str, _Record]:
    """Read JSON Lines by `sample_id`."""
    rows = (({"file": path, "line": line}, row) for line, row in read_jsonl(path))
    return _by_id(rows, _Keyed, "sample_id", read)


def _by_id(
    rows: Iterable[tuple[Place, Any]], model: type[Row], name: str, read: Callable[[Any, Place], _Record]
) -> dict[str, _Record]:
    seen: dict[str, int | str] = {}
    records = {}
    for place, row in rows:
        key = getattr(validate_model(model, row, **place), name)
        check_unique_id(seen, key, place.get("line") or place["field"], file=place.get("file"), field=name)
        records[key] = read(row, place)
    return records


def _draft(row: dict[str, Any], place: Place) -> _Record:
    if row.get("report") is None:
        raise InputError(f"{_EXPECTED_REPORT} none", code=ErrorCode.MISSING_FIELD, **_inside(place, "report"))
    return _Record(_report(row, "report", place), row={"model": row.get("model")})


def _manifest_record(row: dict[str, Any], place: Place, cluster: str | None) -> _Record:
    if not any(name in row for name in _REFERENCES):
        raise InputError(f"expected one of {', '.join(_REFERENCES)}, found none", code=ErrorCode.MISSING_FIELD, **place)
    name = next((name for name in _REFERENCES if row.get(name) is not None), None)
    if name == "findings" and isinstance(row[name], str) and not row[name].strip():
        raise InputError(EMPTY_TEXT, **_inside(place, name))
    split = row.get("split")
    if not isinstance(split, str | None):
        raise InputError(f"expected a string or null, found {describe(split)}", **_inside(place, "split"))
    _labels(row, place, _cluster_columns(cluster))  # also of a row without a draft, so that a file is valid or not
    # A manifest may have many rows, with much that is not needed.
    kept = {column: row[column] for column in (*_PATIENT, "split", cluster) if column in row}
    return _Record(None, None if name is None else _report(row, name, place), kept, place)


def _report(row: Mapping[str, Any], name: str, place: Place) -> Report:
    """Return a report in a field of a row: sentences, objects `{text, boxes, ...}`, or one narrative."""
    value, place = row[name], _inside(place, name)
    if isinstance(value, list | tuple):
        sentences = parse_sentences(value, **place)
        for index, sentence in enumerate(sentences):
            for number, mask in enumerate(sentence.masks or ()):
                from radfact.io.coco import decode_mask

                decode_mask(mask, **{**place, "field": f"{place['field']}[{index}].masks[{number}]"})
        return sentences
    if not isinstance(value, str):
        raise InputError(f"{_EXPECTED_REPORT} {describe(value)}", **place)
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise InputError("expected a text of Unicode characters, found half of a surrogate pair", **place)
    return value.strip()


def _inside(place: Place, name: str) -> Place:
    """Return the place of a field of a row."""
    return {**place, "field": f"{place['field']}.{name}" if "field" in place else name}
