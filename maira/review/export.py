"""Export of a review: a table of corrections, and corrected reports (MAIRA-2, appendix F.1)."""

from __future__ import annotations

import csv
import math
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, Literal

from maira.data.manifest import write_manifest
from maira.data.study import Study
from maira.review.adjudication import collect_adjudication_items
from maira.review.changes import ReviewedSentence
from maira.review.corrected import corrected_report
from maira.review.dataset_export import PreferenceRows, corrected_studies, find_preferences, rating_table
from maira.review.protocol import SEVERITIES
from maira.review.readings import Reading, collect_readings
from maira.review.store import Store
from radfact.io.jsonl import dumps, open_atomic, write_jsonl
from radfact.io.outputs import replace_files
from radfact.records import Sentence

CorrectionKind = Literal["edit", "deletion", "addition"]

COLUMNS = (
    "reader",
    "sample_id",
    "arm",
    "model",
    "training",
    "excluded",
    "sentence",
    "kind",
    "draft_text",
    "corrected_text",
    "error_type",
    "severity",
    "comment",
    "boxes_changed",
    "draft_boxes",
    "corrected_boxes",
    "finished",
    "study_comment",
)
"""Columns of the table of corrections; `BLINDED` are missing in that of a blinded reader."""

BLINDED = ("arm", "model", "training", "excluded")

DECISION_COLUMNS = (
    "sample_id",
    "arm",
    "model",
    "training",
    "item",
    "draft_text",
    "readings",
    "needs_correction",
    "severity",
    "comment",
    "decided_at",
)
"""Columns of the table of decisions on disagreements."""

READING_COLUMNS = (
    "reader",
    "sample_id",
    "arm",
    "model",
    "training",
    "excluded",
    "status",
    "opened_at",
    "finished_at",
    "active_seconds",
    "total_seconds",
    "time_reason",
    "sentences",
    "edits",
    "deletions",
    "additions",
    "boxes_changed",
    "no_implications",
    "minor_implications",
    "significant_implications",
    "not_rated",
    "worst_severity",
    "comment",
)
"""Columns of the table of readings."""

_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
_BREAKS = ("\t", "\r", "\n")
_GUARD = "'"


def kind_of(sentence: ReviewedSentence) -> CorrectionKind:
    """Return the kind of a correction; changed boxes are an edit."""
    return "addition" if sentence.is_added else "deletion" if sentence.deleted else "edit"


def corrections_csv(store: Store, readers: Sequence[str], *, is_blinded: bool = False) -> str:
    """Return the table of corrections in finished and unfinished studies, one row per correction.

    Cells that a spreadsheet would execute as a formula, and cells that start with an apostrophe, get an apostrophe in
    front, which `unguard` removes.
    """
    columns = [name for name in COLUMNS if not (is_blinded and name in BLINDED)]
    buffer = StringIO()
    # All cells quoted: a spreadsheet that splits at semicolons would find formulas within cells.
    writer = csv.DictWriter(buffer, columns, extrasaction="ignore", lineterminator="\r\n", quoting=csv.QUOTE_ALL)
    writer.writeheader()
    counted = store.counted_readers()
    for reader in map(store.registered_name, readers):
        for draft, review in zip(store.drafts, store.reviews(reader), strict=True):
            state = review.state
            for index, sentence in enumerate(state.sentences, 1):
                if sentence.is_correction:
                    shared = [str(state.done).lower(), state.comment]
                    study = [
                        reader,
                        draft.sample_id,
                        draft.arm,
                        draft.record.get("model") or "",
                        str(draft.is_training).lower(),
                        str(reader not in counted).lower(),
                    ]
                    cells = zip(COLUMNS, [*study, str(index), *_cells(sentence), *shared], strict=True)
                    writer.writerow({name: guard(cell) for name, cell in cells})
    return buffer.getvalue()


