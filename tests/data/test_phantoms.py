from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from error_checks import raises
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from maira.data.images import CropMap
from maira.data.manifest import read_manifest
from maira.data.phantoms import PhantomStudy, make_study, read_label, write_phantoms
from maira.data.phantoms.anatomy import Side, draw_anatomy
from maira.data.phantoms.dictate import SEVERITIES, SIZES, change_since, dictate, noun_phrase
from maira.data.phantoms.findings import (
    GRADED,
    GRADES,
    KINDS,
    Finding,
    Kind,
    apply_to,
    draw_finding,
    draw_findings,
    draw_prior,
    rectangles,
)
from maira.data.phantoms.generate import LATERAL_SHARE, PRIOR_SHARE
from maira.data.phantoms.render import render_frontal
from radfact.api import RadFact
from radfact.judges.offline import OfflineJudge
from radfact.records import Sentence

SIZE = 64
seeds = st.integers(0, 2**31)

INSIDE: dict[Kind, float] = {
    # The box of a pacemaker is its generator's; the lead runs on to the heart. Edema has no edge: it fades out.
    "pacemaker": 0.6,
    "edema": 0.75,
}
"""Least share of a finding's trace on the radiograph that lies in its boxes, where it is not 0.85."""


class Quiet(np.random.Generator):
    """A source of randomness without noise, so that two radiographs differ by their findings alone."""

    def standard_normal(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:  # noqa: ARG002
        return np.zeros(size, dtype)


@lru_cache(maxsize=1)
def series() -> list[PhantomStudy]:
    return [make_study(11, index, SIZE, "test") for index in range(300)]


def trace(kind: Kind, seed: int, size: int = 128) -> tuple[NDArray[np.float64], NDArray[np.bool_], Finding]:
    """What a finding adds to the radiograph of an otherwise normal patient, where its boxes are, and the finding."""
    rng = np.random.default_rng(seed)
    anatomy = draw_anatomy(rng)
    finding = draw_finding(kind, anatomy, rng)
    with_it, without = (
        render_frontal(anatomy, findings, Quiet(np.random.PCG64(0)), size).astype(float)
        for findings in ((finding,), ())
    )
    inside = np.zeros((size, size), bool)
    for u_min, v_min, u_max, v_max in rectangles(finding, apply_to(anatomy, (finding,))):
        rows, columns = (
            slice(int(low * size), int(np.ceil(high * size))) for low, high in ((v_min, v_max), (u_min, u_max))
        )
        inside[rows, columns] = True
    return with_it - without, inside, finding


@pytest.mark.parametrize("index", range(6))
def test_a_study_looks_the_same_at_every_size(index: int) -> None:
    small, large = (make_study(5, index, size, "test") for size in (224, 448))
    assert small.study.findings == large.study.findings
    assert small.radiographs.keys() == large.radiographs.keys()
    for one, other in zip(small.study.labels or (), large.study.labels or (), strict=True):
        assert (one.kind, one.side) == (other.kind, other.side)
        for a, b in zip(one.boxes or (), other.boxes or (), strict=True):
            # Half a pixel at 224: the longer side of a radiograph is a whole number of pixels.
            assert a.as_tuple() == pytest.approx(b.as_tuple(), abs=0.5 / 224)
    for role, radiograph in small.radiographs.items():
        height, width = radiograph.shape
        reduced = Image.fromarray(large.radiographs[role]).resize((width, height), Image.Resampling.BOX)
        difference = np.abs(np.asarray(reduced, float) - radiograph)
        assert difference.mean() < 3, role
        assert np.quantile(difference, 0.99) < 20, role


@pytest.mark.parametrize("kind", KINDS)
def test_findings_change_the_image_in_their_boxes(kind: Kind) -> None:
    for seed in range(8):
        difference, inside, _ = trace(kind, seed)
        assert np.abs(difference)[inside].sum() >= INSIDE.get(kind, 0.85) * np.abs(difference).sum()
        mean = difference[inside].mean()
        # Air darkens the radiograph, everything else brightens it.
        assert mean < -5 if kind == "pneumothorax" else mean > 2


@pytest.mark.parametrize("kind", ["pacemaker", "consolidation", "mass", "nodule", "effusion", "pneumothorax"])
def test_the_left_of_the_patient_is_on_the_right(kind: Kind) -> None:
    seen = set()
    for seed in range(12):
        difference, _, finding = trace(kind, seed)
        strength = np.abs(difference).sum(0)
        centre = (strength * (np.arange(128) + 0.5)).sum() / strength.sum() / 128
        seen.add(finding.side)
        if finding.side != "both":
            assert (centre > 0.5) == (finding.side == "left")
    assert {"left", "right"} <= seen


@settings(max_examples=60, deadline=None)
@given(seeds, st.sampled_from(KINDS))
def test_boxes_lie_on_the_radiograph_and_have_an_area(seed: int, kind: Kind) -> None:
    rng = np.random.default_rng(seed)
    anatomy = draw_anatomy(rng)
    finding = draw_finding(kind, anatomy, rng)
    boxes = rectangles(finding, apply_to(anatomy, (finding,)))
    assert len(boxes) == (2 if kind == "edema" else max(1, len(finding.sides)))
    for u_min, v_min, u_max, v_max in boxes:
        assert 0 <= u_min < u_max <= 1
        assert 0 <= v_min < v_max <= 1


def test_boxes_are_relative_to_non_square_radiographs() -> None:
    shapes = Counter()
    for phantom in series()[:60]:
        height, width = phantom.radiographs["frontal"].shape
        crop = CropMap(width, height)
        shapes[width > height, height > width] += 1
        square = [crop.to_crop(box) for label in phantom.study.labels or () for box in label.boxes or ()]
        # The generator knows boxes of the centred square only, so all of every box is in the crop.
        assert all(box is not None and not cut for box, cut in square)
    assert len(shapes) == 3


def test_only_finding_sentences_have_boxes() -> None:
    for phantom in series():
        labels = {(label.kind, label.side, label.boxes) for label in phantom.study.labels or ()}
        stated_labels = set()
        for sentence in phantom.study.grounded_findings or ():
            stated = read_label(sentence.text)
            assert (stated is None) == (sentence.boxes is None), sentence.text
            if stated is not None:
                stated_labels.add((*stated, sentence.boxes))
        assert stated_labels == labels


def effusion(side: Side, grade: int) -> Finding:
    low, high = GRADES[grade]
    return Finding("effusion", (side,), extent=(low + high) / 2)


@pytest.mark.parametrize(
    ("prior", "change", "words"),
    [
        ((), "new", {"New", "new"}),
        ((effusion("left", 1),), "unchanged", {"Unchanged", "unchanged"}),
        ((effusion("left", 0),), "larger", {"increased", "worsened"}),
        ((effusion("left", 2),), "smaller", {"decreased", "improved"}),
        ((effusion("right", 1),), "new", {"New", "new"}),
    ],
)
def test_words_for_change_agree_with_the_prior(prior: tuple[Finding, ...], change: str, words: set[str]) -> None:
    finding = effusion("left", 1)
    assert change_since(finding, prior) == change
    for seed in range(10):
        sentences = dictate((finding,), prior, np.random.default_rng(seed))
        (text,) = [sentence.text for sentence in sentences if sentence.finding is finding]
        assert set(text.replace(",", " ").replace(".", " ").split()) & words, text


def test_laterals_and_priors_occur_at_their_rates() -> None:
    studies = [phantom.study for phantom in series()]
    # Three standard deviations of a share of 300 studies.
    for column, share in (("lateral", LATERAL_SHARE), ("prior_frontal", PRIOR_SHARE)):
        found = np.mean([getattr(study, column) is not None for study in studies])
        assert found == pytest.approx(share, abs=3 * (share * (1 - share) / 300) ** 0.5)
    assert all((study.prior_frontal is None) == (study.prior_report is None) for study in studies)


def test_two_wordings_of_the_same_findings_entail_each_other() -> None:
    """The score of a perfect reader of the radiographs, which is the ceiling of the task."""
    reports: list[list[list[Sentence]]] = [[], []]
    for seed in range(150):
        rng = np.random.default_rng(seed)
        anatomy = draw_anatomy(rng)
        findings = draw_findings(anatomy, rng)
        prior = draw_prior(findings, anatomy, rng) if seed % 4 == 0 else None
        for report in reports:
            report.append([Sentence(text=sentence.text) for sentence in dictate(findings, prior, rng)])
    result = RadFact(OfflineJudge(), bootstrap=0).score(*reports)
    assert result.scores["logical_f1"] >= 0.98


@pytest.mark.parametrize(("workers", "seed"), [(1, 3), (1, 0), (2, 2**31)])
def test_written_phantoms_equal_those_of_their_seed_and_index(tmp_path: Path, workers: int, seed: int) -> None:
    yielded = list(write_phantoms(tmp_path, 5, seed=seed, size=SIZE, split="val", workers=workers))
    read = read_manifest(tmp_path / "manifest.jsonl")
    assert [study.sample_id for study in read] == [study.sample_id for study in yielded]
    for index, study in enumerate(read):
        phantom = make_study(seed, index, SIZE, "val")
        paths = {role: tmp_path / role / f"{study.sample_id}.png" for role in phantom.radiographs}
        assert study == phantom.study.model_copy(update=dict(paths))
        for role, path in paths.items():
            np.testing.assert_array_equal(np.asarray(Image.open(path)), phantom.radiographs[role])


def test_an_unfinished_or_refused_folder_has_no_manifest(tmp_path: Path) -> None:
    for count, size, field in ((0, 64, "count"), (1, 63, "size")):
        with raises(f"{field}: invalid-option"):
            list(write_phantoms(tmp_path, count, seed=1, size=size))
    assert list(tmp_path.iterdir()) == []
    next(write_phantoms(tmp_path, 3, seed=3, size=SIZE))
    assert not (tmp_path / "manifest.jsonl").exists()


@pytest.mark.parametrize("kind", GRADED)
def test_size_words_match_the_extent(kind: Kind) -> None:
    sides: tuple[Any, ...] = ("left",) if kind in ("effusion", "pneumothorax") else ()
    grades = SIZES if sides else SEVERITIES
    for grade, (low, high) in enumerate(GRADES):
        texts = {
            noun_phrase(Finding(kind, sides, extent=extent), np.random.default_rng(seed)).split()[0]
            for extent in (low, high)
            for seed in range(10)
        }
        assert texts == set(grades[grade])
