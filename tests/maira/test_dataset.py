import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from error_checks import raises
from PIL import Image
from tiny_runs import minimal_config

import maira.train.data.dataset as module
from maira.data.images import CropMap, load_gray
from maira.data.manifest import read_manifest, write_manifest
from maira.data.shards import pack as pack_shards
from maira.data.study import Label, Study
from maira.model.processor import MairaProcessor
from maira.model.task_examples import BOX_CLIPPED, PRIOR_REPORT_UNUSED, drop_inputs, make_example
from maira.train.config.run_config import TASKS, AnomalyConfig
from maira.train.data.dataset import StudyDataset, encode_example, open_dataset, patch_coverage
from maira.train.data.schedule import LENGTH_MULTIPLE, DataSchedule, iterate_steps
from radfact.errors import InputError
from radfact.records import Box, Sentence

Opener = Callable[..., StudyDataset]


@pytest.fixture
def opened(processor: MairaProcessor, tmp_path: Path) -> Opener:
    """Opens the corpus of a manifest, or of the sources of a config."""

    def opening(train: Any, *, patch_grid: int | None = None, **changes: Any) -> StudyDataset:
        own = {"train": train, "passes": None, "epochs": 2, "global_batch": 8, "token_budget": 1000}
        made = minimal_config(**own | changes)
        return open_dataset(made, made.train, processor, tmp_path / "tables", patch_grid=patch_grid)

    return opening


def changed(manifest: Path, where: Path, **values: Any) -> Path:
    """A copy of a manifest with other values in each study."""
    path = where / "changed.jsonl"
    write_manifest(path, [study.model_copy(update=values) for study in read_manifest(manifest)])
    return path


def test_a_sample_has_prompt_answer_images_coverage(opened: Opener, phantoms: Path, processor: MairaProcessor) -> None:
    dataset = opened(phantoms, patch_grid=4)
    studies = read_manifest(phantoms)
    assert dataset.kinds == sorted({label.kind for study in studies for label in study.labels or ()})
    rows = iter(range(len(dataset.table)))
    for number, study in enumerate(studies):
        for task in TASKS:
            for phrase, sentence in enumerate((study.phrases or []) if task == "phrase" else [None]):
                example, row = make_example(study, task, phrase=sentence), next(rows)
                prompt, target = processor.encode_example(example), processor.encode_target(example.target or "")
                lengths = (len(example.images), len(prompt), len(target))
                assert dataset.table[row].tolist() == (0, number, TASKS.index(task), phrase, *lengths)
                sample = dataset.encode(row)
                assert (sample.sample_id, sample.task, sample.prompt_tokens) == (study.sample_id, task, len(prompt))
                assert sample.input_ids == [*prompt, *target]
                assert sample.images.dtype == np.float32
                expected = processor.image_processor(example.images)["pixel_values"][:, 0]
                np.testing.assert_array_equal(sample.images, expected)
                height, width = load_gray(study.frontal).shape
                coverage = patch_coverage(study, dataset.kinds, 4, CropMap(width, height))
                np.testing.assert_array_equal(sample.coverage, coverage)
    assert next(rows, None) is None


def test_shards_give_the_samples_of_their_manifest(opened: Opener, phantoms: Path, tmp_path: Path) -> None:
    pack_shards(phantoms, tmp_path / "shards", shard_size=20_000)
    sources = {"manifest": phantoms}, {"shards": str(tmp_path / "shards")}
    files, shards = (opened([source], patch_grid=4) for source in sources)
    np.testing.assert_array_equal(files.table, shards.table)
    assert files.kinds == shards.kinds
    for row in range(len(files.table)):
        ours, theirs = files.encode(row), shards.encode(row)
        assert (ours.sample_id, ours.input_ids) == (theirs.sample_id, theirs.input_ids)
        np.testing.assert_array_equal(ours.images, theirs.images)
        np.testing.assert_array_equal(ours.coverage, theirs.coverage)


def test_only_studies_of_the_split_are_taken(opened: Opener, phantoms: Path, tmp_path: Path) -> None:
    studies = read_manifest(phantoms)
    mixed = tmp_path / "mixed.jsonl"
    write_manifest(mixed, [s.model_copy(update={"split": "val" if i % 3 else "train"}) for i, s in enumerate(studies)])
    pack_shards(mixed, tmp_path / "shards")
    for source in ({"manifest": mixed}, {"shards": str(tmp_path / "shards")}):
        selected = opened([source | {"split": "train"}]).table["number"]
        assert set(selected.tolist()) == set(range(0, len(studies), 3))
        with raises(f"{Path(str(*source.values())).name}: empty-input"):
            opened([source | {"split": "test"}])


def test_studies_without_an_answer_are_skipped(opened: Opener, phantoms: Path, tmp_path: Path) -> None:
    bare = changed(phantoms, tmp_path, grounded_findings=None, phrases=None)
    assert set(opened(bare).table["task"].tolist()) == {TASKS.index("findings")}
    with raises("changed.jsonl: empty-input"):
        opened(bare, tasks={"grounded": 1, "phrase": 1})


