"""Make samples of an archive's studies by the rules of MAIRA-2 (appendix B.1)."""

from __future__ import annotations

import hashlib
import random
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

from maira.data.archive import Archive, ArchiveStudy, Radiograph
from maira.data.manifest import Failure
from maira.data.study import IMAGE_COLUMNS, Study
from radfact.errors import ErrorCode, InputError, suggest_name

SampleMaker = Callable[[frozenset[str]], "Samples"]
"""Makes samples as if the archive did not have the radiographs with the given keys."""
Priors = Literal["every", "one", "none"]
"""Which frontal radiographs of the prior study to use: each in a separate sample, one at random, or none."""
_Images = tuple[Radiograph, Radiograph | None, Radiograph | None]
"""The frontal, lateral and prior radiograph of a sample."""
SPLITS = ("train", "validate", "test")
SHARED_FIELDS = (
    *("study_id", "patient_id", "indication", "technique", "comparison", "findings", "grounded_findings", "phrases"),
    *("labels", "split"),
)
"""Fields that samples have from their study."""
UNREADABLE = "no frontal radiograph that can be read"
"""Reason for skipping a sample whose frontal radiograph cannot be converted."""


@dataclass(frozen=True)
class Rules:
    """How samples are made."""

    # Each random choice depends on the seed and the sample's own study only, so other studies do not change it.
    seed: int = 0
    train_priors: Priors = "one"  # of training samples; MAIRA-2 uses "every" for MIMIC-CXR and "one" for PadChest
    priors: Priors = "one"  # in the other splits, and in archives without a split
    shares: Mapping[str, float] | None = None  # of patients by split, for a random split; None keeps the archive's
    splits: Sequence[str] | None = None  # splits to make samples of; None for all
    include_unreported: bool = False  # also make samples of studies without a report, to draft reports for

    def split_of(self, own: str | None, unit: str) -> str | None:
        """Return the split of a study."""
        if self.shares is None:
            return own
        (split,) = _rng(self.seed, "split", unit).choices(list(self.shares), list(self.shares.values()))
        return split

    def includes(self, split: str | None) -> bool:
        """Return whether samples are made of this split."""
        return self.splits is None or split in self.splits

    def check_requested_splits(self, existing: Iterable[str | None]) -> None:
        """Check that every requested split exists."""
        known = sorted({split for split in existing if split is not None})
        for split in self.splits or ():
            if split not in known:
                hint = suggest_name(split, known, f"available: {', '.join(known) or 'none'}")
                raise InputError(f"no study is in the split '{split}'; {hint}", code=ErrorCode.UNKNOWN_NAME)


@dataclass(frozen=True)
class Samples:
    """Samples, the radiographs they show by PNG path, and the studies that give no sample, with the reason."""

    studies: list[Study]
    radiographs: dict[Path, Radiograph]
    skipped: list[Failure] = field(default_factory=list)


def png_path(radiograph: Radiograph) -> Path:
    """Return the PNG path below the manifest's folder, in 256 subfolders since archives have 400,000 radiographs."""
    return Path("images") / hashlib.sha256(radiograph.key.encode()).hexdigest()[:2] / f"{radiograph.key}.png"


def make_samples(archive: Archive, rules: Rules, without: frozenset[str] = frozenset()) -> Samples:
    """Make one sample per frontal, with one lateral and the frontal and report of the prior study.

    The prior study is the patient's last study of an earlier time that has a report and a frontal radiograph.
    """
    studies = [
        replace(
            study,
            split=rules.split_of(study.split, study.patient_id or study.study_id),
            radiographs=tuple(radiograph for radiograph in study.radiographs if radiograph.key not in without),
        )
        for study in archive.studies
    ]
    _check_names(studies)
    check_patient_splits(studies)
    rules.check_requested_splits(study.split for study in studies)
    priors = _prior_studies(studies)
    samples = Samples([], {})
    for study, original in zip(studies, archive.studies, strict=True):
        if study.is_prior_only or not rules.includes(study.split):
            continue
        frontals = _radiographs(study, "frontal")
        if (study.grounded_findings or study.phrases) and len(frontals) > 1:
            message = f"study '{study.study_id}' has boxes: expected one frontal radiograph, found several"
            raise InputError(message, code=ErrorCode.MISMATCH)
        is_reported = study.findings is not None or study.grounded_findings is not None or study.phrases is not None
        reason = None if is_reported or rules.include_unreported else "no findings section"
        if reason is None and not frontals:
            reason = UNREADABLE if _radiographs(original, "frontal") else "no frontal radiograph"
        if reason is not None:
            samples.skipped.append(Failure(source=study.study_id, stage="select", reason=reason))
            continue
        prior = priors.get(study.study_id)
        combinations = list(_image_combinations(study, prior, rules))
        for sample_id, images in zip(_sample_ids(study, combinations), combinations, strict=True):
            samples.radiographs.update({png_path(image): image for image in images if image is not None})
            samples.studies.append(_sample(archive.source, study, sample_id, images, prior if images[2] else None))
    return samples


