"""Export of a review: tables, corrected reports (MAIRA-2, appendix F.1), and data sets to score and train with."""

from __future__ import annotations

import csv
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, Final

from maira.data.manifest import write_manifest
from maira.data.study import IMAGE_COLUMNS, Study
from maira.model.prompts import Task
from maira.model.task_examples import make_example
from maira.review.campaign import REFERENCE_ARM
from maira.review.changes import ReviewedSentence, State
from maira.review.database import Draft
from maira.review.form import RATED_COUNTS, Form, Value
from maira.review.reader_study import Reading, collect_readings
from maira.review.store import Store
from radfact.error_categories import ERROR_CATEGORIES
from radfact.errors import ErrorCode, InputError
from radfact.io.csv_tables import guard
from radfact.io.jsonl import dumps, open_atomic, write_jsonl
from radfact.io.outputs import replace_files
from radfact.meta.datasets.layouts import REXVAL_KEYS, REXVAL_RATINGS, REXVAL_REPORTS
from radfact.pages.meta_page import Table
from radfact.records import Box, Report, Sentence, narrative

_SOURCE = ("sample_id", "arm", "model", "training")
BLINDED = ("arm", "model", "training", "excluded")
"""Columns that are missing in the table of a blinded reader."""

_CORRECTION_COLUMNS = ("sentence", "kind", "draft_text", "corrected_text")
_BOX_COLUMNS = ("boxes_changed", "draft_boxes", "corrected_boxes")
_DECISION_COLUMNS = (
    *_SOURCE, "item", "draft_text", "readings", "needs_correction", "severity", "comment", "decided_at",
)  # fmt: skip
_READING_COLUMNS = (
    "reader", *_SOURCE, "excluded", "status", "opened_at", "finished_at", "active_seconds", "total_seconds",
    "time_reason", "sentences",
)  # fmt: skip
_KIND_COLUMNS = ("edits", "deletions", "additions", "boxes_changed")

_SIGNIFICANT: Final = 2
_COUNTS = ("errors", "significant", "insignificant")
_END_MARKS = (".", "!", "?", ":")
RATERS = "raters.csv"
_REFISCO_COLUMNS = (
    "data_id", "report_type", "original_line", "corrected_line", "error_clinical_severity", "comments", "annotator_id",
)  # fmt: skip


def answers_csv(store: Store, readers: Sequence[str], *, is_blinded: bool = False) -> str:
    """Return a row per correction, sentence or study; blinded, without columns that reveal the source of a draft."""
    counted, form = store.counted_readers(), store.form
    texts = [] if form.is_whole else ["sentence", "text"]
    columns = [*(_CORRECTION_COLUMNS if form.edits else texts), *form.by_name, *(_BOX_COLUMNS if form.edits else ())]
    headings = ["reader", *_SOURCE, "excluded", *columns, "finished", "study_comment"]
    rows = []
    for reader in map(store.registered_name, readers):
        for draft, review in zip(store.drafts, store.reviews(reader), strict=True):
            state = review.state
            places = {sentence.id: place for place, sentence in enumerate(state.sentences, 1)}
            for unit in state.units(form) if review.version else ():
                cells: dict[str, Any] = {name: unit.answers.get(name) for name in form.by_name}
                if isinstance(unit, ReviewedSentence):
                    cells |= {"sentence": places[unit.id], "text": unit.text, "kind": unit.kind}
                    cells |= {"draft_text": unit.draft_text, "corrected_text": None if unit.deleted else unit.text}
                    cells |= {"boxes_changed": unit.has_moved_boxes, "draft_boxes": dumps(unit.draft_boxes)}
                    cells["corrected_boxes"] = None if unit.deleted else dumps(unit.boxes)
                study = [reader, *_source(draft), reader not in counted]
                rows.append([*study, *map(cells.get, columns), state.done, state.comment])
    hidden = BLINDED if is_blinded else ()
    kept = [place for place, name in enumerate(headings) if name not in hidden]
    return _csv([headings[place] for place in kept], [[row[place] for place in kept] for row in rows])


@dataclass(frozen=True, slots=True)
class AdjudicationItem:
    """A sentence of the draft, or one that a reader added, as its readers left it."""

    id: str
    readings: dict[str, ReviewedSentence]

    @property
    def draft_text(self) -> str | None:
        return next(iter(self.readings.values())).draft_text

    @property
    def is_disagreement(self) -> bool:
        """Whether the need for a correction or its severity differs, or a reader added the sentence."""
        severities = {sentence.severity if sentence.is_correction else None for sentence in self.readings.values()}
        return self.draft_text is None or len(severities) > 1


