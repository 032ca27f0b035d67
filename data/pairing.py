"""Samples out of an archive's studies, by the rules of the paper (004, B.1)."""

from __future__ import annotations

import hashlib
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Literal

from data.archive import Archive, ArchiveStudy, Radiograph
from data.manifest import Failure
from data.study import Study
from radfact.errors import InputError, suggest_name

SampleMaker = Callable[[frozenset[str]], "Samples"]
"""Makes samples as if an archive did not have the radiographs with these keys."""
Priors = Literal["every", "one", "none"]
"""Of the prior study's frontal radiographs: every one, each a sample of its own; one at random; or no prior at all."""
_Shown = tuple[Radiograph, Radiograph | None, Radiograph | None]
"""The frontal, lateral and prior radiograph of a sample."""
SPLITS = ("train", "validate", "test")
UNREADABLE = "no frontal radiograph that can be read"
"""Why a sample is left out whose frontal radiograph could not be converted."""


@dataclass(frozen=True)
class Rules:
    """How samples are made.

    Attributes:
        seed: of every choice at random. Each choice depends on it and on the sample's own study alone, so that other
            studies in the archive change nothing.
        train_priors: at training time; "every" is the paper's rule for MIMIC-CXR, "one" that for PadChest.
        priors: in every other split, and where an archive has none.
        shares: of the splits that patients are drawn into by chance; None keeps the archive's own.
        splits: those that samples are made of; None for all.
        takes_unreported: make samples of studies without any report too, to draft reports for.
    """

    seed: int = 0
    train_priors: Priors = "one"
    priors: Priors = "one"
    shares: Mapping[str, float] | None = None
    splits: Sequence[str] | None = None
    takes_unreported: bool = False

    def split_of(self, own: str | None, unit: str) -> str | None:
        """The split of a study: its own, or drawn for what must not be torn, which is its patient where known."""
        if self.shares is None:
            return own
        draw = _draw(self.seed, "split", unit)
        (split,) = draw.choices(list(self.shares), list(self.shares.values()))
        return split

    def wants(self, split: str | None) -> bool:
        """Whether samples are made of this split."""
        return self.splits is None or split in self.splits

    def check_wanted(self, there: Iterable[str | None]) -> None:
        """Refuse to make samples of a split that no study is in.

        Raises:
            InputError: names the split, and those there are.
        """
        known = sorted({split for split in there if split is not None})
        for split in self.splits or ():
            if split not in known:
                hint = suggest_name(split, known, f"there are {', '.join(known) or 'none'}")
                raise InputError(f"no study is in the split '{split}'; {hint}")


@dataclass(frozen=True)
class Samples:
    """Samples with the radiographs they show.

    Attributes:
        studies: images are where the PNGs of their radiographs belong, relative to the manifest's folder.
        radiographs: by that path.
        left_out: studies that give no sample, and why.
    """

    studies: list[Study]
    radiographs: dict[Path, Radiograph]
    left_out: list[Failure] = field(default_factory=list)


def png_path(radiograph: Radiograph) -> Path:
    """Where the PNG of a radiograph lies below the manifest's folder; 256 folders, since archives have 400,000 radiographs."""
    return Path("images") / hashlib.sha256(radiograph.key.encode()).hexdigest()[:2] / f"{radiograph.key}.png"


def make_samples(archive: Archive, rules: Rules, without: frozenset[str] = frozenset()) -> Samples:
    """The samples of an archive: each frontal its own, one lateral, and the prior study's frontal and report.

    The prior study is the patient's last one before this that has a report and a frontal radiograph. A study at the same
    moment is none before it.

    Args:
        archive: as read.
        rules: of the draw.
        without: keys of radiographs that cannot be used; samples are made as if the archive did not have them.

    Raises:
        InputError: two studies or two radiographs have the same name, a study with boxes has several frontal radiographs, or a
            patient is in two splits; or no study is in a split that is wanted.
    """
    studies = [_without(study, without) for study in archive.studies]
    if rules.shares is not None:
        studies = [replace(s, split=rules.split_of(s.split, s.patient_id or s.study_id)) for s in studies]
    check_splits(studies)
    rules.check_wanted(study.split for study in studies)
    priors = _prior_studies(studies)
    cut = {
        study.study_id
        for study, whole in zip(studies, archive.studies, strict=True)
        if study.radiographs != whole.radiographs
    }
    made = Samples([], {})
    seen: set[str] = set()
    names: dict[str, Radiograph] = {}
    for study in studies:
        if study.study_id in seen:
            raise InputError(f"the archive has two studies '{study.study_id}'")
        seen.add(study.study_id)
        for radiograph in study.radiographs:
            if names.setdefault(radiograph.key, radiograph) != radiograph:
                raise InputError(f"the archive has two radiographs '{radiograph.key}'")
        if study.only_prior or not rules.wants(study.split):
            continue
        if (study.grounded_findings or study.phrases) and len(_radiographs(study, "frontal")) > 1:
            raise InputError(
                f"study '{study.study_id}' has boxes and several frontal radiographs; they belong to one of them"
            )
        if reason := _lack(study, rules, is_cut=study.study_id in cut):
            made.left_out.append(Failure(source=study.study_id, stage="select", reason=reason))
            continue
        pairs = list(_pairs(study, priors.get(study.study_id), rules))
        for sample_id, shown in zip(_sample_ids(study, pairs), pairs, strict=True):
            made.radiographs.update(
                {png_path(radiograph): radiograph for radiograph in shown if radiograph is not None}
            )
            before = priors.get(study.study_id) if shown[2] else None
            made.studies.append(_sample(archive.source, study, sample_id, shown, before))
    return made


