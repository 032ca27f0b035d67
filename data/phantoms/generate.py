"""Generate phantom studies (images, report, boxes, labels) from a seed, with a manifest."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from maira.data.images import CropMap
from maira.data.manifest import PREPARATION_RECORD, open_run_folder, write_manifest
from maira.data.phantoms.anatomy import draw_anatomy
from maira.data.phantoms.dictate import Dictated, dictate, dictate_indication
from maira.data.phantoms.findings import Finding, apply_to, draw_findings, draw_prior, rectangles
from maira.data.phantoms.render import render_frontal, render_lateral
from maira.data.processes import process_pool
from maira.data.study import IMAGE_COLUMNS, Label, Study
from radfact.errors import ErrorCode, InputError
from radfact.records import Box, Sentence

LATERAL_SHARE = 0.2
PRIOR_SHARE = 0.25
ASPECTS = (1.0, 1.0, 0.9, 1.08)
"""Width over height of the radiographs; real radiographs are rarely square."""
_NEGATIONS = re.compile(r"No pleural effusion( is seen)?\. No pneumothorax( is seen)?\.")


@dataclass(frozen=True)
class PhantomStudy:
    """A study with its radiographs as gray levels (height, width)."""

    study: Study
    radiographs: dict[str, NDArray[np.uint8]]


def make_study(seed: int, index: int, size: int, split: str) -> PhantomStudy:
    """Generate a study; the same arguments give the same bytes."""
    rng = np.random.default_rng(np.random.SeedSequence((seed, index)))
    anatomy = draw_anatomy(rng)
    findings = draw_findings(anatomy, rng)
    has_lateral, has_prior = rng.random() < LATERAL_SHARE, rng.random() < PRIOR_SHARE
    prior = draw_prior(findings, anatomy, rng) if has_prior else None
    sentences = dictate(findings, prior, rng)
    aspect = float(rng.choice(ASPECTS))
    identity = f"phantom-{seed}-{index:06d}"

    radiographs = {"frontal": render_frontal(anatomy, findings, rng, size, aspect)}
    if has_lateral:
        radiographs["lateral"] = render_lateral(anatomy, findings, rng, size)
    if prior is not None:
        radiographs["prior_frontal"] = render_frontal(anatomy, prior, rng, size)
    height, width = radiographs["frontal"].shape
    crop = CropMap(width=width, height=height)
    shaped = apply_to(anatomy, findings)

    def boxes(finding: Finding) -> tuple[Box, ...]:
        return tuple(
            crop.to_original(Box(x_min=a, y_min=b, x_max=c, y_max=d)) for a, b, c, d in rectangles(finding, shaped)
        )

    grounded = [Sentence(text=s.text, boxes=None if s.finding is None else boxes(s.finding)) for s in sentences]
    technique = "PA and lateral views of the chest." if has_lateral else "Single frontal view of the chest."
    study = Study(
        sample_id=identity,
        study_id=identity,
        patient_id=f"phantom-patient-{seed}-{index:06d}",
        originals=None,
        prior_report=None if prior is None else " ".join(s.text for s in dictate(prior, None, rng)),
        indication=dictate_indication(findings, rng) if rng.random() < 0.8 else None,
        technique=technique if rng.random() < 0.8 else None,
        comparison="None." if prior is None else "Prior chest radiograph.",
        findings=_narrative(sentences, rng),
        grounded_findings=grounded,
        phrases=[sentence for sentence in grounded if sentence.boxes is not None] or None,
        split=split,
        source="phantom",
        labels=[Label(kind=f.kind, side=f.side, boxes=boxes(f)) for f in findings],
        **{role: Path(f"{role}/{identity}.png") for role in radiographs},
    )
    return PhantomStudy(study, radiographs)


def _narrative(sentences: list[Dictated], rng: np.random.Generator) -> str:
    """Return the report as running text; adjacent negations are sometimes joined."""
    text = " ".join(sentence.text for sentence in sentences)
    if rng.random() < 0.5:
        text = _NEGATIONS.sub("No pleural effusion or pneumothorax.", text)
    return text


def _write_study(index: int, *, folder: Path, seed: int, size: int, split: str) -> Study:
    phantom = make_study(seed, index, size, split)
    for role, radiograph in phantom.radiographs.items():
        # Level 1: noise hardly compresses further, and higher levels take several times longer.
        Image.fromarray(radiograph).save(folder / role / f"{phantom.study.sample_id}.png", compress_level=1)
    return phantom.study


def write_phantoms(
    folder: Path, count: int, *, seed: int, size: int = 518, split: str = "test", workers: int = 1
) -> Iterator[Study]:
    """Write phantom studies into a folder and yield each when it is done. The manifest is written last."""
    if count < 1:
        raise InputError(f"expected at least 1 study, found {count}", code=ErrorCode.INVALID_OPTION, field="count")
    if size < 64:
        message = f"expected at least 64 pixels, found {size}"
        raise InputError(message, code=ErrorCode.INVALID_OPTION, field="size")
    settings = {"source": "phantom", "count": count, "seed": seed, "size": size, "split": split}
    open_run_folder(folder, PREPARATION_RECORD, settings)
    for role in IMAGE_COLUMNS:
        (folder / role).mkdir(parents=True, exist_ok=True)
    make = partial(_write_study, folder=folder, seed=seed, size=size, split=split)
    studies = []
    with nullcontext() if workers == 1 else process_pool(workers) as pool:
        for study in pool.map(make, range(count), chunksize=16) if pool else map(make, range(count)):
            studies.append(study)
            yield study
    write_manifest(folder / "manifest.jsonl", studies)