def collect_adjudication_items(store: Store) -> dict[int, list[AdjudicationItem]]:
    """Return the items of each study that at least two counted readers finished, by its number."""
    items = {}
    reviews = {reader: store.reviews(reader) for reader in store.counted_readers() if store.form.edits}
    for number, same in enumerate(zip(*reviews.values(), strict=True), 1):
        finished = {reader: review.state for reader, review in zip(reviews, same, strict=True) if review.state.done}
        readings: dict[str, dict[str, ReviewedSentence]] = {}
        for reader, state in finished.items() if len(finished) > 1 else ():
            for sentence in state.sentences:
                if sentence.is_correction or not sentence.is_added:
                    key = f"{store.reader_key(reader)}/{sentence.id}" if sentence.is_added else sentence.id
                    readings.setdefault(key, {})[reader] = sentence
        if len(finished) > 1:
            every = [AdjudicationItem(key, by_reader) for key, by_reader in readings.items()]
            items[number] = sorted(every, key=lambda item: item.draft_text is None)
    return items


def decisions_csv(store: Store) -> str:
    rows = []
    studies = collect_adjudication_items(store)
    for number, (made, decision) in sorted(store.campaign.decisions.items()):
        items = {item.id: item for item in studies.get(number, ())}
        for key, severity in decision.severities.items():
            item = items.get(key)
            readings = item.readings.items() if item else ()
            described = "; ".join(f"{reader}: {describe_reading(each, store.form)}" for reader, each in readings)
            decided = [described, severity is not None, severity, decision.comment, made]
            rows.append([*_source(store.drafts[number - 1]), key, item and item.draft_text, *decided])
    return _csv(_DECISION_COLUMNS, rows)


def describe_reading(sentence: ReviewedSentence, form: Form) -> str:
    if not sentence.is_correction:
        return "no correction"
    edit = "edited" if sentence.is_edited else "boxes changed"
    verb = {"edit": edit, "deletion": "deleted", "addition": f"added “{sentence.text}”"}[sentence.kind]
    options = form.by_name["severity"].options
    names = [option.name.lower() for option in options if option.value == sentence.severity]
    return ", ".join([verb, *(names or ["not rated"])])


def readings_csv(readings: Sequence[Reading], form: Form) -> str:
    """Return the table of readings, one row per reader and opened study."""
    options = form.by_name["severity"].options if form.edits else ()
    severities = [*(option.name.lower().replace(" ", "_") for option in options), "not_rated", "worst_severity"]
    rows = []
    for reading in readings:
        state, time = reading.state, reading.time
        cells = [
            *(reading.reader, *_source(reading.draft), reading.is_excluded),
            "finished" if state.done else "started",
            *(at and at.isoformat(timespec="seconds") for at in (time.opened, time.finished)),
            *("" if math.isnan(value) else f"{value:.1f}" for value in (time.active_seconds, time.total_seconds)),
            time.reason,
            len(state.drafted),
        ]
        rows.append([*cells, *(_count_corrections(state, form) if form.edits else ()), state.comment])
    counted = [*_KIND_COLUMNS, *severities] if form.edits else []
    return _csv([*_READING_COLUMNS, *counted, "comment"], rows)


def _count_corrections(state: State, form: Form) -> list[Any]:
    kinds, worst = Counter(item.kind for item in state.corrections), state.worst_severity
    severities = Counter(item.severity for item in state.corrections)
    boxes_changed = sum(item.has_moved_boxes and not item.deleted for item in state.corrections)
    counts = [kinds["edit"], kinds["deletion"], kinds["addition"], boxes_changed]
    return [*counts, *(severities[severity] for severity in form.severities), "none" if worst == -1 else worst]


def _source(draft: Draft) -> list[Any]:
    model = draft.record.get("model") or ", ".join(filter(None, draft.record.get("models", ()))) or None
    return [draft.sample_id, draft.arm, model, draft.is_training]


