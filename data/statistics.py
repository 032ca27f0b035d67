"""What is in a manifest, as table 1 of the paper (004) has it: patients, samples, laterals, priors, and the reports."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

from data.manifest import parse_study
from data.pairing import SPLITS
from data.study import Study
from radfact.errors import check_unique_id
from radfact.io.jsonl import parse_rows, read_lines
from radfact.judges.offline.segments import sentences_of
from radfact.records import Sentence

Task = Literal["FindGen", "GroundRep", "PhraseGround"]
Column = Literal["source", "split", "task"]
COLUMNS: tuple[Column, ...] = ("source", "split", "task")

ARCHIVE_OF = {"mimic-cxr-jpg": "mimic-cxr", "ms-cxr": "mimic-cxr", "padchest-gr": "padchest"}
"""Sources that are parts of another archive: they have its patients, who count once where the two are summed."""

_CHUNK = 4000
# Below this the processes take longer to start than they save.
_WORTH_PROCESSES = 20 * 2**20


@dataclass
class Group:
    """Sums over samples.

    A sample is a study with a narrative (FindGen), one with a grounded report (GroundRep), or one phrase
    (PhraseGround). A study with several of these counts in each. Of phrases the model sees the frontal image alone, so
    they have neither lateral nor prior, as in table 1. A study without any answer is a sample without task.

    Attributes:
        key: (source, split, task), None where it is not known, or where the group is not made by it.
        patients: (archive, patient) of those that are known.
        strangers: (archive, study) of those whose patient is not known.
        samples, laterals, priors: samples in all, with a lateral image, and with prior image and prior report.
        words, sentences: of the reports or phrases.
        grounded: sentences of grounded reports, and phrases; those that could have boxes.
        located: those of them that have boxes or masks on the frontal image.
        boxes: boxes and masks of these.
    """

    key: tuple[str | None, ...] = ()
    patients: set[tuple[str | None, str]] = field(default_factory=set)
    strangers: set[tuple[str | None, str]] = field(default_factory=set)
    samples: int = 0
    laterals: int = 0
    priors: int = 0
    words: int = 0
    sentences: int = 0
    grounded: int = 0
    located: int = 0
    boxes: int = 0

    def add(self, other: Group) -> None:
        """Add the sums of another group to these."""
        self.patients |= other.patients
        self.strangers |= other.strangers
        for name in ("samples", "laterals", "priors", "words", "sentences", "grounded", "located", "boxes"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def figures(self, of_all: int) -> dict[str, Any]:
        """The group as `maira stats` writes it: shares from 0 to 1, means, null where there is nothing to divide by.

        Args:
            of_all: samples that the group's share is of.
        """
        return {
            "patients": len(self.patients),
            "studies_of_unknown_patients": len(self.strangers),
            "samples": self.samples,
            "share": _ratio(self.samples, of_all),
            "has_lateral": _ratio(self.laterals, self.samples),
            "has_prior": _ratio(self.priors, self.samples),
            "words_a_report": _ratio(self.words, self.samples),
            "sentences_a_report": _ratio(self.sentences, self.samples),
            "sentences_with_boxes": _ratio(self.located, self.grounded),
            "boxes_a_located_sentence": _ratio(self.boxes, self.located),
        }


@dataclass(frozen=True)
class Statistics:
    """Groups by source, split and task.

    Attributes:
        studies: lines of the manifest.
        groups: each with its samples; together all of them.
    """

    studies: int
    groups: list[Group]

    def by(self, columns: Sequence[Column]) -> list[Group]:
        """The groups summed over every column but these."""
        at = [COLUMNS.index(column) for column in columns]
        summed: dict[tuple[str | None, ...], Group] = {}
        for group in self.groups:
            key = tuple(group.key[i] for i in at)
            summed.setdefault(key, Group(key)).add(group)
        # As table 1 is read: a source with its splits one below the other, the training split first.
        known: list[list[str | None]] = [list(dict.fromkeys(group.key[i] for group in self.groups)) for i in at]
        for i, column in enumerate(columns):
            if column == "split":
                known[i].sort(key=lambda split: SPLITS.index(split) if split in SPLITS else len(SPLITS))
        return sorted(summed.values(), key=lambda g: [values.index(k) for values, k in zip(known, g.key, strict=True)])

    def total(self) -> Group:
        """All groups as one."""
        total = Group()
        for group in self.groups:
            total.add(group)
        return total

    def figures(self, columns: Sequence[Column] = COLUMNS) -> list[dict[str, Any]]:
        """Figures of the groups of `by`; a group's share is of the samples of its split, as in table 1, or of all."""
        in_all = sum(group.samples for group in self.groups)
        of_split = {group.key[0]: group.samples for group in self.by(["split"])}
        at = columns.index("split") if "split" in columns else None
        return [g.figures(in_all if at is None else of_split[g.key[at]]) for g in self.by(columns)]

    def as_json(self, columns: Sequence[Column] = COLUMNS) -> dict[str, Any]:
        """The groups of `by` and their total as JSON."""
        total = self.total()
        named = [dict(zip(columns, group.key, strict=True)) for group in self.by(columns)]
        groups = [names | figures for names, figures in zip(named, self.figures(columns), strict=True)]
        return {"studies": self.studies, "groups": groups, "total": total.figures(total.samples)}


