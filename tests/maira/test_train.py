from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from torch import nn

import maira.train.loop as loop
from data.manifest import read_manifest, write_manifest
from data.study import Label, Study
from maira.model import MairaForConditionalGeneration
from maira.processor import MairaProcessor
from maira.prompts import Task
from maira.train.batches import LENGTH_STEP, Samples, patch_coverage, plan_epoch
from maira.train.loop import schedule, train
from maira.train.parts import load_parts
from maira.train.recipe import Recipe
from radfact.errors import InputError, RunFailed
from radfact.report import Box, Sentence

VISION: dict[str, Any] = {
    "image_size": 64,
    "patch_size": 16,
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "stem": "conv",
    "frozen": False,
}
TEXT: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
TIMES = {"seconds", "samples_per_second", "tokens_per_second", "data_wait"}


def recipe(manifest: Path, out: Path, **changes: Any) -> Recipe:
    values: dict[str, Any] = {
        "model": {"vision_config": VISION, "text_config": TEXT, "projector_n_layers": 2, "vocab_size": 300},
        "train": manifest,
        "out": out,
        "tasks": {"grounded": 2, "findings": 1, "phrase": 1},
        "global_batch": 4,
        "micro_batch": 2,
        "passes": 32,
        "learning_rate": 3e-3,
        "patch_loss": 0.5,
        "precision": "no",
        "save_every": 3,
        "log_every": 1,
    }
    return Recipe.model_validate(values | changes)


def quiet() -> Console:
    return Console(file=StringIO())


def metrics(out: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{key: value for key, value in row.items() if key not in TIMES} for row in rows]


