import json
import math
from pathlib import Path
from typing import Any

import pytest
import tiny_runs
import torch
from draft_files import read_rows, without_time
from error_checks import raises
from rich.console import Console
from test_train import is_same, weights
from tiny_runs import CASES, write_damaged

import maira.train.validation as module
from maira.data.manifest import read_manifest, write_manifest
from maira.data.phantoms import write_phantoms
from maira.generate.drafts import generate_drafts
from maira.grounding.evaluation import complete_boxes
from maira.model.modeling import MairaForConditionalGeneration
from maira.model.processor import MairaProcessor
from maira.runtime.processes import DistributedContext
from maira.train.config.run_config import TASKS, TrainConfig
from maira.train.data.dataset import StudyDataset, open_dataset
from maira.train.logging import MetricsLogger
from maira.train.loss import MairaLossModel
from maira.train.parallel import ParallelModel
from maira.train.report_training import train
from maira.train.validation import BestCheckpoint, Validator, evaluation_mode, make_report_validator, sample_answers
from radfact.api import RadFact
from radfact.errors import InputError
from radfact.io.pairs import read_candidates_and_references
from radfact.judges.offline import OfflineJudge
from radfact.metrics.radfact.scores import SCORES

CHECKPOINT = Path(__file__).resolve().parents[2] / "checkpoints" / "phantom"
ALONE = DistributedContext(0, 1, torch.device("cpu"))
# Dropout makes the order in which random numbers are drawn show in the losses.
TEXT = tiny_runs.TEXT | {"attention_dropout": 0.1}
Shipped = tuple[MairaForConditionalGeneration, MairaProcessor]
FRESH = {"vision_config": tiny_runs.VISION, "text_config": TEXT, "projector_n_layers": 2, "vocab_size": 300}


def make_config(manifest: Path, out: Path, validation: dict[str, Any], **changes: Any) -> TrainConfig:
    sources = {"sources": [{"manifest": manifest}]} | validation
    values: dict[str, Any] = {"model": CHECKPOINT, "validation": sources, "passes": 400, "token_budget": 2000}
    values |= {"trained": ["adapter", "language_model"], "patch_loss": 0}
    return tiny_runs.train_config(manifest, out, **(values | changes))


def make_validator(train_config: TrainConfig, shipped: Shipped, console: Console | None = None) -> Validator:
    log = MetricsLogger(train_config, shipped[0].config, ALONE, console or tiny_runs.quiet(), 100)
    log.start(0)
    return make_report_validator(train_config, shipped[1], ALONE, log, 100)


def in_training(model: MairaForConditionalGeneration) -> ParallelModel:
    training = MairaLossModel(model, 0, 0.0).train()
    return ParallelModel(training, training, ALONE)