def decisions_csv(store: Store) -> str:
    """Return the table of the coordinator's decisions, one row per sentence, with cells as in `corrections_csv`."""
    buffer = StringIO()
    writer = csv.writer(buffer, lineterminator="\r\n", quoting=csv.QUOTE_ALL)
    writer.writerow(DECISION_COLUMNS)
    items = {
        number: {item.id: item for item in study_items}
        for number, study_items in collect_adjudication_items(store).items()
    }
    for number, (made, decision) in sorted(store.campaign.decisions.items() if store.campaign else ()):
        draft = store.drafts[number - 1]
        for key, severity in decision.severities.items():
            item = items.get(number, {}).get(key)
            readings = item.readings if item else {}
            cells = [
                draft.sample_id,
                draft.arm,
                str(draft.record.get("model") or ""),
                str(draft.is_training).lower(),
                key,
                (item.draft_text if item else None) or "",
                "; ".join(f"{reader}: {describe_reading(sentence)}" for reader, sentence in readings.items()),
                str(severity is not None).lower(),
                "" if severity is None else str(severity),
                decision.comment,
                made,
            ]
            writer.writerow([guard(cell) for cell in cells])
    return buffer.getvalue()


def describe_reading(sentence: ReviewedSentence) -> str:
    """Return what a reader did with a sentence, and its severity."""
    if not sentence.is_correction:
        return "no correction"
    edit = "edited" if sentence.is_edited else "boxes changed"
    verb = {"edit": edit, "deletion": "deleted", "addition": f"added “{sentence.text}”"}[kind_of(sentence)]
    names = [item.name.lower() for item in SEVERITIES if item.id == sentence.assessment.severity]
    return ", ".join([verb, *(names or ["not rated"])])


def readings_csv(readings: Sequence[Reading]) -> str:
    """Return the table of readings, one row per reader and opened study, with cells as in `corrections_csv`.

    Times that are not known are empty, and `time_reason` says why, or that the active time is a lower bound.
    """
    buffer = StringIO()
    writer = csv.writer(buffer, lineterminator="\r\n", quoting=csv.QUOTE_ALL)
    writer.writerow(READING_COLUMNS)
    for reading in readings:
        state, time, worst = reading.state, reading.time, reading.worst
        cells = (
            reading.reader,
            reading.draft.sample_id,
            reading.draft.arm,
            reading.draft.record.get("model") or "",
            str(reading.draft.is_training).lower(),
            str(reading.is_excluded).lower(),
            "finished" if state.done else "started",
            *("" if at is None else at.isoformat(timespec="seconds") for at in (time.opened, time.finished)),
            *("" if math.isnan(value) else f"{value:.1f}" for value in (time.active_seconds, time.total_seconds)),
            time.reason,
            sum(not sentence.is_added for sentence in state.sentences),
            reading.edits,
            reading.deletions,
            reading.additions,
            reading.boxes_changed,
            *(reading.severities[severity] for severity in (0, 1, 2, None)),
            "none" if worst == -1 else "" if worst is None else worst,
            state.comment,
        )
        writer.writerow([guard(str(cell)) for cell in cells])
    return buffer.getvalue()