def _sample_ids(study: ArchiveStudy, pairs: Sequence[_Shown]) -> list[str]:
    """The study's name, or those it gives to its frontal radiographs; numbered from 1 where several samples share one."""
    names = [study.study_id if study.sample_ids is None else study.sample_ids[pair[0].key] for pair in pairs]
    times, counts = Counter(names), Counter[str]()
    numbered = []
    for name in names:
        counts[name] += 1
        numbered.append(name if times[name] == 1 else f"{name}-{counts[name]}")
    return numbered


def check_splits(studies: Iterable[ArchiveStudy | Study]) -> None:
    """Refuse studies of one patient in different splits: what a model has learnt of a patient is no test of it.

    Raises:
        InputError: names such patients.
    """
    splits: defaultdict[str, set[str]] = defaultdict(set)
    for study in studies:
        if study.patient_id is not None and study.split is not None:
            splits[study.patient_id].add(study.split)
    torn = {patient: found for patient, found in splits.items() if len(found) > 1}
    if torn:
        patient, found = next(iter(torn.items()))
        more = f", and so are {len(torn) - 1} more" if len(torn) > 1 else ""
        raise InputError(
            f"patient '{patient}' is in more than one split ({' and '.join(sorted(found))}){more}; "
            "a split must be by patient"
        )


def _draw(seed: int, *names: str) -> random.Random:
    return random.Random("\0".join([str(seed), *names]))


def _without(study: ArchiveStudy, keys: frozenset[str]) -> ArchiveStudy:
    if keys.isdisjoint(radiograph.key for radiograph in study.radiographs):
        return study
    return replace(
        study, radiographs=tuple(radiograph for radiograph in study.radiographs if radiograph.key not in keys)
    )


def _lack(study: ArchiveStudy, rules: Rules, *, is_cut: bool) -> str | None:
    """Why a study gives no sample; it `is_cut` if radiographs of it could not be used."""
    is_reported = study.findings is not None or study.grounded_findings is not None or study.phrases is not None
    if not is_reported and not rules.takes_unreported:
        return "no findings section"
    if _radiographs(study, "frontal"):
        return None
    return UNREADABLE if is_cut else "no frontal radiograph"


def _radiographs(study: ArchiveStudy, view: str) -> list[Radiograph]:
    return [radiograph for radiograph in study.radiographs if radiograph.view == view]


def _prior_studies(studies: Sequence[ArchiveStudy]) -> dict[str, ArchiveStudy]:
    """By study, the patient's last one before it that can be shown as its prior."""
    of_patient: defaultdict[str, list[ArchiveStudy]] = defaultdict(list)
    for study in studies:
        if study.patient_id is not None and study.when is not None:
            of_patient[study.patient_id].append(study)
    priors: dict[str, ArchiveStudy] = {}
    for history in of_patient.values():
        history.sort(key=lambda study: study.when)
        last: ArchiveStudy | None = None
        for _, moment in groupby(history, lambda study: study.when):
            together = list(moment)
            if last is not None:
                priors |= {study.study_id: last for study in together}
            last = next((s for s in reversed(together) if s.report is not None and _radiographs(s, "frontal")), last)
    return priors


def _pairs(study: ArchiveStudy, prior: ArchiveStudy | None, rules: Rules) -> Iterator[_Shown]:
    """(frontal, lateral, prior frontal) of each sample of a study."""
    laterals = _radiographs(study, "lateral")
    choice = rules.train_priors if study.split == "train" else rules.priors
    before = _radiographs(prior, "frontal") if prior is not None and choice != "none" else []
    for frontal in _radiographs(study, "frontal"):
        draw = _draw(rules.seed, study.study_id, frontal.key)
        lateral = draw.choice(laterals) if laterals else None
        shown: list[Radiograph | None] = [*before] if choice == "every" else [draw.choice(before)] if before else []
        for prior_radiograph in shown or [None]:
            yield frontal, lateral, prior_radiograph


def _sample(
    source: str,
    study: ArchiveStudy,
    sample_id: str,
    shown: _Shown,
    prior: ArchiveStudy | None,
) -> Study:
    frontal, lateral, prior_radiograph = shown
    return Study(
        sample_id=sample_id,
        study_id=study.study_id,
        patient_id=study.patient_id,
        frontal=png_path(frontal),
        lateral=png_path(lateral) if lateral else None,
        prior_frontal=png_path(prior_radiograph) if prior_radiograph else None,
        prior_report=prior.report if prior else None,
        indication=study.indication,
        technique=study.technique,
        comparison=study.comparison,
        findings=study.findings,
        grounded_findings=list(study.grounded_findings) if study.grounded_findings else None,
        phrases=list(study.phrases) if study.phrases else None,
        split=study.split,
        source=source,
        labels=list(study.labels) if study.labels is not None else None,
    )