def _check_names(studies: Iterable[ArchiveStudy]) -> None:
    study_ids: set[str] = set()
    names: dict[str, Radiograph] = {}
    for study in studies:
        if study.study_id in study_ids:
            raise InputError(f"duplicate study '{study.study_id}' in the archive", code=ErrorCode.DUPLICATE)
        study_ids.add(study.study_id)
        for radiograph in study.radiographs:
            if names.setdefault(radiograph.key, radiograph) != radiograph:
                raise InputError(f"duplicate radiograph '{radiograph.key}' in the archive", code=ErrorCode.DUPLICATE)


def _sample_ids(study: ArchiveStudy, combinations: Sequence[_Images]) -> list[str]:
    """Return the study's id, or the ids of its frontal radiographs, numbered from 1 if several samples share one."""
    names = [study.study_id if study.sample_ids is None else study.sample_ids[images[0].key] for images in combinations]
    numbers = {name: count(1) for name in names}
    return [name if names.count(name) == 1 else f"{name}-{next(numbers[name])}" for name in names]


def check_patient_splits(studies: Iterable[ArchiveStudy | Study]) -> None:
    """Check that no patient is in two splits, so that test patients are unknown to the model."""
    splits: defaultdict[str, set[str]] = defaultdict(set)
    for study in studies:
        if study.patient_id is not None and study.split is not None:
            splits[study.patient_id].add(study.split)
    if divided := [(patient, names) for patient, names in splits.items() if len(names) > 1]:
        patient, names = divided[0]
        more = f" and {len(divided) - 1} more patients" if len(divided) > 1 else ""
        message = f"patient '{patient}'{more} in more than one split ({', '.join(sorted(names))}); split by patient"
        raise InputError(message, code=ErrorCode.MISMATCH)


def _rng(seed: int, *names: str) -> random.Random:
    return random.Random("\0".join([str(seed), *names]))


def _radiographs(study: ArchiveStudy, view: str) -> list[Radiograph]:
    return [radiograph for radiograph in study.radiographs if radiograph.view == view]


def _prior_studies(studies: Sequence[ArchiveStudy]) -> dict[str, ArchiveStudy]:
    """Return the prior study by study id."""
    of_patient: defaultdict[str, list[ArchiveStudy]] = defaultdict(list)
    for study in studies:
        if study.patient_id is not None and study.timestamp is not None:
            of_patient[study.patient_id].append(study)
    priors: dict[str, ArchiveStudy] = {}
    timestamp = attrgetter("timestamp")
    for history in of_patient.values():
        usable = [study for study in history if study.report is not None and _radiographs(study, "frontal")]
        usable.sort(key=timestamp)
        for study in history:
            if earlier := bisect_left(usable, study.timestamp, key=timestamp):
                priors[study.study_id] = usable[earlier - 1]
    return priors


def _image_combinations(study: ArchiveStudy, prior: ArchiveStudy | None, rules: Rules) -> Iterator[_Images]:
    """Yield (frontal, lateral, prior frontal) of each sample of a study."""
    laterals = _radiographs(study, "lateral")
    choice = rules.train_priors if study.split == "train" else rules.priors
    prior_frontals = [*_radiographs(prior, "frontal")] if prior is not None and choice != "none" else [None]
    for frontal in _radiographs(study, "frontal"):
        rng = _rng(rules.seed, study.study_id, frontal.key)
        lateral = rng.choice(laterals) if laterals else None
        chosen = prior_frontals if choice == "every" else [rng.choice(prior_frontals)]
        yield from ((frontal, lateral, prior_frontal) for prior_frontal in chosen)


def _sample(source: str, study: ArchiveStudy, sample_id: str, images: _Images, prior: ArchiveStudy | None) -> Study:
    paths = {column: png_path(image) if image else None for column, image in zip(IMAGE_COLUMNS, images, strict=True)}
    shared: dict[str, Any] = {name: getattr(study, name) for name in SHARED_FIELDS}
    report = prior.report if prior else None
    return Study.model_validate({"sample_id": sample_id, "source": source, "prior_report": report, **paths, **shared})
