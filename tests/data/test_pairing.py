"""Samples of an archive's studies: which there are, and what each shows."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from error_checks import raises
from hypothesis import given
from hypothesis import strategies as st

from maira.data.archive import Archive, ArchiveStudy, Radiograph, View
from maira.data.pairing import Rules, Samples, check_patient_splits, make_samples
from maira.data.study import Study
from radfact.records import Sentence


def _radiograph(key: str, view: View = "frontal") -> Radiograph:
    return Radiograph(key, Path("/archive") / f"{key}.dcm", view)


def _study(name: str, **fields: Any) -> ArchiveStudy:
    defaults: dict[str, Any] = {
        "patient_id": "p",
        "timestamp": name,
        "radiographs": (_radiograph(f"{name}-f"),),
        "findings": "Clear lungs.",
        "report": f"Report {name}.",
    }
    return ArchiveStudy(name, **defaults | fields)


def _make(*studies: ArchiveStudy, **rules: Any) -> Samples:
    return make_samples(Archive("test", list(studies)), Rules(**rules))


def _keys(study: Study) -> tuple[str | None, ...]:
    return tuple(path.stem if path else None for path in (study.frontal, study.lateral, study.prior_frontal))


def test_every_frontal_is_a_sample() -> None:
    samples = _make(_study("s", radiographs=(_radiograph("a"), _radiograph("b"), _radiograph("c", "lateral"))))
    assert [(s.sample_id, s.study_id, _keys(s)) for s in samples.studies] == [
        ("s-1", "s", ("a", "c", None)),
        ("s-2", "s", ("b", "c", None)),
    ]


@pytest.mark.parametrize(
    ("lacking", "reason"),
    [
        ({"findings": None}, ["no findings section"]),
        ({"radiographs": (_radiograph("l", "lateral"),)}, ["no frontal radiograph"]),
        ({"findings": None, "is_prior_only": True}, []),
    ],
)
def test_incomplete_studies_are_listed_except_priors(lacking: dict[str, Any], reason: list[str]) -> None:
    samples = _make(_study("s", **lacking))
    assert not samples.studies
    assert [(f.source, f.stage, f.reason) for f in samples.skipped] == [("s", "select", text) for text in reason]


def test_the_prior_is_the_latest_earlier_study_with_report_and_frontal() -> None:
    samples = _make(
        _study("1"),
        _study("2a", timestamp="2"),
        _study("2b", timestamp="2", findings=None, is_prior_only=True),
        _study("3", report=None),
        _study("4", radiographs=(_radiograph("l", "lateral"),)),
        _study("5"),
    )
    # Simultaneous studies are no priors of each other.
    assert [(s.sample_id, _keys(s)[2], s.prior_report) for s in samples.studies] == [
        ("1", None, None),
        ("2a", "1-f", "Report 1."),
        ("3", "2b-f", "Report 2b."),
        ("5", "2b-f", "Report 2b."),
    ]


@pytest.mark.parametrize("unknown", [{"patient_id": None}, {"timestamp": None}])
def test_without_patient_or_time_there_is_no_prior(unknown: dict[str, Any]) -> None:
    samples = _make(_study("1", **unknown), _study("2", **unknown))
    assert [_keys(s)[2] for s in samples.studies] == [None, None]


def test_every_prior_frontal_is_paired_in_training_by_rule() -> None:
    first = _study("1", radiographs=(_radiograph("a"), _radiograph("b")), split="train")
    then = _study("2", radiographs=(_radiograph("c"), _radiograph("d")), split="train")
    samples = _make(first, then, train_priors="every")
    assert [_keys(s)[::2] for s in samples.studies][2:] == [("c", "a"), ("c", "b"), ("d", "a"), ("d", "b")]
    tested = _make(replace(first, split="test"), replace(then, split="test"), train_priors="every")
    assert [_keys(s)[0] for s in tested.studies] == ["a", "b", "c", "d"]


def test_every_lateral_can_be_drawn_and_other_studies_change_no_draw() -> None:
    laterals = tuple(_radiograph(f"l{n}", "lateral") for n in range(3))
    study = _study("s", radiographs=(_radiograph("f"), *laterals))
    draws = [_make(study, seed=seed).studies[0] for seed in range(60)]
    assert {_keys(draw)[1] for draw in draws} == {"l0", "l1", "l2"}
    others = _study("a", patient_id="q"), study, _study("z")
    assert [_make(*others, seed=seed).studies[1] for seed in range(60)] == draws


def test_unusable_radiographs_are_ignored() -> None:
    archive = Archive(
        "test", [_study("s", radiographs=(_radiograph("a"), _radiograph("b"), _radiograph("c", "lateral")))]
    )
    samples = make_samples(archive, Rules(), without=frozenset({"a", "c"}))
    assert [(s.sample_id, _keys(s)) for s in samples.studies] == [("s", ("b", None, None))]


@pytest.mark.parametrize("check", [check_patient_splits, lambda studies: _make(*studies)], ids=["check", "samples"])
def test_a_patient_in_two_splits_is_refused(check: Callable[[Sequence[ArchiveStudy]], object]) -> None:
    both = [_study("1", split="train"), _study("2", split="test"), _study("3", patient_id="q", split="test")]
    with raises("mismatch") as caught:
        check(both)
    assert "'p' in more than one split (test, train)" in str(caught.value)
    with raises("mismatch") as caught:
        check([*both, _study("4", patient_id="q", split="train")])
    assert "'p' and 1 more patients in" in str(caught.value)


def test_a_split_must_exist() -> None:
    studies = [_study("1", split="train"), _study("2", patient_id="q", split="test"), _study("3", patient_id="r")]
    assert [study.study_id for study in _make(*studies, splits=["test"]).studies] == ["2"]
    for missing in ("validate", "None"):
        with raises("unknown-name"):
            _make(*studies, splits=["test", missing])


@pytest.mark.parametrize(
    ("studies", "message"),
    [
        ((_study("s"), _study("s")), "duplicate"),
        (
            (_study("1", radiographs=(_radiograph("x"),)), _study("2", radiographs=(_radiograph("x", "lateral"),))),
            "duplicate",
        ),
        ((_study("1", radiographs=(_radiograph("x"), _radiograph("y")), phrases=(Sentence(text="A."),)),), "mismatch"),
    ],
)
def test_ambiguous_names_are_refused(studies: tuple[ArchiveStudy, ...], message: str) -> None:
    with raises(message):
        _make(*studies)


@given(st.integers(0, 5), st.lists(st.integers(0, 40), min_size=1, max_size=60))
def test_splits_are_drawn_by_patient(seed: int, patients: list[int]) -> None:
    studies = [_study(str(n), patient_id=str(patient)) for n, patient in enumerate(patients)]
    samples = _make(*studies, seed=seed, shares={"train": 0.5, "test": 0.5})
    assert all(s.split in ("train", "test") for s in samples.studies)
    assert len({(s.patient_id, s.split) for s in samples.studies}) == len(set(patients))