def _csv(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table whose cells no spreadsheet would execute as a formula."""
    buffer = StringIO()
    # All cells quoted: a spreadsheet that splits at semicolons would find formulas within cells.
    writer = csv.writer(buffer, lineterminator="\r\n", quoting=csv.QUOTE_ALL)
    writer.writerow(columns)
    writer.writerows([str(cell).lower() if isinstance(cell, bool) else guard(cell) for cell in row] for row in rows)
    return buffer.getvalue()


def corrected_drafts(store: Store, reader: str, arm: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield the corrected reports that a reader finished, without training cases, as records of a drafts file."""
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


def write_export(
    store: Store, folder: Path, readers: Sequence[str], studies: Mapping[str, Study] | None = None
) -> list[str]:
    """Write answers, corrected reports and ratings, with studies also the review as a data set; return a line each."""
    form, readers = store.form, list(dict.fromkeys(map(store.registered_name, readers)))
    counted = [reader for reader in readers if reader in store.counted_readers()]
    tables = {"readings": readings_csv(collect_readings(store, readers), form)}
    tables["corrections" if form.edits else "answers"] = answers_csv(store, readers)
    if store.campaign.settings is not None and form.edits:
        tables["decisions"] = decisions_csv(store)
    ratings, lines = rating_tables(store, counted, studies), []
    with replace_files(folder) as new:
        for name, table in tables.items():
            with open_atomic(new / f"{name}.csv", "wb") as handle:
                handle.write(table.encode("utf-8-sig"))
        if form.edits:
            count = sum(len(review.state.corrections) for name in readers for review in store.reviews(name))
            lines = [f"corrections: {count}, in {folder / 'corrections.csv'}"]
            lines += _write_drafts(store, folder, new, readers, studies)
        for name, rows in ratings.items():
            rows.write(new / name)
            rated = f"{len({row[0] for row in rows.rows})} of {len(store.drafts)} drafts rated: "
            lines.append(f"{rated * (name != RATERS)}{folder / name}")
        if studies is not None and form.edits:
            preferences, skipped = find_preferences(store, studies, counted)
            count = write_jsonl(new / "preferences.jsonl", preferences)
            lines.append(f"preferences: {count}, in {folder / 'preferences.jsonl'}")
            lines += [f"without a preference: {count} ({reason})" for reason, count in skipped.items()]
    return lines


def _write_drafts(
    store: Store, folder: Path, new: Path, readers: Sequence[str], studies: Mapping[str, Study] | None
) -> Iterator[str]:
    """Write the corrected reports of each reader and arm, and with studies their manifests; yield a line each."""
    arms, names = list(dict.fromkeys(draft.arm for draft in store.drafts)), store.readers()
    for reader in readers:
        assigned = [store.drafts[number - 1] for number in store.study_list(reader)]
        for place, arm in enumerate(arms, 1):
            # Names may contain characters that file names cannot, and two may differ only in these.
            suffix = f"-{place}-{_as_file_name(arm) or 'arm'}" if arm else ""
            name = f"drafts-{names.index(reader) + 1}-{_as_file_name(reader) or 'reader'}{suffix}.jsonl"
            count = write_jsonl(new / name, corrected_drafts(store, reader, arm))
            total = sum(draft.arm == arm and not draft.is_training for draft in assigned)
            of_arm = f" of arm {arm}" if arm else ""
            yield f"{count} of {total} reports{of_arm} finished by {reader}: {folder / name}"
            if studies is not None and reader in store.counted_readers():
                manifest = new / name.replace("drafts", "manifest", 1)
                write_manifest(manifest, corrected_studies(store, studies, reader, arm))


def _as_file_name(name: str) -> str:
    """Return a name in ASCII: accents are removed, other characters become a hyphen."""
    letters = [letter for letter in unicodedata.normalize("NFKD", name) if not unicodedata.combining(letter)]
    return re.sub(r"[^A-Za-z0-9]+", "-", "".join(letters)).strip("-")


def _record(sentence: Sentence) -> dict[str, Any]:
    fields = sentence.model_dump(mode="json")
    return {name: value for name, value in fields.items() if name in ("text", "boxes") or value is not None}


def corrected_report(draft: Draft, state: State) -> Report:
    """Return the report after a review: a narrative if the draft is one, otherwise sentences with boxes."""
    sentences = [sentence for sentence in state.sentences if not sentence.deleted]
    return _joined(sentences) if draft.is_narrative else [_corrected(draft, sentence) for sentence in sentences]


def _joined(sentences: Sequence[ReviewedSentence | Sentence]) -> str:
    """Return the sentences of a narrative as one text."""
    return " ".join(s.text if s.text.endswith(_END_MARKS) else f"{s.text}." for s in sentences)


def _corrected(draft: Draft, sentence: ReviewedSentence) -> Sentence:
    """Return a sentence of a corrected report; changed boxes remove the masks."""
    boxes = tuple(Box(**dict(zip(Box.model_fields, corners, strict=True))) for corners in sentence.boxes)
    if sentence.is_added:
        return Sentence(text=sentence.text, boxes=boxes)
    drafted = draft.sentences[int(sentence.id[1:])]
    regions = {"boxes": boxes or None, "masks": None} if sentence.has_moved_boxes else {}
    return drafted.model_copy(update={"text": sentence.text, **regions})


def rating_tables(store: Store, readers: Sequence[str], studies: Mapping[str, Study] | None) -> dict[str, Table]:
    """Return the finished ratings as the commands of `radfact meta` read them, by file name."""
    reviews = {name: store.counted_reviews(name) for name in readers}
    finished = [
        (draft, name, review.state) for name, of in reviews.items() for draft, review in of if review.state.done
    ]
    layout, references = store.form.layout, _references(studies or {})
    if layout in ("rexval", "preferences") and studies is None:
        message = "expected --manifest, or the table of the review: the ratings contain the references"
        raise InputError(message, code=ErrorCode.MISSING_OPTION, field="manifest")
    match layout:
        case "refisco-v1":
            return {"refisco.csv": _refisco_table(finished, store.form)}
        case "rexamine":
            counted = [field.name for field in store.form.fields if field.type == "number"]
            numbers = [
                [value for field in counted if isinstance(value := state.answers[field], int)] for *_, state in finished
            ]
            rows = [[draft.sample_id, name, sum(of)] for (draft, name, _), of in zip(finished, numbers, strict=True)]
            return {"counts.csv": Table(["id", "rater", "errors"], rows)}
        case "ratings" if studies is not None:
            return {"ratings.csv": rating_table(store, studies, readers)}
        case "rexval":
            return _rexval_tables(finished, readers, references)
        case "preferences":
            return {"preferences.csv": _preference_table(finished, store.form, studies or {}, references)}
    return {}


_Finished = Sequence[tuple[Draft, str, State]]


def _as_read(draft: Draft) -> list[str]:
    """Return the reports of a draft as they were read; reviews of earlier versions know the sentences alone."""
    candidates = draft.candidates or [()]
    reports = draft.record.get("reports") or [None] * len(candidates)
    return [_joined(each) if report is None else report for report, each in zip(reports, candidates, strict=True)]


def _references(studies: Mapping[str, Study]) -> dict[str, str]:
    reports = {key: narrative(study.grounded_findings or study.findings or "") for key, study in studies.items()}
    return {key: report for key, report in reports.items() if report}


def _refisco_table(finished: _Finished, form: Form) -> Table:
    """Return the lines of each reader's report; a line without a correction stays as it is."""
    rows = []
    names: dict[Value, str] = {option.value: option.name for option in form.by_name["severity"].options}
    for draft, reader, state in finished:
        for sentence in state.sentences:
            text = "[delete]" if sentence.deleted else sentence.text
            if not (sentence.is_added and sentence.deleted):
                details = [names.get(sentence.severity), sentence.answers.get("comment")]
                cells = [sentence.draft_text, text, *(details if sentence.is_correction else (None, None))]
                rows.append([draft.sample_id, draft.arm or "candidate", *cells, reader])
    return Table(_REFISCO_COLUMNS, rows)


def _rexval_tables(finished: _Finished, readers: Sequence[str], references: Mapping[str, str]) -> dict[str, Table]:
    """Return the reports, one column per arm, the counts of errors, and the names of the raters by their index."""
    rated = {draft.sample_id: draft for draft, _, _ in finished if draft.sample_id in references}
    places = {key: place for place, key in enumerate(rated)}
    texts = {(draft.sample_id, draft.arm or "candidate"): _as_read(draft)[0] for draft, _, _ in finished}
    arms = list(dict.fromkeys(arm for _, arm in texts))
    reports = [[key, references[key], *(texts.get((key, arm)) for arm in arms)] for key in rated]
    counts = []
    for draft, reader, state in finished:
        for name in RATED_COUNTS if draft.sample_id in rated else ():
            kind, letter = name.split("_")
            key = [places[draft.sample_id], draft.arm or "candidate", readers.index(reader)]
            category = [*ERROR_CATEGORIES].index(letter) + 1
            counts.append([*key, category, str(kind == "significant"), state.answers.get(name)])
    return {
        REXVAL_REPORTS: Table(["study_id", "gt_report", *arms], reports),
        REXVAL_RATINGS: Table([*REXVAL_KEYS, "num_errors"], counts),
        RATERS: Table(["rater_index", "reader"], list(enumerate(readers))),
    }


def _preference_table(
    finished: _Finished, form: Form, studies: Mapping[str, Study], references: Mapping[str, str]
) -> Table:
    rated_as = [name for name in ("preference", "confidence") if name in form.by_name]
    rows = []
    for draft, reader, state in finished:
        if draft.sample_id in references:
            study = studies[draft.sample_id]
            identity = [draft.sample_id, study.patient_id, study.study_id or draft.sample_id]
            rated = [state.answers[name] for name in rated_as]
            rows.append([*identity, references[draft.sample_id], *_as_read(draft), reader, *rated])
    columns = ["id", "patient_id", "study_id", "reference", "candidate_1", "candidate_2", "rater", "expert"]
    return Table([*columns, *rated_as[1:]], rows)


def rating_table(store: Store, studies: Mapping[str, Study], readers: Sequence[str]) -> Table:
    """Return the errors in each draft by each reader, as `radfact meta agreement` reads it; unfinished: empty."""
    reviews = [[review.state for _, review in store.counted_reviews(name)] for name in readers]
    drafts = [draft for draft in store.drafts if not draft.is_training]
    arms = ["group"] if any(draft.arm for draft in drafts) else []
    sources = store.campaign.settings.arms if store.campaign.settings else {}
    references = _references(studies)
    rows = []
    for draft, *by_reader in zip(drafts, *reviews, strict=True):
        study, reference = studies[draft.sample_id], references.get(draft.sample_id)
        is_reference = sources.get(draft.arm) == REFERENCE_ARM
        if reference and not is_reference and any(state.done for state in by_reader):
            identity = [draft.name, study.patient_id, study.study_id or study.sample_id, *([draft.arm] if arms else [])]
            counts = [count for state in by_reader for count in _count_errors(state)]
            rows.append([*identity, reference, narrative(list(draft.sentences)), *counts])
    experts = [f"{quantity}:{name}" for name in readers for quantity in _COUNTS]
    return Table(["id", "patient_id", "study_id", *arms, "reference", "candidate", *experts], rows)


def corrected_studies(store: Store, studies: Mapping[str, Study], reader: str, arm: str) -> Iterator[Study]:
    """Yield all studies of an arm with a reader's corrected report as their only report, if it is finished."""
    for draft, review in store.counted_reviews(reader):
        if draft.arm == arm:
            report = corrected_report(draft, review.state) if review.state.done else None
            yield _with_report(studies[draft.sample_id], report)


def find_preferences(
    store: Store, studies: Mapping[str, Study], readers: Sequence[str]
) -> tuple[list[dict[str, Any]], Counter[str]]:
    """Return a preference for each corrected draft, without a prompt, which a run makes; or why there is none."""
    rows, skipped = list[dict[str, Any]](), Counter[str]()
    for reader in readers:
        for draft, review in store.counted_reviews(reader):
            if not (review.state.done and review.state.corrections):
                continue
            study = studies[draft.sample_id]
            task: Task = "findings" if draft.is_narrative else "grounded"
            try:
                rejected = _target(study, corrected_report(draft, draft.review.state), task)
                chosen = _target(study, corrected_report(draft, review.state), task)
            except InputError as error:
                skipped[str(error)] += 1
                continue
            if chosen == rejected:
                skipped["the model's format cannot express the correction"] += 1
                continue
            source = {"sample_id": draft.sample_id, "arm": draft.arm, "reader": reader}
            images = [str(path) for name in IMAGE_COLUMNS if (path := getattr(study, name)) is not None]
            pair = {"task": task, "chosen": chosen, "rejected": rejected, "images": images}
            rows.append({**source, "severity": review.state.worst_severity, **pair})
    return rows, skipped


def _count_errors(state: State) -> list[int | None]:
    if not state.done:
        return [None] * len(_COUNTS)
    severities = [correction.severity for correction in state.corrections]
    significant = severities.count(_SIGNIFICANT)
    return [len(severities), significant, len(severities) - significant]


def _with_report(study: Study, report: Report | None) -> Study:
    """Return a study with one report, which replaces the reference and its sentences to locate."""
    others = {"findings": None, "grounded_findings": None, "phrases": None}
    name = "findings" if isinstance(report, str) else "grounded_findings"
    return study.model_copy(update={**others, name: report or None})


def _target(study: Study, report: Report, task: Task) -> str:
    target = make_example(_with_report(study, report), task).target
    if target is None:
        raise InputError("expected a report with text, found none")
    return target
