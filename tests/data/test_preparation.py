"""From an archive to PNGs and a manifest: samples, restart, damaged radiographs, several processes, Ray."""

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from dicom_files import write_dicom
from error_checks import raises
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import maira.data.preparation
from maira.data.archive import Archive, ArchiveStudy, Radiograph, View
from maira.data.image_check import ImageCheck
from maira.data.manifest import read_failures, read_manifest
from maira.data.pairing import Rules, Samples, check_patient_splits, make_samples
from maira.data.preparation import Conversion, PreparationResult, convert_radiograph, prepare
from maira.data.study import Original, Study
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
    study = _study("s", radiographs=(_radiograph("a"), _radiograph("b"), _radiograph("c", "lateral")))
    samples = make_samples(Archive("test", [study]), Rules(), without=frozenset({"a", "c"}))
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


SMALL = Conversion(size=32)


def _archive(folder: Path, count: int = 6) -> Archive:
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    studies = []
    for number in range(count):
        paths: dict[View, Path] = {view: folder / f"{number}-{view}.png" for view in get_args(View)}
        for path in paths.values():
            Image.fromarray(draw.integers(0, 255, (48, 40), np.uint8)).save(path)
        radiographs = tuple(Radiograph(path.stem, path, view) for view, path in paths.items())
        texts = {"findings": "Clear.", "report": "Clear."}
        studies.append(ArchiveStudy(f"s{number}", f"p{number // 2}", number, radiographs, **texts))
    return Archive("test", studies)


def _prepare(archive: Archive, out: Path, conversion: Conversion = SMALL, **options: Any) -> PreparationResult:
    return prepare("test", "archive", partial(make_samples, archive, Rules()), out, conversion, **options)


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_used_radiograph_is_converted(tmp_path: Path) -> None:
    prepared = _prepare(_archive(tmp_path / "archive"), tmp_path / "out")
    assert (prepared.converted, prepared.failures) == (12, [])
    studies = read_manifest(tmp_path / "out/manifest.jsonl")
    assert [s.sample_id for s in studies] == [f"s{n}" for n in range(6)]
    for study in studies:
        for path in (study.frontal, study.lateral):
            assert path is not None
            with Image.open(path) as image:
                assert (image.mode, min(image.size)) == ("L", 32)
    assert studies[1].prior_frontal == studies[0].frontal


def test_originals_are_linked_on_request(tmp_path: Path) -> None:
    archive = _archive(tmp_path / "out/archive", 2)
    archive.studies[1].radiographs[0].path.rename(tmp_path / "elsewhere.png")
    radiograph = replace(archive.studies[1].radiographs[0], path=tmp_path / "elsewhere.png", is_inverted=True)
    archive.studies[1] = replace(archive.studies[1], radiographs=(radiograph,))
    out = tmp_path / "out/prepared"
    _prepare(archive, out)
    assert [study.originals for study in read_manifest(out / "manifest.jsonl")] == [None, None]
    images = _files(out / "images")
    _prepare(archive, out, Conversion(size=32, link_originals=True))
    assert _files(out / "images") == images
    first, second = (study.originals or {} for study in read_manifest(out / "manifest.jsonl"))
    assert {column: original.path for column, original in first.items()} == {
        "frontal": tmp_path / "out/archive/0-frontal.png",
        "lateral": tmp_path / "out/archive/0-lateral.png",
    }
    assert second["frontal"] == Original(path=tmp_path / "elsewhere.png", is_inverted=True)
    assert second["prior_frontal"] == first["frontal"]


def test_doubtful_images_are_kept_and_listed_also_by_a_resumed_run(tmp_path: Path) -> None:
    archive, pixels = _archive(tmp_path / "archive", 1), np.arange(2304, dtype="u2").reshape(48, 48)
    radiograph = Radiograph("1", write_dicom(tmp_path / "1.dcm", pixels, stored=10), "frontal")
    archive.studies[0] = replace(archive.studies[0], radiographs=(radiograph,))
    for _ in range(2):
        assert len(_prepare(archive, tmp_path / "out").studies) == 1
        (failure,) = read_failures(tmp_path / "out/failures.jsonl")
        assert (failure.source, failure.stage) == (str(tmp_path / "1.dcm"), "doubt")
    write_dicom(tmp_path / "1.dcm", pixels, stored=12)
    assert _prepare(archive, tmp_path / "out").failures == []


def test_a_replaced_radiograph_is_converted_again(tmp_path: Path) -> None:
    archive = _archive(tmp_path / "archive")
    _prepare(archive, tmp_path / "out")
    before = _files(tmp_path / "out")
    other = np.random.default_rng(1).integers(0, 255, (48, 40), np.uint8)
    Image.fromarray(other).save(tmp_path / "archive/2-frontal.png")
    (tmp_path / "archive/3-frontal.png").unlink()  # what is gone was converted, and stays
    (tmp_path / "out/images/00").mkdir(exist_ok=True)
    (tmp_path / "out/images/00/.half.png.x1").write_bytes(b"of a run that was killed")
    prepared = _prepare(archive, tmp_path / "out")
    assert (prepared.converted, prepared.failures) == (1, [])
    after = _files(tmp_path / "out")
    assert [Path(name).name for name in after if after[name] != before[name]] == ["2-frontal.png"]


