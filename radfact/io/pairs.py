"""Candidate and reference reports from every file format that RadFact accepts, and from Python values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any, get_args

from radfact.errors import EMPTY_TEXT, ErrorCode, InputError, brief, check_unique_id, describe, list_some
from radfact.io.columns import (
    NAMES,
    PATIENT,
    Columns,
    Layout,
    Missing,
    Place,
    Section,
    check_columns,
    find_columns,
    inside,
    with_own_names,
)
from radfact.io.jsonl import any_number, key_lines, read_json, read_jsonl, read_text
from radfact.io.rexrank import is_rexrank, read_rexrank, read_study
from radfact.records import NO_CLUSTERS, Pair, Pairs, PatientContext, Report, Sentence, is_missing, parse_sentences

PairLike = Pair | Mapping[str, Any]
"""A pair, or an object `{example_id, prediction, target}` as in the published files."""
ReportLike = Report | Sequence[Sentence | Mapping[str, Any]]
"""A narrative, or a list of sentences or of objects `{text, boxes, masks}`."""

CLUSTER_COLUMNS = ("patient_id", "study_id")
"""Columns that give the clusters if none is named; the first one with a value is used."""
_NO_CANDIDATE = "no candidate report"
_NO_REPORT = "expected a report, found a missing value; an empty report is an empty text"
_DRAFTS = {"id": NAMES["id"], "candidate": ("report", *NAMES["candidate"])}
_MANIFEST = {"id": NAMES["id"]}
_REFERENCES = ("grounded_findings", "findings", "report", *NAMES["reference"])
"""Fields of a manifest that may hold a reference, in this order."""

_Rows = Iterable[tuple[Place, Any]]


@dataclass(frozen=True, slots=True)
class _Record:
    """What a file holds of a study, with the needed fields of its row and the names of reports that it lacks."""

    candidate: Report | None = None
    reference: Report | None = None
    row: Mapping[str, Any] = field(default_factory=dict)
    place: Place = field(default_factory=dict)
    missing: Sequence[str] = ()

    @property
    def where(self) -> str:
        """The line of the row, or its path in a document."""
        return f"line {self.place['line']}" if "line" in self.place else str(self.place.get("field"))


_Records = Mapping[str, _Record]


def read_pairs(
    path: Path | str,
    *,
    missing: Missing = "refuse",
    cluster: str | None = None,
    section: Section | None = None,
    columns: Columns | None = None,
    needs_reference: bool = True,
) -> Pairs:
    """Read candidates and references from one file.

    A list of objects (`.json`), one object per line (`.jsonl`) or a table (`.csv`) with `id`, `candidate` and
    `reference`, or `example_id`, `prediction` and `target`; or an object of ReXrank (`.json`) with a study by id
    (`radfact.io.rexrank`). A report is a list of `{text, boxes}` or one narrative; an empty cell is an empty report.
    Null, NaN and texts such as `nan`, `None` or `N/A` are a missing report. Rows may have further fields, which can
    name the clusters of samples, or hold the age, indication and comparison of the patient (`PatientContext`).

    Args:
        path: the file.
        missing: as in `read_candidates_and_references`. A pair without a reference is skipped and counted.
        cluster: column or field that is the same for samples that belong together, which are then resampled together;
            "none" for no clusters. By default `patient_id`, or else `study_id`, if rows have it.
        section: of a ReXrank file: `findings` (default), or `report` for findings and impression.
        columns: names in the file by field: `id`, `candidate`, `reference` and those of the patient.
        needs_reference: whether a file without references is an error. Without it, a candidate may also be a `report`.

    Raises:
        InputError: the file cannot be read or is invalid; the error has the line or the path of the field.
    """
    path, columns = Path(path), check_columns(columns or {})
    _check_section(section, columns, path)
    read = partial(_read, path, columns=columns, cluster=cluster, section=section)
    records, has_references = _read_with_references(read, needs_reference or path.suffix.lower() == ".json")
    pairs = _pair_up(records, records, (path, path), missing=missing, cluster=cluster)
    return replace(pairs, has_references=has_references)


def _read_with_references(read: Callable[..., _Records], needs_reference: bool) -> tuple[_Records, bool]:
    """Return records, with empty references if none has any and these are not needed, and whether there are some."""
    try:
        return read(layout=NAMES), True
    except InputError as error:
        if needs_reference or error.code is not ErrorCode.MISSING_FIELD:
            raise
    return {key: replace(record, reference="") for key, record in read(layout=_DRAFTS).items()}, False


def read_candidates_and_references(
    candidates: Path | str,
    references: Path | str,
    *,
    missing: Missing = "refuse",
    cluster: str | None = None,
    section: Section | None = None,
    columns: Columns | None = None,
) -> Pairs:
    """Read drafts and the records that hold their references: JSON Lines, tables, or COCO or ReXrank files (.json).

    A draft has a `sample_id` and a `report`: a list of sentences or one narrative. The reference of a record is
    `grounded_findings`, or else `findings`, or else `report`; names of `read_pairs` are accepted as well. Records where
    all of these are missing, and records of splits without any draft, are skipped and counted; drafts of the former are
    named in the result. Every draft must have a record, which may also hold the age, indication and comparison of the
    patient (`PatientContext`). For COCO files see `radfact.io.coco.read_coco`; a list of results as candidates takes
    sizes and categories from the references.

    Args:
        candidates: drafts, or a COCO dataset or list of results.
        references: a manifest, or a COCO dataset.
        missing: for a reference without a candidate, `refuse` raises, `skip` makes no pair and `empty` pairs it with an
            empty report; the last two name it in the result. The reason comes from `failures.jsonl` next to the drafts,
            if it lists the sample.
        cluster: as in `read_pairs`, a field of the references.
        section: as in `read_pairs`.
        columns: as in `read_pairs`. Both files have the same name for the id.

    Raises:
        InputError: naming file, line and field, or the first ids that have no counterpart.
    """
    candidates, references, columns = Path(candidates), Path(references), check_columns(columns or {})
    _check_section(section, columns, references, candidates)
    recorded = _read(references, _MANIFEST, columns, cluster=cluster, section=section)
    drafted = _read(candidates, _DRAFTS, columns, section=section, dataset=references)
    paired = _pair_up(drafted, recorded, (candidates, references), missing=missing, cluster=cluster)
    models = (draft.row.get("model") for draft in drafted.values())
    return replace(paired, models=tuple(dict.fromkeys(model for model in models if isinstance(model, str))))


def read_drafts(path: Path | str) -> dict[str, Report]:
    """Read the reports of a drafts file (JSON Lines) by id, without those that are missing."""
    drafts = _records(_file_rows(Path(path), _DRAFTS, {}), _DRAFTS, {})
    return {key: draft.candidate for key, draft in drafts.items() if draft.candidate is not None}


def read_rows(path: Path, columns: Columns) -> dict[str, tuple[str, Mapping[str, Any], bool]]:
    """Read a table of pairs, or JSON Lines, by id, checked as before scoring: line, row, whether it has a reference."""
    layout = NAMES if path.suffix.lower() == ".csv" else _MANIFEST
    rows = list(_file_rows(path, layout, columns))
    read = zip(_records(rows, layout, columns, NO_CLUSTERS).items(), rows, strict=True)
    return {key: (record.where, row, record.reference is not None) for (key, record), (_, row) in read}


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
    return CLUSTER_COLUMNS if cluster is None else () if cluster == NO_CLUSTERS else (cluster,)


def _labels(row: Mapping[str, Any], place: Place, names: Sequence[str]) -> dict[str, str | None]:
    """Return the labels of a row in the columns that may give the clusters."""
    labels: dict[str, str | None] = {}
    for name in names:
        value = None if is_missing(row.get(name)) else row[name]
        if isinstance(value, float) and value.is_integer():  # pandas reads whole numbers beside missing ones as floats
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, str | Integral | None):
            raise InputError(f"expected text, a whole number or null, found {brief(value)}", **inside(place, name))
        labels[name] = None if value is None else str(value).strip() or None
    return labels


def as_pairs(
    candidates: Iterable[PairLike] | Iterable[ReportLike],
    references: Iterable[ReportLike] | None = None,
    *,
    needs_reference: bool = True,
) -> Pairs:
    """Return valid pairs from Python values: pairs, objects in the published layout, or two lists of reports."""
    items = _list(candidates, has_rows=references is None)
    if references is not None:
        targets = _list(references)
        if len(items) != len(targets):
            found = f"found {len(items)} candidates and {len(targets)} references"
            raise InputError(f"expected as many references as candidates, {found}", code=ErrorCode.MISMATCH)
        items = [Pair(str(i), *reports) for i, reports in enumerate(zip(items, targets, strict=True))]
    elif items and all(isinstance(item, Mapping) for item in items):
        records, has_references = _read_with_references(
            lambda layout: _records(_listed_rows(items), layout, {}), needs_reference
        )
        for record in records.values():
            if None in (record.candidate, record.reference):
                raise InputError(_NO_REPORT, **inside(record.place, record.missing[0]))
        return replace(_pair_up(records, records, None), has_references=has_references)
    seen: dict[str, str] = {}
    pairs = []
    for index, item in enumerate(items):
        if not isinstance(item, Pair):
            hint = "only RadFact.score takes a list of candidates and the list of their references"
            raise InputError(f"expected pairs or objects {{id, candidate, reference}}; {hint}; found {describe(item)}")
        if isinstance(item.sample_id, bool) or not isinstance(item.sample_id, str | Integral):
            raise InputError(f"expected an id, found {describe(item.sample_id)}", field="sample_id")
        item = replace(item, sample_id=str(item.sample_id))
        check_unique_id(seen, item.sample_id, f"[{index}]", file=None)
        candidate, reference = _checked_report(item, "candidate"), _checked_report(item, "reference")
        pairs.append(replace(item, candidate=candidate, reference=reference))
    numbered = references is not None
    read = candidates if isinstance(candidates, Pairs) else Pairs((), read=len(pairs), numbered=numbered)
    return replace(read, pairs=tuple(pairs))


def _checked_report(pair: Pair, side: str) -> Report:
    """Return a report of a pair; sentences that are valid already are not checked again."""
    value: Any = getattr(pair, side)
    if isinstance(value, list) and all(isinstance(item, Sentence) for item in value):
        return value
    report = _report({side: value}, side, {"field": pair.sample_id})
    if report is None:
        raise InputError(_NO_REPORT, field=f"{pair.sample_id}.{side}")
    return value if isinstance(value, str) else report


def _list(values: Any, *, has_rows: bool = False) -> list[Any]:
    if has_rows and hasattr(values, "columns"):  # a DataFrame
        return list(values.to_dicts() if hasattr(values, "to_dicts") else values.to_dict("records"))
    if hasattr(values, "columns") or isinstance(values, str | Mapping | Set) or not isinstance(values, Iterable):
        raise InputError(f"expected a list of reports (one column of a table) or of pairs, found {describe(values)}")
    return list(values)


def _pair_up(
    drafted: _Records,
    recorded: _Records,
    files: tuple[Path, Path] | None,
    *,
    missing: Missing = "refuse",
    cluster: str | None = None,
) -> Pairs:
    """Pair candidates with the references of the same id. See `read_candidates_and_references`."""
    if missing not in get_args(Missing):
        message = f"expected one of {', '.join(get_args(Missing))}, found {missing!r}"
        raise InputError(message, code=ErrorCode.INVALID_OPTION, field="missing")
    candidates, references = files or (None, None)
    if unknown := [key for key in drafted if key not in recorded]:
        hint = "drafts of other studies can be shown on the page from another file, --unscored FILE"
        message = f"{_counted(unknown, 'candidate')} not in {references}; {hint}"
        raise InputError(message, code=ErrorCode.MISMATCH, file=candidates)
    with_reference = {key: record.reference for key, record in recorded.items() if record.reference is not None}
    with_candidate = {key: draft.candidate for key, draft in drafted.items() if draft.candidate is not None}
    split_of = {key: str(record.row.get("split")) for key, record in recorded.items()}
    splits = {split_of[key] for key in drafted}
    unmatched = [key for key in with_reference if key not in with_candidate and split_of[key] in splits]
    reasons = _missing_reasons(candidates, drafted, unmatched)
    if unmatched and missing == "refuse":
        hint = "give --missing skip to score the others alone, or --missing empty to count each as an empty report"
        message = f"{_counted(unmatched, 'reference')} without a candidate (first: {reasons[unmatched[0]]}); {hint}"
        raise InputError(message, code=ErrorCode.MISMATCH, file=references)
    reports = {key: report for key, report in with_candidate.items() if key in with_reference}
    skipped = len(recorded) - len(reports) - len(unmatched)
    if missing == "empty":
        reports |= {key: "" if isinstance(with_reference[key], str) else [] for key in unmatched}
    rows = [(recorded[key].row, recorded[key].place) for key in reports]
    by, clusters = read_clusters(rows, cluster, file=references)
    pairs = (
        Pair(key, report, with_reference[key], label, PatientContext.of(recorded[key].row))
        for (key, report), label in zip(reports.items(), clusters, strict=True)
    )
    places: dict[str, list[str]] = {}
    for record in [*(drafted.values() if drafted is not recorded else ()), *recorded.values()]:
        for name in record.missing:
            file = record.place.get("file")
            places.setdefault(f"{file.name}: {name}" if file else name, []).append(record.where)
    return Pairs(
        tuple(pairs),
        read=len(recorded),
        skipped=skipped,
        without_candidate=reasons if missing == "skip" else {},
        without_reference=tuple(key for key in with_candidate if key not in with_reference),
        files=tuple(dict.fromkeys(files or ())),
        cluster_by=by,
        missing_values=places,
    )


def _counted(ids: Sequence[str], noun: str) -> str:
    return f"{len(ids)} {noun}{'' if len(ids) == 1 else 's'} ({list_some(ids)})"


def _missing_reasons(candidates: Path | None, drafted: _Records, sample_ids: Sequence[str]) -> dict[str, str]:
    """Return why samples have no candidate, by `failures.jsonl` of the command that wrote the candidates."""
    failures: dict[Any, Any] = {}
    if candidates and sample_ids and (path := candidates.with_name("failures.jsonl")).is_file():
        rows = (row for _, row in read_jsonl(path))
        failures = {row.get("sample_id"): row.get("reason") for row in rows if row.get("source") == candidates.name}
    reasons = {key: failures.get(key) or (drafted[key].where if key in drafted else "") for key in sample_ids}
    return {key: f"{_NO_CANDIDATE}: {why}" if why else _NO_CANDIDATE for key, why in reasons.items()}


def _check_section(section: Section | None, columns: Columns, *paths: Path) -> None:
    if section is not None and not any(read_rexrank(path, columns) for path in paths):
        message = f"expected a ReXrank file, found {paths[0]}; omit --section"
        raise InputError(message, code=ErrorCode.CONFLICTING_OPTIONS, field="section")


def _read(
    path: Path,
    layout: Layout,
    columns: Columns,
    *,
    cluster: str | None = None,
    section: Section | None = None,
    dataset: Path | None = None,
) -> dict[str, _Record]:
    """Read the records of a file in any format; the reports of COCO and ReXrank are candidates and references."""
    suffix, is_pairs = path.suffix.lower(), layout is NAMES
    value: Any = read_json(path, None if is_pairs else any_number) if suffix == ".json" else None
    if is_rexrank(value, columns):
        lines = key_lines(read_text(path))
        studies = {key: read_study(key, value[key], section, columns, path, lines) for key in value}
        # A file of references has no predictions.
        return {key: _Record(*(study[:4] if layout is _MANIFEST else study)) for key, study in studies.items()}
    if suffix == ".json" and not is_pairs:
        from radfact.io.coco import read_coco

        coco = read_coco(path, dataset if dataset is not None and dataset.suffix.lower() == ".json" else None)
        records = {key: _Record(report, report) for key, report in coco.reports.items()}
        for key, fault in coco.faults.items():
            if key == fault.field and layout is _DRAFTS:
                raise fault  # of no known image
            place: Place = {"file": path, "field": f"{fault.field}: {fault.message}"}
            records[key] = _Record(place=place, missing=["report"])
        return records
    if is_pairs and not (isinstance(value, list) or suffix in (".csv", ".jsonl")):
        expected = "pairs as a list (.json), lines (.jsonl) or a table (.csv), or a ReXrank file"
        hint = "COCO files, drafts and manifests are given as --candidates and --references"
        raise InputError(f"expected {expected}; {hint}", code=ErrorCode.INVALID_FORMAT, file=path)
    rows = _listed_rows(value, path) if suffix == ".json" else _file_rows(path, layout, columns)
    return _records(rows, layout, columns, cluster)


def _listed_rows(rows: Sequence[Any], path: Path | None = None) -> _Rows:
    return (({"file": path, "field": f"[{index}]"}, row) for index, row in enumerate(rows))


def _file_rows(path: Path, layout: Layout, columns: Columns) -> _Rows:
    """Return the rows of JSON Lines or of a table."""
    rows: Iterable[tuple[int, Any]]
    if path.suffix.lower() == ".csv":
        from radfact.io.csv_tables import read_csv

        names, rows = read_csv(path)
        own = {} if layout is not NAMES else {name: () for name in columns if name not in layout}
        find_columns(names, {**layout, **own}, columns, {"file": path, "line": 1})
    else:
        rows = read_jsonl(path)
    return (({"file": path, "line": line}, row) for line, row in rows)


def _records(rows: _Rows, layout: Layout, columns: Columns, cluster: str | None = None) -> dict[str, _Record]:
    seen: dict[str, int | str] = {}
    records = {}
    for place, row in rows:
        if not isinstance(row, Mapping):
            raise InputError(f"expected an object, found {describe(row)}", **place)
        names = find_columns(row, layout, columns, place)
        value, where = row[name := names.pop("id")], inside(place, name)
        key = str(value).strip()
        if isinstance(value, bool) or not isinstance(value, str | Integral) or is_missing(value) or not key:
            raise InputError(f"expected an id, found {describe(value)}", **where)
        check_unique_id(seen, key, place.get("line") or place["field"], file=place.get("file"), field=name)
        if layout is _MANIFEST:
            names["reference"] = _reference_name(row, columns, place)
        _labels(row, place, _cluster_columns(cluster))  # also of a row that makes no pair
        row = with_own_names(row, columns, place)
        reports = {side: _report(row, name, place) for side, name in names.items()}
        # Null is expected of the report of a manifest.
        needed = [name for name in names.values() if "candidate" in names or row[name] is not None]
        missing = [name for side, name in names.items() if reports[side] is None and name in needed]
        missing += ["indication"] if row.get("indication") and is_missing(row["indication"]) else []
        # There may be many rows, with much that is not needed.
        kept = {name: row[name] for name in (*PATIENT, "split", "model", cluster or "") if name in row}
        records[key] = _Record(**reports, row=kept, place=place, missing=missing)
    return records


def _reference_name(row: Mapping[str, Any], columns: Columns, place: Place) -> str:
    """Return the first field of a record that holds its reference."""
    known = (columns["reference"],) if "reference" in columns else _REFERENCES
    if not (present := [name for name in known if name in row]):
        raise InputError(f"expected one of {', '.join(known)}, found none", code=ErrorCode.MISSING_FIELD, **place)
    name = next((name for name in present if not is_missing(row[name])), present[0])
    if name == "findings" and isinstance(row[name], str) and not row[name].strip():
        raise InputError(EMPTY_TEXT, **inside(place, name))
    return name


def _report(row: Mapping[str, Any], name: str, place: Place) -> Report | None:
    """Return a report in a field of a row, sentences or one narrative; None if it is missing."""
    value, place = row[name], inside(place, name)
    if is_missing(value):
        return None
    if isinstance(value, list | tuple):
        sentences = parse_sentences(value, **place)
        for index, sentence in enumerate(sentences):
            for number, mask in enumerate(sentence.masks or ()):
                from radfact.io.coco import decode_mask

                decode_mask(mask, **{**place, "field": f"{place['field']}[{index}].masks[{number}]"})
        return None if len(sentences) == 1 and is_missing(sentences[0].text) else sentences
    if not isinstance(value, str):
        raise InputError(f"expected a list of {{text, boxes}} or one narrative, found {describe(value)}", **place)
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise InputError("expected a text of Unicode characters, found half of a surrogate pair", **place)
    return value.strip()
