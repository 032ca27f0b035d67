"""Statistics of a manifest as in MAIRA-2, table 1: patients, samples, laterals, priors and reports."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from maira.data.manifest import check_has_samples, iter_manifest
from maira.data.pairing import SPLITS
from maira.data.study import Study
from radfact.reader.segmentation import segment_sentences
from radfact.records import Sentence

COLUMNS = ("source", "split", "task")
_Group = tuple[str | None, ...]
"""Values of some of the columns."""

ARCHIVE_OF = {"mimic-cxr-jpg": "mimic-cxr", "ms-cxr": "mimic-cxr", "padchest-gr": "padchest"}
"""Sources that share the patients of another archive; a patient counts once in the sum of both."""


def manifest_statistics(path: Path | str, columns: Sequence[str] = COLUMNS) -> dict[str, Any]:
    """Return the number of studies in a manifest, its samples grouped by columns, and their total."""
    counts_of: defaultdict[_Group | None, Counter[str]] = defaultdict(Counter)
    # Patients, and studies of unknown patients, each with its archive.
    units_of: defaultdict[tuple[_Group | None, bool], set[tuple[str | None, str]]] = defaultdict(set)
    splits = Counter[str | None]()
    # Places of the values of each column, in the order of table 1.
    places: dict[str, dict[str | None, int]] = {column: {} for column in COLUMNS}
    places["split"] = {split: place for place, split in enumerate(SPLITS)}
    studies = 0
    for study in iter_manifest(path):
        studies += 1
        unit = ARCHIVE_OF.get(study.source or "", study.source), study.patient_id or study.study_id or study.sample_id
        for task, counts in _samples(study):
            value_of = {"source": study.source, "split": study.split, "task": task}
            for column, value in value_of.items():
                places[column].setdefault(value, len(places[column]))
            for group in (None, tuple(value_of[column] for column in columns)):
                counts_of[group].update(counts, samples=1)
                units_of[group, study.patient_id is not None].add(unit)
            splits[study.split] += 1
    check_has_samples(studies, path)

    def describe(group: _Group | None, whole: int) -> dict[str, Any]:
        """Return counts, shares (0 to 1; `share` of `whole` samples) and means; null for a division by zero."""
        count = counts_of[group]
        samples = count["samples"]
        return {
            "patients": len(units_of[group, True]),
            "studies_of_unknown_patients": len(units_of[group, False]),
            "samples": samples,
            "share": _ratio(samples, whole),
            "has_lateral": _ratio(count["laterals"], samples),
            "has_prior": _ratio(count["priors"], samples),
            "words_a_report": _ratio(count["words"], samples),
            "sentences_a_report": _ratio(count["sentences"], samples),
            "sentences_with_boxes": _ratio(count["located"], count["groundable"]),
            "boxes_a_located_sentence": _ratio(count["boxes"], count["located"]),
        }

    size, rows = splits.total(), []
    groups = (group for group in counts_of if group is not None)
    for group in sorted(groups, key=lambda group: [places[c][value] for c, value in zip(columns, group, strict=True)]):
        row = dict(zip(columns, group, strict=True))
        rows.append(row | describe(group, splits[row["split"]] if "split" in row else size))
    return {"studies": studies, "groups": rows, "total": describe(None, size)}


def _samples(study: Study) -> Iterator[tuple[str | None, dict[str, int]]]:
    """Yield the task of each sample in a study, and what it adds to the counts of a group."""
    has_prior = study.prior_frontal is not None and study.prior_report is not None
    images: dict[str, int] = {"laterals": study.lateral is not None, "priors": has_prior}
    if (text := study.findings) is not None:
        yield "FindGen", images | {"words": len(text.split()), "sentences": sum(1 for _ in segment_sentences(text))}
    if study.grounded_findings is not None:
        yield "GroundRep", images | _counts(study.grounded_findings)
    for phrase in study.phrases or ():
        yield "PhraseGround", _counts([phrase])
    if study.findings is None and study.grounded_findings is None and study.phrases is None:
        yield None, images


def _counts(report: Sequence[Sentence]) -> dict[str, int]:
    return {
        "words": sum(len(sentence.text.split()) for sentence in report),
        "sentences": len(report),
        "groundable": len(report),
        "located": sum(sentence.has_region for sentence in report),
        "boxes": sum(len(sentence.boxes or ()) + len(sentence.masks or ()) for sentence in report),
    }


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