def manifest_statistics(path: Path | str, workers: int | None = None) -> Statistics:
    """Count what is in a manifest; no image is opened.

    Sentences of a narrative are those that it was written in, numbered lists and line wraps understood.

    Args:
        path: `manifest.jsonl`.
        workers: processes; None for as many as there are processors, and for one where the file is small.

    Raises:
        InputError: the file cannot be read, a line is not a study, or a `sample_id` occurs twice.
    """
    path = Path(path)
    if workers is None:
        small = not path.is_file() or path.stat().st_size < _WORTH_PROCESSES
        workers = 1 if small else os.cpu_count() or 1
    groups: dict[tuple[str | None, ...], Group] = {}
    line_of: dict[str, int] = {}
    for ids, counted in _in_order(_chunks(path), path, workers):
        for line, sample_id in ids:
            check_unique_id(line_of, sample_id, line, file=path)
        for group in counted:
            groups.setdefault(group.key, Group(group.key)).add(group)
    return Statistics(len(line_of), list(groups.values()))


_Chunk = tuple[int, list[str]]
_Counted = tuple[list[tuple[int, str]], list[Group]]


def _chunks(path: Path) -> Iterator[_Chunk]:
    lines, first = read_lines(path), 1
    while chunk := list(islice(lines, _CHUNK)):
        yield first, chunk
        first += len(chunk)


def _in_order(chunks: Iterable[_Chunk], path: Path, workers: int) -> Iterator[_Counted]:
    if workers == 1:
        yield from (_count(path, *chunk) for chunk in chunks)
        return
    flying: deque[Future[_Counted]] = deque()
    # Not forked: the parent may have threads, whose locks a fork would copy.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for chunk in chunks:
            flying.append(pool.submit(_count, path, *chunk))
            # The chunks in flight bound the memory.
            if len(flying) > 2 * workers:
                yield flying.popleft().result()
        while flying:
            yield flying.popleft().result()


def _count(path: Path, first: int, lines: Sequence[str]) -> _Counted:
    """(line, sample_id) of some lines of a manifest, and their groups."""
    ids: list[tuple[int, str]] = []
    groups: dict[tuple[str | None, ...], Group] = {}
    for line, row in parse_rows(lines, path, first):
        study = parse_study(row, path.parent, file=path, line=line)
        ids.append((line, study.sample_id))
        for task, sentences in _samples(study):
            key = (study.source, study.split, task)
            _add(groups.setdefault(key, Group(key)), study, task, sentences)
    return ids, list(groups.values())


def _samples(study: Study) -> Iterator[tuple[Task | None, Sequence[Sentence] | str]]:
    """Task and answer of each sample that a study is."""
    if study.findings is not None:
        yield "FindGen", study.findings
    if study.grounded_findings is not None:
        yield "GroundRep", study.grounded_findings
    for phrase in study.phrases or ():
        yield "PhraseGround", [phrase]
    if study.findings is None and study.grounded_findings is None and study.phrases is None:
        yield None, []


def _add(group: Group, study: Study, task: Task | None, answer: Sequence[Sentence] | str) -> None:
    archive = ARCHIVE_OF.get(study.source, study.source) if study.source else None
    if study.patient_id is not None:
        group.patients.add((archive, study.patient_id))
    else:
        group.strangers.add((archive, study.study_id or study.sample_id))
    group.samples += 1
    if task != "PhraseGround":
        group.laterals += study.lateral is not None
        group.priors += study.prior_frontal is not None and study.prior_report is not None
    if isinstance(answer, str):
        group.words += len(answer.split())
        group.sentences += sum(1 for _ in sentences_of(answer))
        return
    group.sentences += len(answer)
    group.grounded += len(answer)
    for sentence in answer:
        group.words += len(sentence.text.split())
        group.located += sentence.has_region
        group.boxes += len(sentence.boxes or ()) + len(sentence.masks or ())


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
