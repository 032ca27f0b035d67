"""Input of a review: drafts with their studies and RadFact verdicts, by the number of the study."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import NonNegativeInt

from maira.data.archive import Radiograph
from maira.data.manifest import Failure, iter_manifest, manifest_folder
from maira.data.study import IMAGE_COLUMNS, Study
from maira.review.campaign import REFERENCE_ARM, CampaignConfig
from maira.review.database import Draft
from maira.review.form import Form, default_form
from radfact.errors import ErrorCode, InputError, list_some
from radfact.io.jsonl import read_jsonl
from radfact.io.pairs import read_drafts
from radfact.meta.datasets.rows import read_report_table
from radfact.reader.segmentation import segment_sentences
from radfact.records import Report, Sentence, validate_model
from radfact.results.schema import Row


class Verdict(Row):
    """RadFact's verdict on a sentence: a row of `sentences.jsonl`."""

    sample_id: str
    side: Literal["candidate", "reference"]
    index: NonNegativeInt
    text: str
    status: str | None = None
    evidence: tuple[NonNegativeInt, ...] = ()
    why: str | None = None


@dataclass(frozen=True, slots=True)
class ReviewSet:
    """The studies of a review in the order of their drafts; number 1 is the first."""

    drafts: tuple[Draft, ...]
    studies: tuple[Study, ...]
    folders: tuple[Path, ...]
    verdicts: dict[str, tuple[Verdict, ...]] | None = None
    unjudged: int = 0
    shows_reference: bool = True

    def image(self, number: int, kind: str, *, prefer_original: bool = True) -> tuple[Radiograph, bool] | None:
        """Return the file of an image, and whether it is the original; None if the study has no such image."""
        study = self.studies[number - 1]
        image = getattr(study, kind)
        if image is None:
            return None
        original = (study.originals or {}).get(kind) if prefer_original else None
        if original is not None:
            with suppress(InputError):
                path = self._resolve(original.path)
                return Radiograph(kind, path, "frontal", original.member, is_inverted=original.is_inverted), True
        return Radiograph(kind, self._resolve(image), "frontal"), False

    def _resolve(self, image: Path) -> Path:
        try:
            path = image.resolve(strict=True)
        except (OSError, ValueError, RuntimeError):
            raise InputError("no such image") from None
        if not self._is_inside(path):
            raise InputError("the image is outside the manifest's folder")
        if not path.is_file():
            raise InputError("no such image")
        return path

    def images_outside(self) -> int:
        paths = {getattr(study, kind) for study in self.studies for kind in IMAGE_COLUMNS} - {None}
        paths |= {original.path for study in self.studies for original in (study.originals or {}).values()}
        return sum(path.exists() and not self._is_inside(path.resolve()) for path in paths)

    def _is_inside(self, path: Path) -> bool:
        return any(path.is_relative_to(folder) for folder in self.folders)

    def reference(self, number: int) -> list[Sentence]:
        """Return the sentences of the reference report; empty if there is none, or readers do not see it."""
        if not self.shows_reference:
            return []
        study = self.studies[number - 1]
        return _sentences(study.grounded_findings or study.findings or [])


def read_review_set(
    drafts: Path,
    manifest: Path | None = None,
    results: Path | None = None,
    *,
    image_folders: Sequence[Path] = (),
    form: Form | None = None,
    second: Path | None = None,
) -> ReviewSet:
    """Read drafts of a manifest's studies, or a table with the references; `second` are those to compare with."""
    form = form or default_form()
    if (second is not None) != (form.unit == "pair" and drafts.suffix != ".csv"):
        message = f"expected --second with two drafts files and a form for pairs; the form is {form.name!r}"
        raise InputError(message, code=ErrorCode.CONFLICTING_OPTIONS)
    files = {"": str(drafts)} if form.unit != "pair" else {"first": str(drafts), "second": str(second or drafts)}
    review_set = _read_arms(files, manifest or drafts, image_folders, form)
    if form.unit == "comment":
        if results is None:
            message = f"expected --results with the corrections to rate, found none; the form is {form.name!r}"
            raise InputError(message, code=ErrorCode.MISSING_OPTION, field="results")
        return _with_comments(review_set, results / "metrics" / "fineradscore.jsonl")
    if results is None:
        return review_set
    verdicts, unjudged = _read_verdicts(results / "sentences.jsonl", review_set.drafts)
    return replace(review_set, verdicts=verdicts, unjudged=unjudged)