def corrected_drafts(store: Store, reader: str, arm: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield the corrected reports of the studies that a reader finished, as records of a drafts file.

    Training cases are not part of it.
    """
    name = store.registered_name(reader)
    for draft, review in store.counted_reviews(name):
        if review.state.done and arm in (None, draft.arm):
            model = draft.record.get("model")
            report = corrected_report(draft, review.state)
            yield {
                "sample_id": draft.sample_id,
                "report": report if isinstance(report, str) else [_record(sentence) for sentence in report],
                "model": f"{model}, corrected" if model else "corrected",
                "reader": name,
                **({"arm": draft.arm} if draft.arm else {}),
            }


@dataclass(frozen=True, slots=True)
class ExportResult:
    """What was written.

    Attributes:
        corrections: number of rows in the table.
        drafts: by reader and arm the drafts file and its number of drafts.
        ratings: number of rated drafts; None without studies.
        preferences: None without studies.
    """

    corrections: int
    drafts: dict[tuple[str, str], tuple[Path, int]]
    ratings: int | None = None
    preferences: PreferenceRows | None = None


def write_export(
    store: Store, folder: Path, readers: Sequence[str], studies: Mapping[str, Study] | None = None
) -> ExportResult:
    """Write corrections, readings, corrected reports of each reader and arm as drafts, and decisions of a campaign.

    With studies also the review as a data set: `ratings.csv`, `preferences.jsonl` and a manifest for each drafts file.
    """
    readers = list(dict.fromkeys(map(store.registered_name, readers)))
    table = corrections_csv(store, readers)
    counted = [reader for reader in readers if reader in store.counted_readers()]
    arms = list(dict.fromkeys(draft.arm for draft in store.drafts))
    names = store.readers()
    drafts = {}
    with replace_files(folder) as new:
        with open_atomic(new / "corrections.csv", "wb") as handle:
            handle.write(table.encode("utf-8-sig"))
        if store.campaign is not None:
            with open_atomic(new / "decisions.csv", "wb") as handle:
                handle.write(decisions_csv(store).encode("utf-8-sig"))
        with open_atomic(new / "readings.csv", "wb") as handle:
            handle.write(readings_csv(collect_readings(store, readers)).encode("utf-8-sig"))
        for reader in readers:
            # Names may contain characters that file names cannot, and two may differ only in these.
            number = names.index(reader) + 1
            for place, arm in enumerate(arms, 1):
                suffix = f"-{place}-{_as_file_name(arm) or 'arm'}" if arm else ""
                name = f"drafts-{number}-{_as_file_name(reader) or 'reader'}{suffix}.jsonl"
                rows = corrected_drafts(store, reader, arm)
                drafts[reader, arm] = (folder / name, write_jsonl(new / name, rows))
                if studies is not None and reader in counted:
                    manifest = new / name.replace("drafts", "manifest", 1)
                    write_manifest(manifest, corrected_studies(store, studies, reader, arm))
        corrections = sum(len(review.state.corrections) for name in readers for review in store.reviews(name))
        if studies is None:
            return ExportResult(corrections, drafts)
        ratings = rating_table(store, studies, counted)
        ratings.write(new / "ratings.csv")
        preferences = find_preferences(store, studies, counted)
        write_jsonl(new / "preferences.jsonl", preferences.rows)
        return ExportResult(corrections, drafts, len(ratings.rows), preferences)


def _as_file_name(name: str) -> str:
    """Return a name in ASCII: accents are removed, other characters become a hyphen."""
    letters = [letter for letter in unicodedata.normalize("NFKD", name) if not unicodedata.combining(letter)]
    return re.sub(r"[^A-Za-z0-9]+", "-", "".join(letters)).strip("-")


def guard(cell: str) -> str:
    """Return a cell that no spreadsheet interprets as a formula."""
    is_dangerous = cell.lstrip().startswith(_FORMULA) or cell.startswith((*_BREAKS, _GUARD))
    return f"{_GUARD}{cell}" if is_dangerous else cell


def unguard(cell: str) -> str:
    """Return the original text of a guard cell."""
    return cell.removeprefix(_GUARD)


def _cells(sentence: ReviewedSentence) -> list[str]:
    assessment = sentence.assessment
    return [
        kind_of(sentence),
        sentence.draft_text or "",
        "" if sentence.deleted else sentence.text,
        assessment.error_type or "",
        "" if assessment.severity is None else str(assessment.severity),
        assessment.comment,
        str(sentence.has_moved_boxes).lower(),
        dumps(sentence.draft_boxes),
        "" if sentence.deleted else dumps(sentence.boxes),
    ]


def _record(sentence: Sentence) -> dict[str, Any]:
    fields = sentence.model_dump(mode="json")
    return {name: value for name, value in fields.items() if name in ("text", "boxes") or value is not None}
