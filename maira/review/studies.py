"""What is reviewed: drafts, the studies that they are of, and what RadFact said of them, by the number of the study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import NonNegativeInt

from data.manifest import Failure, iter_manifest, manifest_folder
from data.study import IMAGE_COLUMNS, Study
from maira.review.store import Draft
from radfact.errors import InputError, list_some
from radfact.io.jsonl import read_jsonl
from radfact.io.pairs import read_drafts
from radfact.judges.offline.segmentation import segment_sentences
from radfact.records import Report, Sentence, validated
from radfact.results.schema import Row


class Verdict(Row):
    """What RadFact said of a sentence of the draft: a row of `sentences.jsonl`."""

    sample_id: str
    side: Literal["candidate", "reference"]
    index: NonNegativeInt
    text: str
    status: str | None = None
    evidence: tuple[NonNegativeInt, ...] = ()
    why: str | None = None


@dataclass(frozen=True, slots=True)
class ReviewSet:
    """The studies of a review in the order of their drafts; number 1 is the first.

    Attributes:
        title: for the head of the page.
        drafts, studies: side by side.
        folders: within which images may lie, links followed.
        verdicts: by `sample_id`, one for each sentence of the draft; None where no results were given.
        unjudged: samples whose sentences are not those that the results are of.
    """

    title: str
    drafts: tuple[Draft, ...]
    studies: tuple[Study, ...]
    folders: tuple[Path, ...]
    verdicts: dict[str, tuple[Verdict, ...]] | None = None
    unjudged: int = 0

    def image(self, number: int, kind: str) -> Path | None:
        """The file of an image with all links followed; None where the study has none of this kind.

        Args:
            number: of the study, from 1.
            kind: one of `IMAGE_COLUMNS`.

        Raises:
            InputError: it lies outside the folders, or is not there.
        """
        named = getattr(self.studies[number - 1], kind)
        if named is None:
            return None
        try:
            path: Path = named.resolve(strict=True)
        except (OSError, ValueError, RuntimeError):
            raise InputError("no such image") from None
        if not self._is_inside(path):
            raise InputError("this image lies outside the manifest's folder")
        if not path.is_file():
            raise InputError("no such image")
        return path

    def images_outside(self) -> int:
        """How many images are there and lie outside the folders."""
        named = {getattr(study, kind) for study in self.studies for kind in IMAGE_COLUMNS} - {None}
        return sum(path.exists() and not self._is_inside(path.resolve()) for path in named)

    def _is_inside(self, path: Path) -> bool:
        return any(path.is_relative_to(folder) for folder in self.folders)

    def reference(self, number: int) -> list[Sentence]:
        """The reference report, a narrative cut into its sentences; empty where none is known."""
        study = self.studies[number - 1]
        return _sentences(study.grounded_findings or study.findings or [])


def read_review_set(
    drafts: Path, manifest: Path, *, results: Path | None = None, image_folders: Sequence[Path] = ()
) -> ReviewSet:
    """Read what is to be reviewed.

    Args:
        drafts: drafts of `maira generate` or of another model (.jsonl), each with its study in the manifest.
        manifest: manifest.jsonl of the studies.
        results: results folder of RadFact for these drafts.
        image_folders: folders beside the manifest's own in which images may lie.

    Raises:
        InputError: naming file, line and field.
    """
    found = read_review_drafts(drafts)
    wanted = {draft.sample_id for draft in found}
    left_out: list[Failure] = []
    studies = {study.sample_id: study for study in iter_manifest(manifest, left_out) if study.sample_id in wanted}
    unknown = [draft.sample_id for draft in found if draft.sample_id not in studies]
    if unknown:
        no_radiograph = {failure.sample_id for failure in left_out}
        why = "without a frontal image in" if unknown[0] in no_radiograph else "not in"
        raise InputError(f"{len(unknown)} drafts are of studies {why} {manifest} ({list_some(unknown)})", file=drafts)
    if not found:
        raise InputError("holds no draft", file=drafts)
    verdicts, unjudged = (None, 0) if results is None else _read_verdicts(results / "sentences.jsonl", found)
    return ReviewSet(
        title=drafts.name,
        drafts=tuple(found),
        studies=tuple(studies[draft.sample_id] for draft in found),
        folders=tuple(folder.resolve() for folder in (manifest_folder(manifest), *image_folders)),
        verdicts=verdicts,
        unjudged=unjudged,
    )


def read_review_drafts(path: Path) -> list[Draft]:
    """Read drafts for a review, narratives cut into their sentences.

    Raises:
        InputError: naming file, line and field.
    """
    reports = read_drafts(path)
    models = {str(row["sample_id"]): row.get("model") for _, row in read_jsonl(path)}
    return [
        Draft(sample_id, tuple(_sentences(report)), isinstance(report, str), {"model": models[sample_id]})
        for sample_id, report in reports.items()
    ]


def _sentences(report: Report) -> list[Sentence]:
    return [Sentence(text=text) for text in segment_sentences(report)] if isinstance(report, str) else report


def _read_verdicts(path: Path, drafts: Sequence[Draft]) -> tuple[dict[str, tuple[Verdict, ...]], int]:
    """The verdicts on these very sentences, and of how many drafts the results have other sentences."""
    texts: dict[str, dict[int, Verdict]] = {}
    for line, row in read_jsonl(path):
        verdict = validated(Verdict, _without_none(row), file=path, line=line)
        if verdict.side == "candidate":
            texts.setdefault(verdict.sample_id, {})[verdict.index] = verdict
    verdicts = {}
    for draft in drafts:
        ordered = [verdict for _, verdict in sorted(texts.get(draft.sample_id, {}).items())]
        if draft.sentences and [v.text for v in ordered] == [s.text for s in draft.sentences]:
            verdicts[draft.sample_id] = tuple(ordered)
    drafted = sum(bool(draft.sentences) for draft in drafts)
    if drafted and not verdicts:
        raise InputError("holds no verdict on any of these drafts", file=path)
    return verdicts, drafted - len(verdicts)


def _without_none(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}