def read_campaign_set(settings: CampaignConfig, image_folders: Sequence[Path] = ()) -> ReviewSet:
    names = settings.arm_names if settings.form.unit != "pair" else settings.arms
    files = dict(zip(names, settings.arms.values(), strict=True))
    review_set = _read_arms(files, settings.manifest, image_folders, settings.form)
    training = settings.training_cases
    drafts = tuple(replace(draft, is_training=draft.sample_id in training) for draft in review_set.drafts)
    return replace(review_set, drafts=drafts, shows_reference=settings.shows_reference)


def _with_comments(review_set: ReviewSet, path: Path) -> ReviewSet:
    """Replace the sentences of drafts by the commented corrections of FineRadScore; drafts without are omitted."""
    found = {str(row["sample_id"]): (row.get("details") or {}).get("corrections") or () for _, row in read_jsonl(path)}
    kept = []
    for draft, study in zip(review_set.drafts, review_set.studies, strict=True):
        texts = [
            f"{item['was'] or '(added)'} → {item['correction'] or '(deleted)'}\n{item['comment']}"
            for item in found.get(draft.sample_id, ())
            if item["comment"]
        ]
        if texts:
            kept.append((replace(draft, sentences=tuple(Sentence(text=text) for text in texts)), study))
    if not kept:
        raise InputError("expected comments on these drafts, found none", code=ErrorCode.EMPTY_INPUT, file=path)
    drafts, studies = zip(*kept, strict=True)
    return replace(review_set, drafts=drafts, studies=studies)


def _read_arms(files: Mapping[str, str], manifest: Path, image_folders: Sequence[Path], form: Form) -> ReviewSet:
    """Read drafts and studies: each sample of the first arm that has a file, or of the manifest, in all arms."""
    arms: dict[str, dict[str, Draft]] = {}
    for place, (arm, file) in enumerate(files.items(), 1):
        if file != REFERENCE_ARM:
            drafts = read_review_drafts(Path(file), f"candidate_{place}" if len(files) > 1 else "candidate")
            arms[arm] = {draft.sample_id: draft for draft in drafts}
    if arms:
        first = next(iter(arms))
        source, sample_ids = Path(files[first]), list(arms[first])
    else:
        source, sample_ids = manifest, [study.sample_id for study in iter_manifest(manifest)]
    if not sample_ids:
        raise InputError("expected drafts, found none", code=ErrorCode.EMPTY_INPUT, file=source)
    studies = read_studies(manifest, sample_ids, source)
    for arm in files:
        by_sample = arms.setdefault(arm, {})
        if files[arm] == REFERENCE_ARM:
            reports = {key: study.grounded_findings or study.findings for key, study in studies.items()}
            by_sample |= {key: _draft(key, report, None) for key, report in reports.items() if report}
        missing = [key for key in sample_ids if key not in by_sample]
        extra = [key for key in by_sample if key not in studies]
        if missing or extra:
            message = f"expected the samples of {source}, found also {list_some(extra)}"
            if missing:
                everything = f"a report of all {len(sample_ids)} samples in {source}"
                message = f"expected {everything}, found none of {list_some(missing)}"
            raise InputError(message, code=ErrorCode.MISMATCH, field=f"arms: {arm}")
    together = [replace(arms[arm][key], arm=arm) for key in sample_ids for arm in files]
    if form.unit == "pair":
        together = [_pair(*pair) for pair in zip(together[::2], together[1::2], strict=True)]
    folders = tuple(folder.resolve() for folder in (manifest_folder(manifest), *image_folders))
    return ReviewSet(tuple(together), tuple(studies[draft.sample_id] for draft in together), folders)


