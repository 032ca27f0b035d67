"""Statistics of a manifest as in MAIRA-2, table 1: patients, samples, laterals, priors and reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
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

Key = tuple[str | None, ...]
"""Values of the grouping columns; None if unknown."""


@dataclass
class Group:
    """Sums over samples.

    A sample is a study with a narrative (FindGen), a study with a grounded report (GroundRep), or one phrase
    (PhraseGround). A study with several of these counts in each. Phrases have neither lateral nor prior, since the
    model sees only the frontal image. A study without a reference report is a sample without task. Sentences are
    groundable in grounded reports and phrases, and located by boxes or masks on the frontal image.
    """

    patients: set[tuple[str | None, str]] = field(default_factory=set)  # archive, patient
    unidentified_studies: set[tuple[str | None, str]] = field(default_factory=set)  # archive, study
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, other: Group) -> None:
        """Add the sums of another group."""
        self.patients |= other.patients
        self.unidentified_studies |= other.unidentified_studies
        self.counts.update(other.counts)

    def add_sample(self, study: Study, task: Task | None, report: Sequence[Sentence] | str) -> None:
        """Count a sample of a study."""
        archive = ARCHIVE_OF.get(study.source, study.source) if study.source else None
        if study.patient_id is not None:
            self.patients.add((archive, study.patient_id))
        else:
            self.unidentified_studies.add((archive, study.study_id or study.sample_id))
        counts = {"samples": 1}
        if task != "PhraseGround":
            counts["laterals"] = study.lateral is not None
            counts["priors"] = study.prior_frontal is not None and study.prior_report is not None
        if isinstance(report, str):
            counts |= {"words": len(report.split()), "sentences": sum(1 for _ in segment_sentences(report))}
        else:
            counts |= {"words": sum(len(sentence.text.split()) for sentence in report), "sentences": len(report)}
            counts |= {"groundable": len(report), "located": sum(sentence.has_region for sentence in report)}
            counts["boxes"] = sum(len(sentence.boxes or ()) + len(sentence.masks or ()) for sentence in report)
        self.counts.update(counts)

    def as_json(self, total: int) -> dict[str, Any]:
        """Return counts, shares (0 to 1; `share` of `total` samples) and means; null for a division by zero."""
        count = self.counts
        samples = count["samples"]
        return {
            "patients": len(self.patients),
            "studies_of_unknown_patients": len(self.unidentified_studies),
            "samples": samples,
            "share": _ratio(samples, total),
            "has_lateral": _ratio(count["laterals"], samples),
            "has_prior": _ratio(count["priors"], samples),
            "words_a_report": _ratio(count["words"], samples),
            "sentences_a_report": _ratio(count["sentences"], samples),
            "sentences_with_boxes": _ratio(count["located"], count["groundable"]),
            "boxes_a_located_sentence": _ratio(count["boxes"], count["located"]),
        }


@dataclass(frozen=True)
class Statistics:
    """Number of studies in a manifest, and one group of samples per source, split and task."""

    studies: int
    groups: dict[Key, Group]

    def group_by(self, columns: Sequence[Column]) -> dict[Key, Group]:
        """Sum the groups by the given columns, in the order of table 1: sources as in the manifest, train first."""
        indices = [COLUMNS.index(column) for column in columns]
        sums: dict[Key, Group] = {}
        for key, group in self.groups.items():
            sums.setdefault(tuple(key[i] for i in indices), Group()).add(group)
        order = [list(dict.fromkeys(key[i] for key in self.groups)) for i in indices]
        for i, column in enumerate(columns):
            if column == "split":
                order[i].sort(key=lambda split: SPLITS.index(split) if split in SPLITS else len(SPLITS))
        return dict(sorted(sums.items(), key=lambda item: [v.index(k) for v, k in zip(order, item[0], strict=True)]))

    def as_json(self, columns: Sequence[Column] = COLUMNS) -> dict[str, Any]:
        """Return the groups by the given columns, and their total.

        `share` is of the split's samples if split is a column, else of all samples.
        """
        total = self.group_by([]).get((), Group())
        wholes = self.group_by(["split"]) if "split" in columns else {}
        rows = []
        for key, group in self.group_by(columns).items():
            row = dict(zip(columns, key, strict=True))
            whole = wholes.get((row.get("split"),), total)
            rows.append(row | group.as_json(whole.counts["samples"]))
        return {"studies": self.studies, "groups": rows, "total": total.as_json(total.counts["samples"])}


def manifest_statistics(path: Path | str) -> Statistics:
    """Compute the statistics of a manifest. Images are not opened."""
    groups: dict[Key, Group] = {}
    studies = 0
    for study in iter_manifest(path):
        studies += 1
        for task, report in _samples(study):
            groups.setdefault((study.source, study.split, task), Group()).add_sample(study, task, report)
    check_has_samples(studies, path)
    return Statistics(studies, groups)


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