@pytest.fixture(scope="module")
def radiographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The manifest of four phantoms as the shipped checkpoint knows them."""
    folder = tmp_path_factory.mktemp("radiographs")
    list(write_phantoms(folder, 4, seed=2, size=224))
    return folder / "manifest.jsonl"


@pytest.fixture(scope="module")
def shipped() -> Shipped:
    model = MairaForConditionalGeneration.from_pretrained(CHECKPOINT, dtype=torch.float32)
    return model, MairaProcessor.from_pretrained(CHECKPOINT)


@pytest.fixture(scope="module")
def dataset(radiographs: Path, shipped: Shipped, tmp_path_factory: pytest.TempPathFactory) -> StudyDataset:
    train_config = make_config(radiographs, Path("out"), {})
    return open_dataset(train_config, train_config.train, shipped[1], tmp_path_factory.mktemp("tables"))


@pytest.mark.slow
def test_losses_equal_those_of_single_samples(
    radiographs: Path, shipped: Shipped, dataset: StudyDataset, tmp_path: Path
) -> None:
    model = shipped[0]
    sums = {task: torch.zeros(2, dtype=torch.float64) for task in TASKS}
    for place in range(len(dataset.table)):
        sample = dataset.encode(place)
        ids = torch.tensor([sample.input_ids])
        labels = ids.clone()
        labels[0, : sample.prompt_tokens] = -100
        pixels = torch.from_numpy(sample.images)[:, None].expand(-1, 3, -1, -1)
        with torch.no_grad():
            mean = model.eval()(input_ids=ids, pixel_values=pixels, labels=labels).loss
        answer = len(sample.input_ids) - sample.prompt_tokens
        sums[sample.task] += torch.tensor([float(mean) * answer, answer], dtype=torch.float64)
    expected = {f"loss/{task}": float(total / count) for task, (total, count) in sums.items()}
    total, count = sum(sums.values(), torch.zeros(2, dtype=torch.float64))
    figures, skipped = make_validator(make_config(radiographs, tmp_path, {}), shipped).losses(in_training(model))
    assert not skipped
    assert figures == pytest.approx(expected | {"loss/all": float(total / count)}, rel=1e-5)


@pytest.mark.slow
def test_drafts_and_scores_equal_those_of_the_commands(radiographs: Path, shipped: Shipped, tmp_path: Path) -> None:
    train_config = make_config(radiographs, tmp_path, {"drafts_every": 1, "drafts": 3})
    figures = make_validator(train_config, shipped).drafts(in_training(shipped[0]), 7)
    file = tmp_path / "drafts" / "step-000007.jsonl"
    rows = without_time(file, "model")
    chosen = [study for study in read_manifest(radiographs) if study.sample_id in {row["sample_id"] for row in rows}]
    generate_drafts(chosen, CHECKPOINT, tmp_path / "drafts.jsonl")
    assert len(rows) == 3
    assert rows == without_time(tmp_path / "drafts.jsonl", "model")
    pairs = read_candidates_and_references(file, radiographs, missing="skip")
    expected = RadFact(OfflineJudge(), bootstrap=0).score(pairs.pairs).scores
    assert expected["logical_f1"]
    boxes = complete_boxes(chosen, CHECKPOINT, tmp_path / "boxes.jsonl").scores
    for name, value in {f"drafts/{name}": expected[name] for name in SCORES}.items():
        assert figures[name] == pytest.approx(value)
    for name, ours in (("precision", "precision"), ("recall", "recall"), ("mean_iou", "iou")):
        assert figures[f"boxes/{ours}"] == pytest.approx(boxes[name].point)


@pytest.mark.parametrize("world_size", [1, 2, 3, 40])
def test_processes_share_rows_equally(world_size: int, dataset: StudyDataset, radiographs: Path) -> None:
    train_config = make_config(radiographs, Path("out"), {"samples": 9})
    drawn = sample_answers(dataset, train_config)
    contexts = [DistributedContext(rank, world_size, torch.device("cpu")) for rank in range(world_size)]
    dealt = [module._shard_rows(dataset, drawn, train_config, context) for context in contexts]
    assert len({len(rows) for rows, _ in dealt}) == 1
    counted = [place for rows, own in dealt for row in rows[:own] for place in row]
    assert sorted(counted) == drawn.tolist()


@pytest.mark.parametrize(("figure", "values", "kept"), CASES["best checkpoints"])
def test_the_best_has_the_lowest_loss_or_the_highest_score(
    figure: str, values: list[float | None], kept: list[int], tmp_path: Path
) -> None:
    train_config = make_config(Path("m.jsonl"), tmp_path, {"best_by": figure})
    written: list[int] = []
    for step, value in enumerate(values, start=1):
        best = BestCheckpoint(train_config, [figure])
        assert best.start(step) is None  # a resumed run remembers
        if best.is_beaten_by({figure: value}):
            written.append(step)
            assert best.replace(step, {figure: value}, lambda folder: folder.mkdir(exist_ok=True), ALONE) is None
    assert written == kept
    held = json.loads((tmp_path / "checkpoint-best" / "best.json").read_text(encoding="utf-8"))
    assert held == {"step": kept[-1], "figure": figure, "value": values[-1], "measured_on": ""}
    # A checkpoint of a later step than the run starts from is of an earlier run.
    restarted = BestCheckpoint(train_config, [figure])
    assert f"is of step {kept[-1]} of an earlier run" in (restarted.start(kept[-1] - 1) or "")
    assert restarted.is_beaten_by({figure: values[0]})
    with raises("validation.best_by: unknown-name"):
        BestCheckpoint(train_config, ["drafts/logical_f1"])


def test_writing_a_best_checkpoint_is_retried(tmp_path: Path) -> None:
    def full(_: Path) -> None:
        raise OSError(28, "No space left on device")

    best = BestCheckpoint(make_config(Path("m.jsonl"), tmp_path, {"best_by": "loss/all"}), ["loss/all"])
    assert "No space left" in (best.replace(1, {"loss/all": 1.0}, full, ALONE) or "")
    assert best.is_beaten_by({"loss/all": 1.5})


def test_a_best_checkpoint_of_other_samples_is_replaced(radiographs: Path, tmp_path: Path, shipped: Shipped) -> None:
    console = tiny_runs.quiet()
    for samples, expected in ((2, [True]), (2, [False]), (3, [True])):
        train_config = make_config(radiographs, tmp_path, {"best_by": "loss/all", "samples": samples})
        validator = make_validator(train_config, shipped, console)
        validator.start(1)
        best = validator._best
        assert [best.is_beaten_by({"loss/all": 9.0})] == expected
        best.replace(1, {"loss/all": 1.0}, lambda folder: folder.mkdir(exist_ok=True), ALONE)
    assert tiny_runs.said(console).count("the validation data has changed") == 1


def test_non_finite_scores_are_reported_and_never_best(
    radiographs: Path, shipped: Shipped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    console = tiny_runs.quiet()
    train_config = make_config(radiographs, tmp_path, {"best_by": "loss/all", "every": 1})
    validator = make_validator(train_config, shipped, console)
    for step, value in enumerate([math.nan, 2.0, math.inf, 1.0], start=1):
        monkeypatch.setattr(validator, "losses", lambda _, value=value: ({"loss/all": value}, []))
        validator.after_step(
            step, in_training(shipped[0]), lambda folder: folder.mkdir(exist_ok=True), lambda _: pytest.fail("left out")
        )
        held = tmp_path / "checkpoint-best" / "best.json"
        assert (json.loads(held.read_text(encoding="utf-8"))["step"] if held.exists() else 0) == [0, 2, 2, 4][step - 1]
    assert "loss/all after step 1: not finite" in tiny_runs.said(console)


@pytest.mark.slow
def test_unreadable_samples_are_excluded_from_losses(radiographs: Path, shipped: Shipped, tmp_path: Path) -> None:
    manifest = write_damaged(radiographs, tmp_path, 0)
    studies, model, losses = read_manifest(manifest), in_training(shipped[0]), []
    for part in (studies, studies[1:], studies[:1]):
        write_manifest(manifest, part)
        train_config = make_config(manifest, tmp_path, {}, faults={"unreadable": "skip"})
        losses.append(make_validator(train_config, shipped).losses(model))
    (figures, skipped), (expected, none), (unknown, all_samples) = losses
    assert figures == pytest.approx(expected, rel=1e-5)
    assert {sample.sample_id for sample in skipped} == {studies[0].sample_id}
    assert not none
    assert len(all_samples) == len(skipped)
    assert unknown["loss/all"] is None
    assert set(unknown.values()) == {None}


def test_studies_without_their_image_are_not_drafted(radiographs: Path, shipped: Shipped, tmp_path: Path) -> None:
    manifest, radiograph = write_damaged(radiographs, tmp_path, 0, size=None), tmp_path / "0.png"
    validation = {"drafts_every": 1, "drafts": 4}
    make_validator(make_config(manifest, tmp_path, validation), shipped)
    radiograph.unlink()
    with pytest.raises(InputError, match=r"0\.png: no such file, in a sample of the drafts\. .*unreadable=skip"):
        make_validator(make_config(manifest, tmp_path, validation), shipped)
    console = tiny_runs.quiet()
    train_config = make_config(manifest, tmp_path, validation, faults={"unreadable": "skip"})
    validator = make_validator(train_config, shipped, console)
    validator.drafts(in_training(shipped[0]), 7)
    drafted = [row["sample_id"] for row in read_rows(tmp_path / "drafts" / "step-000007.jsonl")]
    assert sorted(drafted) == sorted(study.sample_id for study in read_manifest(radiographs)[1:])
    assert f"requests without a response: 1; the first: {radiograph}: no such file" in tiny_runs.said(console)


@pytest.mark.slow
def test_a_validation_of_only_unreadable_samples_ends_every_start(phantoms: Path, tmp_path: Path) -> None:
    manifest = write_damaged(phantoms, tmp_path, 0, count=1)
    options: dict[str, Any] = {"model": FRESH, "train": [{"manifest": phantoms}], "passes": 8, "save_every": 2}
    config = make_config(manifest, tmp_path / "run", {"every": 2}, faults={"unreadable": "skip"}, **options)
    for _ in range(2):
        with pytest.raises(InputError, match=r"(\d) of \1 samples of the validation after step 2 "):
            train(config, tiny_runs.quiet())
    assert not [row for row in tiny_runs.metrics(tmp_path / "run") if "loss/all" in row]


@pytest.mark.slow
def test_a_failed_validation_is_repeated_on_resume(phantoms: Path, tmp_path: Path) -> None:
    manifest = write_damaged(phantoms, tmp_path, 0)
    # The next start resumes from the state before the validation, even if states are rarely saved.
    options: dict[str, Any] = {"model": FRESH, "train": [{"manifest": phantoms}], "passes": 16, "save_every": 100}
    validation, out = {"sources": [{"manifest": manifest}], "every": 2, "best_by": "loss/all"}, tmp_path / "run"
    with pytest.raises(InputError, match=r"0\.png: .*, in a sample of the validation\. .*faults\.unreadable=skip"):
        train(make_config(manifest, out, validation, **options), tiny_runs.quiet())
    assert (out / "states" / "step-000002" / "state.json").exists()
    console = tiny_runs.quiet()
    options["faults"] = {"unreadable": "skip"}
    for _ in range(2):  # the second time all is done
        train(make_config(manifest, out, validation, **options), console)
    assert [row["step"] for row in tiny_runs.metrics(out) if "loss/all" in row] == [2, 4]
    faults = read_rows(out / "faults.jsonl")
    actions = [(fault["step"], fault["part"], fault["action"]) for fault in faults]
    assert actions == [(step, "validation", "skip") for step in (2, 4)]
    assert {name for fault in faults for name in fault["sample_ids"]} == {read_manifest(manifest)[0].sample_id}
    assert tiny_runs.said(console).count("samples of the validation after step 2 cannot be read") == 1
    assert "the validation after step 4" not in tiny_runs.said(console)


def test_evaluation_restores_the_random_state() -> None:
    model = torch.nn.Linear(1, 1)
    before = torch.get_rng_state()
    with evaluation_mode(model):
        torch.rand(())
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.slow
def test_validation_does_not_change_training(phantoms: Path, tmp_path: Path) -> None:
    validation = {"every": 2, "samples": 6, "drafts_every": 3, "drafts": 1, "best_by": "loss/all"}
    logs = []
    for name, options in (("with", validation), ("without", {"sources": []})):
        train(make_config(phantoms, tmp_path / name, options, model=FRESH, passes=16), tiny_runs.quiet())
        logs.append(tiny_runs.metrics(tmp_path / name))
    assert [row["step"] for row in logs[0] if "loss/all" in row] == [2, 4]
    assert [row for row in logs[0] if "lr" in row] == logs[1]
    assert is_same(weights(tmp_path / "with"), weights(tmp_path / "without"))
    best = tmp_path / "with" / "checkpoint-best"
    assert json.loads((best / "best.json").read_text(encoding="utf-8"))["step"] == 4
    MairaForConditionalGeneration.from_pretrained(best)