def test_dropped_inputs_are_never_shown(opened: Opener, phantoms: Path, processor: MairaProcessor) -> None:
    dataset = opened(phantoms, drop=["prior", "lateral"], tasks={"findings": 1, "grounded": 0, "phrase": 0})
    assert set(dataset.table["images"].tolist()) == {1}
    for row, study in enumerate(read_manifest(phantoms)):
        example = make_example(drop_inputs(study, ["prior", "lateral"]), "findings")
        assert dataset.encode(row).input_ids == encode_example(example, processor)[0]


def test_unusable_studies_are_counted(opened: Opener, phantoms: Path, tmp_path: Path) -> None:
    alone = changed(phantoms, tmp_path, prior_frontal=None, prior_report="Clear lungs.")
    assert opened(alone, tasks={"findings": 1}).notes == {PRIOR_REPORT_UNUSED: 14}
    wide = tmp_path / "wide.png"
    Image.fromarray(np.arange(5000, dtype=np.uint8).reshape(50, 100)).save(wide)
    boxed = [Sentence(text="A nodule.", boxes=(Box(x_min=0.1, y_min=0, x_max=0.5, y_max=1),))]
    clipped = changed(phantoms, tmp_path, frontal=wide, phrases=boxed, grounded_findings=None)
    assert opened(clipped).notes == {BOX_CLIPPED: 14}


