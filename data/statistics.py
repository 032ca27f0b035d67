"""Statistics of a manifest as in MAIRA-2, table 1: patients, samples, laterals, priors and reports."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from maira.data.manifest import check_has_samples, parse_study
from maira.data.pairing import SPLITS
from maira.data.processes import process_pool
from maira.data.study import Study
from radfact.errors import check_unique_id
from radfact.io.jsonl import parse_rows, read_lines
from radfact.reader.segmentation import segment_sentences
from radfact.records import Sentence

Task = Literal["FindGen", "GroundRep", "PhraseGround"]
Column = Literal["source", "split", "task"]
COLUMNS: tuple[Column, ...] = ("source", "split", "task")

ARCHIVE_OF = {"mimic-cxr-jpg": "mimic-cxr", "ms-cxr": "mimic-cxr", "padchest-gr": "padchest"}
"""Sources that share the patients of another archive; a patient counts once in the sum of both."""

_CHUNK_LINES = 4000
# For smaller files, starting processes takes longer than it saves.
_MIN_PARALLEL_BYTES = 20 * 2**20


@dataclass
class Group:
    """Sums over samples.

    A sample is a study with a narrative (FindGen), a study with a grounded report (GroundRep), or one phrase
    (PhraseGround). A study with several of these counts in each. Phrases have neither lateral nor prior, since the
    model sees only the frontal image. A study without a reference report is a sample without task.

    Attributes:
        key: values of the grouping columns; None if unknown.
        patients: (archive, patient) of known patients.
        unidentified_studies: (archive, study) of studies whose patient is unknown.
        counts: samples, laterals, priors (image and report), words and sentences of the reports or phrases, groundable
            sentences (of grounded reports, and phrases), those located by boxes or masks on the frontal image, and the
            boxes and masks of these.
    """

    key: tuple[str | None, ...] = ()
    patients: set[tuple[str | None, str]] = field(default_factory=set)
    unidentified_studies: set[tuple[str | None, str]] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def samples(self) -> int:
        """Number of samples."""
        return self.counts["samples"]

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
        return {
            "patients": len(self.patients),
            "studies_of_unknown_patients": len(self.unidentified_studies),
            "samples": self.samples,
            "share": _ratio(self.samples, total),
            "has_lateral": _ratio(count["laterals"], self.samples),
            "has_prior": _ratio(count["priors"], self.samples),
            "words_a_report": _ratio(count["words"], self.samples),
            "sentences_a_report": _ratio(count["sentences"], self.samples),
            "sentences_with_boxes": _ratio(count["located"], count["groundable"]),
            "boxes_a_located_sentence": _ratio(count["boxes"], count["located"]),
        }


@dataclass(frozen=True)
class Statistics:
    """Number of studies in a manifest, and one group of samples per source, split and task."""

    studies: int
    groups: list[Group]

    def group_by(self, columns: Sequence[Column]) -> list[Group]:
        """Sum the groups by the given columns, in the order of table 1: sources as in the manifest, train first."""
        indices = [COLUMNS.index(column) for column in columns]
        sums: dict[tuple[str | None, ...], Group] = {}
        for group in self.groups:
            key = tuple(group.key[i] for i in indices)
            sums.setdefault(key, Group(key)).add(group)
        order: list[list[str | None]] = [list(dict.fromkeys(group.key[i] for group in self.groups)) for i in indices]
        for i, column in enumerate(columns):
            if column == "split":
                order[i].sort(key=lambda split: SPLITS.index(split) if split in SPLITS else len(SPLITS))
        return sorted(sums.values(), key=lambda g: [values.index(k) for values, k in zip(order, g.key, strict=True)])

    def total(self) -> Group:
        """Sum all groups."""
        return next(iter(self.group_by([])), Group())

    def rows(self, columns: Sequence[Column] = COLUMNS) -> list[dict[str, Any]]:
        """Return `Group.as_json` of each group; `share` is of the split's samples if split is a column, else of all."""
        by_split = {group.key[0]: group.samples for group in self.group_by(["split"])}
        index = columns.index("split") if "split" in columns else None
        total = self.total().samples
        return [g.as_json(total if index is None else by_split[g.key[index]]) for g in self.group_by(columns)]

    def as_json(self, columns: Sequence[Column] = COLUMNS) -> dict[str, Any]:
        """Return the groups by the given columns, and their total."""
        total = self.total()
        keys = [dict(zip(columns, group.key, strict=True)) for group in self.group_by(columns)]
        groups = [key | row for key, row in zip(keys, self.rows(columns), strict=True)]
        return {"studies": self.studies, "groups": groups, "total": total.as_json(total.samples)}


def manifest_statistics(path: Path | str, workers: int | None = None) -> Statistics:
    """Compute the statistics of a manifest. Images are not opened."""
    path = Path(path)
    if workers is None:
        is_small = not path.is_file() or path.stat().st_size < _MIN_PARALLEL_BYTES
        workers = 1 if is_small else os.cpu_count() or 1
    groups: dict[tuple[str | None, ...], Group] = {}
    line_of: dict[str, int] = {}
    for ids, chunk_groups in _count_chunks(path, workers):
        for line, sample_id in ids:
            check_unique_id(line_of, sample_id, line, file=path)
        for group in chunk_groups:
            groups.setdefault(group.key, Group(group.key)).add(group)
    check_has_samples(len(line_of), path)
    return Statistics(len(line_of), list(groups.values()))


_ChunkCounts = tuple[list[tuple[int, str]], list[Group]]


def _chunks(path: Path) -> Iterator[tuple[int, list[str]]]:
    lines, first = read_lines(path), 1
    while chunk := list(islice(lines, _CHUNK_LINES)):
        yield first, chunk
        first += len(chunk)


def _count_chunks(path: Path, workers: int) -> Iterator[_ChunkCounts]:
    if workers == 1:
        yield from (_count(path, *chunk) for chunk in _chunks(path))
        return
    in_flight: deque[Future[_ChunkCounts]] = deque()
    with process_pool(workers) as pool:
        for chunk in _chunks(path):
            in_flight.append(pool.submit(_count, path, *chunk))
            # The chunks in flight bound the memory.
            if len(in_flight) > 2 * workers:
                yield in_flight.popleft().result()
        while in_flight:
            yield in_flight.popleft().result()


def _count(path: Path, first: int, lines: Sequence[str]) -> _ChunkCounts:
    """Return (line, sample_id) of some lines of a manifest, and their groups."""
    ids: list[tuple[int, str]] = []
    groups: dict[tuple[str | None, ...], Group] = {}
    for line, row in parse_rows(lines, path, first):
        study = parse_study(row, path.parent, file=path, line=line)
        ids.append((line, study.sample_id))
        for task, sentences in _samples(study):
            key = (study.source, study.split, task)
            groups.setdefault(key, Group(key)).add_sample(study, task, sentences)
    return ids, list(groups.values())


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
