"""Statistics of a manifest as in MAIRA-2, table 1: patients, samples, laterals, priors and reports."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from maira.data.manifest import check_has_samples, iter_manifest
from maira.data.pairing import SPLITS
from maira.data.study import Study
from radfact.reader.segmentation import segment_sentences
from radfact.records import Sentence

Task = Literal["FindGen", "GroundRep", "PhraseGround"]
Column = Literal["source", "split", "task"]
COLUMNS: tuple[Column, ...] = ("source", "split", "task")

ARCHIVE_OF = {"mimic-cxr-jpg": "mimic-cxr", "ms-cxr": "mimic-cxr", "padchest-gr": "padchest"}
"""Sources that share the patients of another archive; a patient counts once in the sum of both."""


@dataclass
class _Group:
    """Patients, studies of unknown patients (each with its archive), and counts of samples."""

    patients: set[tuple[str | None, str]] = field(default_factory=set)
    unidentified_studies: set[tuple[str | None, str]] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, study: Study, counts: Mapping[str, int]) -> None:
        archive = ARCHIVE_OF.get(study.source, study.source) if study.source else None
        if study.patient_id is not None:
            self.patients.add((archive, study.patient_id))
        else:
            self.unidentified_studies.add((archive, study.study_id or study.sample_id))
        self.counts.update(counts)

    def as_json(self, whole: int) -> dict[str, Any]:
        """Return counts, shares (0 to 1; `share` of `whole` samples) and means; null for a division by zero."""
        count = self.counts
        samples = count["samples"]
        return {
            "patients": len(self.patients),
            "studies_of_unknown_patients": len(self.unidentified_studies),
            "samples": samples,
            "share": _ratio(samples, whole),
            "has_lateral": _ratio(count["laterals"], samples),
            "has_prior": _ratio(count["priors"], samples),
            "words_a_report": _ratio(count["words"], samples),
            "sentences_a_report": _ratio(count["sentences"], samples),
            "sentences_with_boxes": _ratio(count["located"], count["groundable"]),
            "boxes_a_located_sentence": _ratio(count["boxes"], count["located"]),
        }


def manifest_statistics(path: Path | str, columns: Sequence[Column] = COLUMNS) -> dict[str, Any]:
    """Return the number of studies in a manifest, its samples grouped by columns, and their total, without the images.

    A sample is a study with a narrative (FindGen), a study with a grounded report (GroundRep), or one phrase
    (PhraseGround). A study with several of these counts in each. Phrases have neither lateral nor prior, since the
    model sees only the frontal image. A study without a reference report is a sample without task. Sentences are
    groundable in grounded reports and phrases, and located by boxes or masks on the frontal image.

    Groups are in the order of table 1: sources as in the manifest, train first. Their `share` is of the split's samples
    if split is a column, else of all samples.
    """
    total, splits = _Group(), Counter[str | None]()
    groups: defaultdict[tuple[str | None, ...], _Group] = defaultdict(_Group)
    # Places of the values of each column, in the order of table 1.
    places: dict[Column, dict[str | None, int]] = {column: {} for column in COLUMNS}
    places["split"] = {split: place for place, split in enumerate(SPLITS)}
    studies = 0
    for study in iter_manifest(path):
        studies += 1
        for task, report in _samples(study):
            value_of: dict[Column, str | None] = {"source": study.source, "split": study.split, "task": task}
            for column, value in value_of.items():
                places[column].setdefault(value, len(places[column]))
            counts = _counts(study, task, report)
            total.add(study, counts)
            groups[tuple(value_of[column] for column in columns)].add(study, counts)
            splits[study.split] += 1
    check_has_samples(studies, path)
    size = total.counts["samples"]
    rows = []
    for key in sorted(groups, key=lambda key: [places[c][value] for c, value in zip(columns, key, strict=True)]):
        row = dict(zip(columns, key, strict=True))
        rows.append(row | groups[key].as_json(splits[row["split"]] if "split" in row else size))
    return {"studies": studies, "groups": rows, "total": total.as_json(size)}


def _counts(study: Study, task: Task | None, report: Sequence[Sentence] | str) -> dict[str, int]:
    """Return what a sample adds to the counts of a group."""
    counts = {"samples": 1}
    if task != "PhraseGround":
        counts["laterals"] = study.lateral is not None
        counts["priors"] = study.prior_frontal is not None and study.prior_report is not None
    if isinstance(report, str):
        return counts | {"words": len(report.split()), "sentences": sum(1 for _ in segment_sentences(report))}
    counts |= {"words": sum(len(sentence.text.split()) for sentence in report), "sentences": len(report)}
    counts |= {"groundable": len(report), "located": sum(sentence.has_region for sentence in report)}
    return counts | {"boxes": sum(len(sentence.boxes or ()) + len(sentence.masks or ()) for sentence in report)}


def _samples(study: Study) -> Iterator[tuple[Task | None, Sequence[Sentence] | str]]:
    """Yield task and reference report of each sample in a study."""
    if study.findings is not None:
        yield "FindGen", study.findings
    if study.grounded_findings is not None:
        yield "GroundRep", study.grounded_findings
    for phrase in study.phrases or ():
        yield "PhraseGround", [phrase]
    if study.findings is None and study.grounded_findings is None and study.phrases is None:
        yield None, []


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