@pytest.fixture(scope="module")
def finished(phantoms: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was never interrupted."""
    out = tmp_path_factory.mktemp("run")
    train(recipe(phantoms, out), quiet())
    return out


class Interrupted(BaseException):
    """As KeyboardInterrupt: nothing in the loop catches it."""


def interrupt_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    plain = loop._Run.step

    def stepping(run: Any, *arguments: Any) -> Any:
        if run.progress.step == step:
            raise Interrupted
        return plain(run, *arguments)

    monkeypatch.setattr(loop._Run, "step", stepping)


def test_a_run_logs_every_step_and_leaves_a_checkpoint_that_loads(finished: Path) -> None:
    rows = metrics(finished)
    assert [row["step"] for row in rows] == list(range(1, 9))
    assert {"loss", "answer", "patches", "lr", "grad_norm"} <= rows[0].keys()
    model = MairaForConditionalGeneration.from_pretrained(finished / "checkpoint")
    processor = MairaProcessor.from_pretrained(finished / "checkpoint")
    assert model.config.image_seq_length == processor.image_seq_length == 16
    assert len(processor.tokenizer) == model.config.text_config.vocab_size


def test_training_lowers_the_loss(finished: Path) -> None:
    rows = metrics(finished)
    assert rows[-1]["answer"] < rows[0]["answer"] - 0.3


def test_the_auxiliary_head_is_no_part_of_the_checkpoint(finished: Path) -> None:
    model = MairaForConditionalGeneration.from_pretrained(finished / "checkpoint")
    assert not [name for name in model.state_dict() if "patch_head" in name]


@pytest.mark.parametrize("step", [2, 4, 7])
def test_an_interrupted_run_goes_on_as_if_nothing_had_happened(
    step: int, phantoms: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_at(monkeypatch, step)
    with pytest.raises(Interrupted):
        train(recipe(phantoms, tmp_path), quiet())
    assert len(metrics(tmp_path)) == step
    monkeypatch.undo()
    train(recipe(phantoms, tmp_path), quiet())
    assert metrics(tmp_path) == metrics(finished)
    ours, theirs = (
        MairaForConditionalGeneration.from_pretrained(out / "checkpoint").state_dict() for out in (tmp_path, finished)
    )
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_crash_between_the_renames_of_a_save_costs_nothing(
    phantoms: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Path.rename

    def renaming(path: Path, target: Path) -> Path:
        # The second save, at step 6, moves the state of step 3 away and gets no further.
        if path.name == "state.writing" and (tmp_path / "state.old").exists():
            raise Interrupted
        return plain(path, target)

    monkeypatch.setattr(Path, "rename", renaming)
    with pytest.raises(Interrupted):
        train(recipe(phantoms, tmp_path), quiet())
    monkeypatch.undo()
    said = Console(file=StringIO(), width=200)
    train(recipe(phantoms, tmp_path), said)
    assert isinstance(said.file, StringIO)
    assert "at step 6 of 8" in said.file.getvalue()
    assert metrics(tmp_path) == metrics(finished)


def test_a_log_line_that_was_cut_off_is_dropped(phantoms: Path, tmp_path: Path) -> None:
    short = recipe(phantoms, tmp_path, passes=8)
    train(short, quiet())
    rows = metrics(tmp_path)
    with (tmp_path / "metrics.jsonl").open("a", encoding="utf-8") as handle:
        handle.write('{"step": 2, "lo')
    train(short, quiet())
    assert metrics(tmp_path) == rows


def test_a_folder_of_another_recipe_is_refused(phantoms: Path, tmp_path: Path) -> None:
    train(recipe(phantoms, tmp_path, passes=4), quiet())
    with pytest.raises(InputError, match="holds a run with another global_batch, learning_rate"):
        train(recipe(phantoms, tmp_path, passes=8, global_batch=8, learning_rate=1e-3), quiet())


def test_a_finished_run_can_be_made_longer(phantoms: Path, tmp_path: Path) -> None:
    train(recipe(phantoms, tmp_path, passes=8), quiet())
    train(recipe(phantoms, tmp_path, passes=12), quiet())
    assert [row["step"] for row in metrics(tmp_path)] == [1, 2, 3]


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_state(
    phantoms: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = loop.TrainingModel.forward
    seen: list[tuple[str, ...]] = []

    def diverging(model: loop.TrainingModel, batch: Any) -> Any:
        losses = plain(model, batch)
        seen.append(batch.sample_ids)
        return losses | {"loss": losses["loss"] * math.nan} if len(seen) == 10 else losses

    monkeypatch.setattr(loop.TrainingModel, "forward", diverging)
    with pytest.raises(RunFailed, match=r"the loss is nan at step 5, samples phantom-7-0000\d\d, ") as failed:
        train(recipe(phantoms, tmp_path), quiet())
    assert all(sample in str(failed.value) for sample in seen[-1])
    progress = torch.load(tmp_path / "state" / "custom_checkpoint_1.pkl", weights_only=False)
    assert progress["step"] == 3
    assert not (tmp_path / "checkpoint").exists()


def test_accumulated_gradients_are_those_of_one_large_batch(phantoms: Path, tmp_path: Path) -> None:
    # Batches of different sizes are drawn differently, so all studies are the same one.
    studies = read_manifest(phantoms)
    runs = []
    for micro in (1, 4):
        one = [studies[0].model_copy(update={"sample_id": f"s{i}"}) for i in range(4)]
        manifest = tmp_path / f"{micro}.jsonl"
        write_manifest(manifest, one)
        train(recipe(manifest, tmp_path / str(micro), micro_batch=micro, passes=8, tasks={"grounded": 1}), quiet())
        runs.append(metrics(tmp_path / str(micro)))
    for ours, theirs in zip(*runs, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-3)


def test_a_checkpoint_can_be_trained_further(finished: Path, phantoms: Path, tmp_path: Path) -> None:
    train(recipe(phantoms, tmp_path, model=finished / "checkpoint", passes=4), quiet())
    (first,) = metrics(tmp_path)
    assert first["answer"] < metrics(finished)[0]["answer"] - 0.3


def test_a_frozen_encoder_stays_as_it_was(phantoms: Path, tmp_path: Path) -> None:
    frozen = recipe(
        phantoms,
        tmp_path,
        passes=8,
        patch_loss=0,
        model={"vision_config": VISION | {"frozen": True}, "text_config": TEXT, "vocab_size": 300},
    )
    train(frozen, quiet())
    torch.manual_seed(frozen.seed)
    before, _ = load_parts(frozen, read_manifest(phantoms))
    after = MairaForConditionalGeneration.from_pretrained(tmp_path / "checkpoint")
    assert torch.equal(before.vision_tower.vit.pos_embed, after.vision_tower.vit.pos_embed)
    assert not torch.equal(before.language_model.lm_head.weight, after.language_model.lm_head.weight)


def test_a_run_without_its_manifest_names_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.jsonl: no such file"):
        train(recipe(tmp_path / "none.jsonl", tmp_path / "out"), quiet())
    assert not (tmp_path / "out").exists()


def test_a_missing_image_is_one_line_also_from_a_worker_process(phantoms: Path, tmp_path: Path) -> None:
    studies = read_manifest(phantoms)
    manifest = tmp_path / "manifest.jsonl"
    write_manifest(manifest, [s.model_copy(update={"lateral": tmp_path / "gone.png"}) for s in studies])
    with pytest.raises(InputError, match=r"gone\.png: no such file") as caught:
        train(recipe(manifest, tmp_path / "out"), quiet())
    assert "\n" not in str(caught.value)


def test_too_few_studies_for_one_batch_are_refused(phantoms: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="too few studies"):
        train(recipe(phantoms, tmp_path / "out", micro_batch=16, global_batch=16), quiet())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"micro_batch": 3}, "field 'global_batch': must be a multiple of micro_batch"),
        ({"model": "nowhere"}, "config.json is missing"),
        ({"model": {"vision_config": VISION, "text_config": TEXT | {"hiden_size": 3}}}, "text_config.hiden_size"),
        ({"model": {"vision_config": VISION, "text_config": TEXT | {"hidden_size": "3"}}}, "field 'model': .*int"),
        ({"model": {"vision_config": VISION | {"hidden_size": 60}, "text_config": TEXT}}, "multiple of 64, not 60"),
        ({"model": {"vision_config": VISION | {"num_attention_heads": 3}, "text_config": TEXT}}, "3 attention heads"),
        ({"model": {"vision_config": VISION, "text_config": TEXT, "image_merge": 3}}, "image_merge 3 does not divide"),
    ],
)
def test_a_recipe_whose_parts_do_not_fit_is_refused(
    changes: dict[str, Any], message: str, phantoms: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        train(recipe(phantoms, tmp_path / "out", **changes), quiet())


def test_an_out_that_is_a_file_is_refused(phantoms: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine", encoding="utf-8")
    with pytest.raises(InputError, match="is a file"):
        train(recipe(phantoms, tmp_path / "out"), quiet())


def test_prior_reports_without_an_image_are_counted(phantoms: Path, tmp_path: Path) -> None:
    studies = [s.model_copy(update={"prior_frontal": None}) for s in read_manifest(phantoms)]
    manifest = tmp_path / "manifest.jsonl"
    write_manifest(manifest, [s.model_copy(update={"prior_report": "Clear lungs."}) for s in studies])
    said = Console(file=StringIO(), width=200)
    with pytest.warns(UserWarning, match="prior report without a prior image"):
        train(recipe(manifest, tmp_path / "out", passes=4), said)
    assert isinstance(said.file, StringIO)
    assert "14 of 14 studies: a prior report without a prior image" in said.file.getvalue()


SENTENCE = Sentence(text="A nodule.", boxes=(Box(x_min=0.1, y_min=0.1, x_max=0.2, y_max=0.2),))


@st.composite
def study_lists(draw: st.DrawFn) -> list[Study]:
    flags = draw(st.lists(st.tuples(*[st.booleans()] * 5), max_size=40))
    return [
        Study(
            sample_id=f"s{i}",
            frontal="f.png",
            lateral="l.png" if lateral else None,
            prior_frontal="p.png" if prior else None,
            findings="Clear lungs." if findings else None,
            grounded_findings=[SENTENCE] if grounded else None,
            phrases=[SENTENCE] if phrases else None,
        )
        for i, (lateral, prior, findings, grounded, phrases) in enumerate(flags)
    ]


def plan_recipe(seed: int, micro: int, **changes: Any) -> Recipe:
    return recipe(Path("m.jsonl"), Path("out"), seed=seed, micro_batch=micro, global_batch=micro, **changes)


@settings(max_examples=60, deadline=None)
@given(study_lists(), st.integers(0, 99), st.integers(0, 5), st.integers(1, 4))
def test_an_epoch_holds_each_study_at_most_once_and_is_a_function_of_seed_and_epoch(
    studies: list[Study], seed: int, epoch: int, micro: int
) -> None:
    plan = plan_epoch(studies, plan_recipe(seed, micro), epoch)
    assert plan == plan_epoch(studies, plan_recipe(seed, micro), epoch)
    indices = [index for batch in plan for index, _ in batch]
    assert len(set(indices)) == len(indices)
    assert {len(batch) for batch in plan} <= {micro}
    answers = {"findings": "findings", "grounded": "grounded_findings", "phrase": "phrases"}
    assert all(getattr(studies[index], answers[task]) is not None for batch in plan for index, task in batch)
    answerable = [s for s in studies if s.findings or s.grounded_findings or s.phrases]
    # At most one batch of each number of images is left over.
    assert len(indices) >= len(answerable) - 3 * (micro - 1)


def test_epochs_and_seeds_differ(phantoms: Path) -> None:
    studies = read_manifest(phantoms)
    plans = [plan_epoch(studies, plan_recipe(seed, 2), epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert len({str(plan) for plan in plans}) == 4


def test_tasks_are_mixed_by_their_weights() -> None:
    studies = [
        Study(sample_id=f"s{i}", frontal="f.png", findings="Clear.", grounded_findings=[SENTENCE], phrases=[SENTENCE])
        for i in range(2000)
    ]
    weights: dict[Task, float] = {"grounded": 6.0, "findings": 3.0, "phrase": 1.0}
    counts = Counter(task for batch in plan_epoch(studies, plan_recipe(0, 2, tasks=weights), 0) for _, task in batch)
    for task, weight in weights.items():
        assert counts[task] / 2000 == pytest.approx(weight / 10, abs=0.04)


def test_a_task_of_no_weight_is_never_taken() -> None:
    studies = [Study(sample_id=f"s{i}", frontal="f.png", findings="Clear.") for i in range(8)]
    assert plan_epoch(studies, plan_recipe(0, 2, tasks={"grounded": 1, "findings": 0}), 0) == []


@pytest.fixture(scope="module")
def batches(phantoms: Path) -> Iterator[Any]:
    made = recipe(phantoms, Path("out"))
    studies = read_manifest(phantoms)
    _, processor = load_parts(made, studies)
    kinds = sorted({label.kind for study in studies for label in study.labels or ()})
    plan = plan_epoch(studies, made, 0)
    samples = Samples(studies, plan, processor, made, 0, kinds, 4)
    return [(samples[i], [studies[index] for index, _ in plan[i]]) for i in range(len(samples))], processor


def test_labels_are_the_answers_and_nothing_else(batches: Any) -> None:
    made, processor = batches
    for batch, studies in made:
        assert batch.sample_ids == tuple(study.sample_id for study in studies)
        assert batch.input_ids.shape[1] % LENGTH_STEP == 0
        for ids, labels, mask in zip(batch.input_ids, batch.labels, batch.attention_mask, strict=True):
            counted = labels != -100
            assert torch.equal(ids[counted], labels[counted])
            assert labels[counted][-1] == processor.tokenizer.eos_token_id
            text = processor.tokenizer.decode(ids[(mask == 1) & ~counted])
            assert text.endswith("ASSISTANT:")
            assert int(mask.sum()) == counted.nonzero().max() + 1


def test_each_sample_knows_its_frontal(batches: Any) -> None:
    made, processor = batches
    assert {batch.pixel_values.shape[0] // 2 for batch, _ in made} >= {1, 2}
    for batch, studies in made:
        for row, study in zip(batch.frontal_rows, studies, strict=True):
            expected = processor.image_processor([study.frontal])["pixel_values"][0]
            assert torch.equal(batch.pixel_values[row], expected)


def test_coverage_is_the_share_of_a_patch_under_boxes_of_a_kind(tmp_path: Path) -> None:
    from PIL import Image

    path = tmp_path / "f.png"
    Image.fromarray(np.zeros((50, 100), np.uint8)).save(path)
    # On a film twice as wide as high, the crop is the middle half: u = 2 x - 0.5.
    boxes = (Box(x_min=0.25, y_min=0, x_max=0.4375, y_max=0.5), Box(x_min=0, y_min=0, x_max=0.2, y_max=1))
    study = Study(sample_id="s", frontal=path, labels=[Label(kind="mass", boxes=boxes), Label(kind="edema")])
    cover = patch_coverage(study, ["edema", "mass"], 4).reshape(4, 4, 2)
    np.testing.assert_allclose(cover[..., 1], [[1, 0.5, 0, 0]] * 2 + [[0] * 4] * 2, atol=1e-6)
    assert not cover[..., 0].any()


def test_the_rate_warms_up_and_falls_to_nothing() -> None:
    factor = schedule(recipe(Path("m"), Path("o"), warmup=0.1), 100)
    rates = [factor(step) for step in range(101)]
    assert rates[:10] == pytest.approx([(i + 1) / 10 for i in range(10)])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[55] == pytest.approx(0.5, abs=0.02)
    assert rates[100] == 0


def test_matrices_decay_and_vectors_do_not() -> None:
    decayed, plain = loop._groups(nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3)), 0.1)
    assert [tuple(p.shape) for p in decayed["params"]] == [(3, 2)]
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)
    assert len(plain["params"]) == 3