def _pair(first: Draft, second: Draft) -> Draft:
    record = {"models": [first.record["model"], second.record["model"]], "split": len(first.sentences)}
    record |= {"reports": [draft.record["reports"][0] for draft in (first, second)]}
    return replace(first, sentences=first.sentences + second.sentences, record=record, arm="")


def read_studies(manifest: Path, sample_ids: Sequence[str], source: Path) -> dict[str, Study]:
    wanted = set(sample_ids)
    skipped: list[Failure] = []
    every = _table_studies(manifest) if manifest.suffix == ".csv" else iter_manifest(manifest, skipped)
    studies = {study.sample_id: study for study in every if study.sample_id in wanted}
    if unknown := [sample_id for sample_id in sample_ids if sample_id not in studies]:
        without_frontal = {failure.sample_id for failure in skipped}
        problem = "without a frontal image in" if unknown[0] in without_frontal else "not in"
        message = f"{len(unknown)} drafts of studies {problem} {manifest} ({list_some(unknown)})"
        raise InputError(message, code=ErrorCode.MISMATCH, file=source)
    return studies


def _table_studies(path: Path) -> Iterator[Study]:
    """Yield the studies of a table of reports, which have no image."""
    for key, by_rater in read_report_table(path, ("reference",), None, None).rows.items():
        row, *_ = by_rater.values()
        ids: dict[str, Any] = {name: row.text(name) or None for name in ("patient_id", "study_id")}
        yield Study.model_construct(sample_id=key, frontal=None, findings=row.text("reference") or None, **ids)


def read_review_drafts(path: Path, column: str = "candidate") -> list[Draft]:
    """Read drafts for a review, a drafts file or a column of a table, with narratives split into sentences."""
    if path.suffix == ".csv":
        rows = read_report_table(path, ("reference", column), None, None).rows.items()
        return [_draft(key, next(iter(by_rater.values())).text(column), None) for key, by_rater in rows]
    reports = read_drafts(path)
    models = {str(row["sample_id"]): row.get("model") for _, row in read_jsonl(path)}
    return [_draft(sample_id, report, models[sample_id]) for sample_id, report in reports.items()]


def _draft(sample_id: str, report: Report, model: object) -> Draft:
    record = {"model": model, "reports": [report if isinstance(report, str) else None]}
    return Draft(sample_id, tuple(_sentences(report)), isinstance(report, str), record)


def _sentences(report: Report) -> list[Sentence]:
    return [Sentence(text=text) for text in segment_sentences(report)] if isinstance(report, str) else report


def _read_verdicts(path: Path, drafts: Sequence[Draft]) -> tuple[dict[str, tuple[Verdict, ...]], int]:
    """Return the verdicts by sample, and the number of drafts whose sentences differ from the results."""
    texts: dict[str, dict[int, Verdict]] = {}
    for line, row in read_jsonl(path):
        present = {name: value for name, value in row.items() if value is not None}
        verdict = validate_model(Verdict, present, file=path, line=line)
        if verdict.side == "candidate":
            texts.setdefault(verdict.sample_id, {})[verdict.index] = verdict
    verdicts = {}
    for draft in drafts:
        ordered = [verdict for _, verdict in sorted(texts.get(draft.sample_id, {}).items())]
        if draft.sentences and [v.text for v in ordered] == [s.text for s in draft.sentences]:
            verdicts[draft.sample_id] = tuple(ordered)
    non_empty = sum(bool(draft.sentences) for draft in drafts)
    if non_empty and not verdicts:
        raise InputError("expected verdicts on these drafts, found none", code=ErrorCode.MISMATCH, file=path)
    return verdicts, non_empty - len(verdicts)