@pytest.mark.parametrize("image_check", ["refuse", "off"])
def test_an_image_that_is_no_radiograph_is_skipped_unless_check_is_off(tmp_path: Path, image_check: ImageCheck) -> None:
    archive = _archive(tmp_path / "archive")
    mask = np.where(np.arange(48 * 40).reshape(48, 40) % 7, 0, 255).astype(np.uint8)
    Image.fromarray(mask).save(tmp_path / "archive/0-lateral.png")
    prepared = _prepare(archive, tmp_path / "out", Conversion(size=32, image_check=image_check))
    studies = {study.sample_id: study for study in prepared.studies}
    assert (studies["s0"].lateral is None) == (image_check == "refuse")
    reasons = [failure.reason for failure in prepared.failures]
    assert ["2 distinct gray values" in reason for reason in reasons] == ([True] if image_check == "refuse" else [])


def test_an_unconvertible_radiograph_is_listed(tmp_path: Path) -> None:
    archive = _archive(tmp_path / "archive")
    (tmp_path / "archive/0-frontal.png").write_bytes(b"no image")
    (tmp_path / "archive/3-lateral.png").unlink()
    prepared = _prepare(archive, tmp_path / "out")
    studies = {s.sample_id: s for s in prepared.studies}
    assert set(studies) == {"s1", "s2", "s3", "s4", "s5"}
    assert studies["s1"].prior_frontal is None
    assert studies["s3"].lateral is None
    failures = read_failures(tmp_path / "out/failures.jsonl")
    radiographs = {name: tmp_path / f"archive/{name}.png" for name in ("0-frontal", "3-lateral")}
    assert [(f.sample_id, f.source) for f in failures] == [
        ("s0", str(radiographs["0-frontal"])),
        ("s1", str(radiographs["0-frontal"])),
        ("s3", str(radiographs["3-lateral"])),
        (None, "s0"),
    ]
    said = [f.reason for f in failures]
    assert said[0].startswith(f"sample s0 is skipped: {radiographs['0-frontal']}: ")
    assert said[1].startswith(f"sample s1 has no prior image: {radiographs['0-frontal']}: ")
    assert said[2] == f"sample s3 has no lateral image: {radiographs['3-lateral']}: no such file"
    assert said[3] == "no frontal radiograph that can be read"


def test_an_unconvertible_radiograph_is_replaced_by_another(tmp_path: Path) -> None:
    radiographs = _archive(tmp_path / "archive", 1).studies[0].radiographs
    more = Radiograph("more", radiographs[0].path, "lateral")
    archive = Archive("test", [ArchiveStudy("s", radiographs=(*radiographs, more), findings="Clear.")])
    assert [study.lateral is None for study in _prepare(archive, tmp_path / "out").studies] == [False]
    (tmp_path / "archive/0-lateral.png").write_bytes(b"no image")
    again = _prepare(archive, tmp_path / "again")
    assert [study.lateral is None for study in again.studies] == [False]
    assert all(f.reason.startswith("sample s uses another lateral image: ") for f in again.failures)


def _crash_on_two(radiograph: Radiograph, target: Path, **settings: Any) -> str | None:
    if radiograph.key in ("1-frontal", "4-lateral"):
        os.kill(os.getpid(), signal.SIGSEGV)
    return convert_radiograph(radiograph, target, **settings)


@pytest.mark.slow
def test_a_radiograph_that_crashes_its_process_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = _archive(tmp_path / "archive")
    # Pickled by its name, which leads back here.
    monkeypatch.setattr(maira.data.preparation, "convert_radiograph", _crash_on_two)
    prepared = _prepare(archive, tmp_path / "out", Conversion(size=32, workers=2))
    crashed = [f for f in prepared.failures if f.stage == "convert"]
    assert sorted(Path(f.source or "").stem for f in crashed) == ["1-frontal", "4-lateral"]
    assert all("the decoder crashed" in f.reason for f in crashed)
    assert {s.sample_id for s in prepared.studies} == {"s0", "s2", "s3", "s4", "s5"}


def test_only_radiographs_of_requested_splits_are_converted(tmp_path: Path) -> None:
    archive = _archive(tmp_path / "archive")
    rules = Rules(shares={"train": 0.5, "test": 0.5}, splits=["test"])
    prepared = prepare("test", "archive", partial(make_samples, archive, rules), tmp_path / "out", SMALL)
    assert {s.split for s in prepared.studies} == {"test"}
    assert prepared.converted == 2 * len(prepared.studies)


def test_a_folder_of_other_options_is_refused(tmp_path: Path) -> None:
    archive = _archive(tmp_path / "archive", 1)
    _prepare(archive, tmp_path / "out")
    with raises("out: output-conflict"):
        _prepare(archive, tmp_path / "out", Conversion(size=64))
    with raises("out: output-conflict"):
        prepare("test", "other", partial(make_samples, archive, Rules()), tmp_path / "out", SMALL)


def test_an_archive_that_contradicts_itself_or_has_no_sample_leaves_nothing_behind(tmp_path: Path) -> None:
    archive = _archive(tmp_path / "archive", 1)
    for studies, code in ((archive.studies * 2, "duplicate"), ([ArchiveStudy("s", findings="Clear.")], "run-failed")):
        with raises(code):
            _prepare(Archive("test", studies), tmp_path / "out")
        assert not (tmp_path / "out").exists()


@pytest.mark.server
@pytest.mark.slow
def test_processes_and_ray_give_the_same_bytes(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    archive = _archive(tmp_path / "archive", 9)
    (tmp_path / "archive/2-frontal.png").write_bytes(b"no image")
    outs = {"one": SMALL, "two": Conversion(size=32, workers=2)}
    outs["ray"] = Conversion(size=32, workers=2, engine="ray")
    made = {}
    for name, conversion in outs.items():
        _prepare(archive, tmp_path / name, conversion)
        made[name] = _files(tmp_path / name)
    assert made["one"] == made["two"] == made["ray"]