def test_a_table_is_cached_until_its_inputs_change(
    opened: Opener, phantoms: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    plain = module._make_table
    monkeypatch.setattr(module, "_make_table", lambda *args: (made.append(args), plain(*args))[1])
    first = opened(phantoms)
    again = opened(phantoms, seed=3, token_budget=500)
    np.testing.assert_array_equal(first.table, again.table)
    assert len(made) == 1
    for changes in ({"preset": "paper"}, {"drop": ["technique"]}, {"tasks": {"findings": 1}}):
        opened(phantoms, **changes)
    copied = changed(phantoms, tmp_path)
    opened(copied)
    changed(phantoms, tmp_path, technique=None)
    opened(copied)
    assert len(made) == 6


def test_processes_build_the_same_table(
    opened: Opener, phantoms: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    alone = opened([{"manifest": phantoms}, {"manifest": phantoms, "split": "train"}])
    for name, value in (("_SINGLE_PROCESS", 0), ("_CHUNK", 3), ("usable_cores", lambda: 2)):
        monkeypatch.setattr(module, name, value)
    counts: list[tuple[int, int]] = []
    sources = (alone.config, alone.config.train, alone.processor, tmp_path / "2")
    together = open_dataset(*sources, on_progress=lambda *done: counts.append(done))
    np.testing.assert_array_equal(alone.table, together.table)
    assert (alone.kinds, alone.notes) == (together.kinds, together.notes)
    assert counts[-1] == (28, 28)


def test_a_manifest_may_have_blank_lines_a_byte_order_mark_and_no_final_newline(
    opened: Opener, phantoms: Path, tmp_path: Path
) -> None:
    lines = changed(phantoms, tmp_path, findings="Clear\u2028lungs.").read_text(encoding="utf-8").split("\n")
    rows = [json.loads(line) for line in lines if line]
    loose = tmp_path / "loose.jsonl"
    loose.write_text("\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8-sig")
    dataset = opened(loose)
    ids = [dataset.sample_id(row) for row in np.flatnonzero(dataset.table["task"] == 0).tolist()]
    assert ids == [row["sample_id"] for row in rows]
    assert dataset.encode(0).sample_id == ids[0]


@pytest.mark.parametrize("chunk", [module._CHUNK, 5])
def test_duplicate_ids_are_refused(opened: Opener, phantoms: Path, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK", chunk)
    lines = phantoms.read_text(encoding="utf-8").splitlines()
    (phantoms.parent / "twice.jsonl").write_text("\n".join([*lines[:8], lines[1]]), encoding="utf-8")
    with raises("twice.jsonl: sample_id: duplicate") as caught:
        opened(phantoms.parent / "twice.jsonl")
    assert "2 and 9" in caught.value.message


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"frontal": Path("gone.png")}, r"gone\.png: no such file"),
        ({"indication": "Cough <image>"}, "phantom-7-000000.* <image>"),
        ({"findings": "A <box> mass."}, "phantom-7-000000.* <box>"),
    ],
)
def test_invalid_samples_are_named_when_the_table_is_built(
    opened: Opener, phantoms: Path, tmp_path: Path, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        opened(changed(phantoms, tmp_path, **values))
    assert not (tmp_path / "tables").exists()


def test_a_study_that_changed_during_the_run_is_refused(opened: Opener, phantoms: Path, tmp_path: Path) -> None:
    manifest = changed(phantoms, tmp_path)
    dataset = opened(manifest)
    lines = manifest.read_text(encoding="utf-8").splitlines(keepends=True)
    lines[0] = lines[0].replace('"indication": "', '"indication": "Now ')
    manifest.write_text("".join([lines[0], *lines[1:]]), encoding="utf-8")
    with pytest.raises(InputError, match=manifest.name):
        [dataset.encode(row) for row in range(3)]


def test_coverage_is_the_fraction_of_a_patch_under_boxes_per_class() -> None:
    # On a radiograph twice as wide as high, the crop is the middle half: u = 2 x - 0.5.
    boxes = (Box(x_min=0.25, y_min=0, x_max=0.4375, y_max=0.5), Box(x_min=0, y_min=0, x_max=0.2, y_max=1))
    study = Study(sample_id="s", frontal=Path("f"), labels=[Label(kind="mass", boxes=boxes), Label(kind="edema")])
    cover = patch_coverage(study, ["edema", "mass"], 4, CropMap(100, 50)).reshape(4, 4, 2)
    np.testing.assert_allclose(cover[..., 1], [[1, 0.5, 0, 0]] * 2 + [[0] * 4] * 2, atol=1e-6)
    assert not cover[..., 0].any()


def test_steps_are_streamed_in_order_from_any_start(opened: Opener, phantoms: Path) -> None:
    dataset = opened(phantoms)
    schedule = DataSchedule(dataset.table, dataset.config)
    before = torch.get_rng_state()
    steps = list(iterate_steps(dataset, schedule, 0, workers=2))
    assert torch.equal(before, torch.get_rng_state())
    assert [step.number for step in steps] == list(range(schedule.steps))
    for step, rows, skipped, _ in steps:
        assert not skipped
        expected_ids = [tuple(dataset.sample_id(item) for item in row) for row in schedule.rows(step)]
        assert [row.sample_ids for row in rows] == expected_ids
        assert {row.totals for row in rows} == {schedule.totals(step)}
        assert sum(len(row.targets) for row in rows) == schedule.totals(step).answer_tokens
        assert {row.input_ids.shape[1] % LENGTH_MULTIPLE for row in rows} == {0}
    later = list(iterate_steps(dataset, schedule, 3, workers=1))
    assert [step.number for step in later] == list(range(3, schedule.steps))
    for ours, theirs in zip(later, steps[3:], strict=True):
        for one, other in zip(ours.rows, theirs.rows, strict=True):
            assert torch.equal(one.input_ids, other.input_ids)
            assert torch.equal(one.pixel_values, other.pixel_values)


@pytest.mark.parametrize("is_black", [False, True])
def test_unreadable_samples_can_be_skipped(opened: Opener, phantoms: Path, tmp_path: Path, is_black: bool) -> None:
    radiograph, manifest = tmp_path / "radiograph.png", tmp_path / "manifest.jsonl"
    bad, *others = read_manifest(phantoms)
    radiograph.write_bytes(bad.frontal.read_bytes())
    write_manifest(manifest, [bad.model_copy(update={"lateral": radiograph}), *others])
    dataset = opened(manifest, faults={"unreadable": "skip"}, tasks={"findings": 1}, epochs=1, global_batch=14)
    if is_black:
        Image.new("L", (64, 64)).save(radiograph)
    else:
        radiograph.write_bytes(radiograph.read_bytes()[:1000])
    schedule = DataSchedule(dataset.table, dataset.config)
    ((_, rows, (skipped,), _),) = iterate_steps(dataset, schedule)
    assert skipped[:2] == (bad.sample_id, int(dataset.table[0]["answer"]))
    assert "radiograph.png" in skipped.reason
    assert ("1 distinct gray value " in skipped.reason) == is_black
    assert {name for row in rows for name in row.sample_ids} == {study.sample_id for study in others}
    with raises("radiograph.png: file-unreadable"):
        stopping = schedule.config.model_copy(update={"faults": AnomalyConfig()})
        list(iterate_steps(dataset, DataSchedule(dataset.table, stopping)))


def test_all_missing_images_are_named_at_once(opened: Opener, phantoms: Path, tmp_path: Path) -> None:
    gone = [tmp_path / f"gone-{number}.png" for number in range(14)]
    studies = zip(read_manifest(phantoms), gone, strict=True)
    write_manifest(tmp_path / "m.jsonl", [study.model_copy(update={"lateral": path}) for study, path in studies])
    with pytest.raises(InputError, match=r"14 .*gone-0\.png: .*gone-9\.png: ") as error:
        opened(tmp_path / "m.jsonl")
    assert "gone-10.png" not in str(error.value)
    listed = (tmp_path / "images-not-read.txt").read_text(encoding="utf-8").splitlines()
    assert listed == [f"{path}: no such file" for path in gone]
    assert str(tmp_path / "images-not-read.txt") in str(error.value)


def test_a_source_without_any_task_share_is_skipped(opened: Opener, phantoms: Path) -> None:
    train = [{"manifest": phantoms, "tasks": {task: 1}} for task in ("findings", "grounded")]
    assert set(opened(train, tasks={"findings": 0, "grounded": 1}).table["source"].tolist()) == {1}
