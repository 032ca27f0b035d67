"""Direct preference optimization: loss and gradient, reference log-probabilities, resuming, pairs, and bad input."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from draft_files import read_rows, without_time
from error_checks import raises, raises_code
from packed_rows import gradients
from PIL import Image
from review_files import CORNERS, change, finish, new_store
from test_train import Interrupted, interrupt_at, is_same, weights
from tiny_runs import Command, metrics, quiet
from typer.testing import CliRunner

from maira.cli.main import app
from maira.data.manifest import read_manifest
from maira.data.study import Study
from maira.model.config import read_config
from maira.model.modeling import MairaForConditionalGeneration
from maira.model.processor import MairaProcessor
from maira.model.task_examples import make_example
from maira.train import dpo
from maira.train.config.run_config import DpoConfig, TrainConfig
from maira.train.cost.workload import measure_workload
from maira.train.data.batches import EncodedRow, collate_row
from maira.train.data.dataset import data_fingerprints
from maira.train.data.packing import EncodedSample, PackedBatch, Preference, StepTotals, collate
from maira.train.data.preferences import open_preferences
from maira.train.dpo import _STATISTICS, REFERENCE_FILE, DpoLoss
from maira.train.loss import Losses, MairaLossModel
from maira.train.monitoring import NAMES
from maira.train.record import RECORD_FILE
from maira.train.report_training import train
from radfact.errors import ErrorCode, InputError
from radfact.io.jsonl import read_jsonl, write_jsonl

BETA, NLL_WEIGHT = 0.3, 0.5
SCORES = "reward_metrics:Brevity=1"


def texts(study: Study, kept: int) -> str:
    """The first sentences of the report of a study as the model is trained on them."""
    shown = study.model_copy(update={"grounded_findings": (study.grounded_findings or [])[:kept]})
    return make_example(shown, "grounded").target or ""


@pytest.fixture(scope="module")
def preferences(phantoms: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pair for each of 12 phantoms: one sentence is chosen, two are rejected."""
    file = tmp_path_factory.mktemp("preferences") / "preferences.jsonl"
    rows = [
        {"sample_id": study.sample_id, "chosen": texts(study, 1), "rejected": texts(study, 2), "reader": "Ada"}
        for study in read_manifest(phantoms)[:12]
    ]
    write_jsonl(file, rows)
    return file


def values(checkpoint: Path, manifest: Path, preferences: Path, out: Path, **changes: Any) -> dict[str, Any]:
    """A config as YAML has it: 4 steps of 4 pairs."""
    return {
        "model": str(checkpoint),
        "trained": ["adapter", "language_model"],
        "train": [{"manifest": str(manifest), "preferences": str(preferences)}],
        "tasks": {"grounded": 1},
        "out": str(out),
        "dpo": {"beta": BETA, "nll_weight": NLL_WEIGHT},
        "global_batch": 4,
        "token_budget": 1500,
        "passes": 16,
        "learning_rate": 1e-3,
        "warmup": 0.0,
        "precision": "no",
        "save_every": 2,
        "log_every": 1,
        "workers": 1,
        "trackers": [],
        **changes,
    }


def config_of(*arguments: Any, **changes: Any) -> TrainConfig:
    return TrainConfig.model_validate(values(*arguments, **changes))


@pytest.fixture(scope="module")
def pairs(processor: MairaProcessor, studies: Any) -> list[EncodedSample]:
    """Three pairs of answers, with other log-probabilities than the model's."""
    encoded = []
    for index, study in enumerate(studies[:3]):
        example = make_example(study, "grounded")
        prompt = processor.encode_prompt(example.prompt, len(example.images))
        images = processor.image_processor(list(example.images))["pixel_values"][:, 0].numpy()
        chosen, rejected = (processor.encode_target(texts(study, kept)) for kept in (2, 1))
        preference = Preference([*prompt, *rejected], (-100.0 - index, -70.0 + index))
        encoded.append(
            EncodedSample(str(index), "grounded", [*prompt, *chosen], len(prompt), images, preference=preference)
        )
    return encoded


def loss_model(model: MairaForConditionalGeneration) -> MairaLossModel:
    return MairaLossModel(model, 0, 0.0, policy=DpoLoss(DpoConfig(beta=BETA, nll_weight=NLL_WEIGHT)))


def row_of(pairs: list[EncodedSample]) -> PackedBatch:
    return collate(pairs, StepTotals(1, 1), 0, 64)


def log_prob(model: MairaForConditionalGeneration, ids: list[int], prompt: int, images: Any) -> torch.Tensor:
    """Log-probability of an answer by the model's plain forward pass."""
    pixels = torch.from_numpy(images)[:, None].expand(-1, 3, -1, -1)
    scores = model(input_ids=torch.tensor([ids]), pixel_values=pixels).logits[0, prompt - 1 : -1].float()
    return scores.log_softmax(-1).gather(1, torch.tensor(ids[prompt:])[:, None]).sum()


def test_loss_and_gradient_are_those_of_the_formula(
    model: MairaForConditionalGeneration, pairs: list[EncodedSample]
) -> None:
    training = loss_model(model)
    losses: Losses = training(row_of(pairs))
    losses.answer.backward()
    ours = gradients(training)
    total, rewards, nll = torch.zeros(()), [], 0.0
    for pair in pairs:
        assert pair.preference is not None
        assert pair.preference.reference_log_probs is not None
        chosen, rejected = (
            log_prob(model, ids, pair.prompt_tokens, pair.images)
            for ids in (pair.input_ids, pair.preference.rejected_ids)
        )
        references = pair.preference.reference_log_probs
        margin = BETA * ((chosen - references[0]) - (rejected - references[1]))
        mean = -chosen / (len(pair.input_ids) - pair.prompt_tokens)
        total = total - torch.log(1 / (1 + torch.exp(-margin))) + NLL_WEIGHT * mean
        rewards.append((BETA * (chosen.item() - references[0]), BETA * (rejected.item() - references[1])))
        nll += mean.item()
    total.backward()
    theirs = gradients(training)
    assert losses.answer.item() == pytest.approx(total.item(), rel=1e-4)
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        torch.testing.assert_close(ours[name], gradient, atol=1e-4, rtol=2e-3, msg=name)
    sums = np.array(rewards).sum(0)
    correct = sum(chosen > rejected for chosen, rejected in rewards)
    assert losses.statistics is not None
    expected = [len(pairs), *sums, sums[0] - sums[1], correct, nll]
    assert losses.statistics.tolist() == pytest.approx(expected, rel=1e-3, abs=1e-3)


def test_a_packed_row_has_the_sum_of_its_pairs(
    model: MairaForConditionalGeneration, pairs: list[EncodedSample]
) -> None:
    training = loss_model(model)
    with torch.no_grad():
        together = training(row_of(pairs))
        alone = [training(row_of([pair])) for pair in pairs]
    assert together.answer.item() == pytest.approx(sum(losses.answer.item() for losses in alone), rel=1e-4)
    torch.testing.assert_close(
        together.statistics, torch.stack([losses.statistics for losses in alone]).sum(0), rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize("is_swapped", [False, True])
def test_a_step_raises_the_chosen_answer_over_the_rejected_one(
    is_swapped: bool, model: MairaForConditionalGeneration, pairs: list[EncodedSample]
) -> None:
    first, second = (answer.input_ids for answer in pairs[0].answers)
    chosen, rejected = (second, first) if is_swapped else (first, second)
    pair = replace(pairs[0], input_ids=chosen, preference=Preference(rejected, None))
    training = MairaLossModel(model, 0, 0.0, policy=DpoLoss(DpoConfig()))
    with torch.no_grad():
        log_probs = (-training(row_of([pair])).per_sample).tolist()
    pair = replace(pair, preference=Preference(rejected, (log_probs[0], log_probs[1])))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    losses = training(row_of([pair]))
    losses.answer.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= 1e-5 * parameter.grad
        moved = training(row_of([pair]))
        for name, parameter in model.named_parameters():
            parameter.copy_(before[name])
    gradients(training)
    margin = _STATISTICS.index("rewards/margins")
    assert moved.statistics[margin] > losses.statistics[margin]
    assert moved.answer < losses.answer


@pytest.fixture(scope="module")
def finished(checkpoint: Path, phantoms: Path, preferences: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of 4 steps that was never interrupted."""
    out = tmp_path_factory.mktemp("dpo")
    train(config_of(checkpoint, phantoms, preferences, out), quiet())
    return out


def test_a_run_starts_at_the_reference_and_learns_the_preferences(finished: Path) -> None:
    first, *_, last = metrics(finished)
    assert first["rewards/margins"] == pytest.approx(0, abs=1e-3)
    assert first["loss"] == pytest.approx(math.log(2) + NLL_WEIGHT * first["nll_loss"], abs=1e-3)
    assert last["rewards/margins"] > 0.1
    assert last["rewards/margins"] == pytest.approx(last["rewards/chosen"] - last["rewards/rejected"], abs=1e-6)
    assert last["rewards/accuracies"] > 0.5


def test_the_reference_is_the_initial_model(
    finished: Path, checkpoint: Path, processor: MairaProcessor, phantoms: Path, preferences: Path
) -> None:
    saved = json.loads((finished / REFERENCE_FILE).read_text())["log_probs"]
    initial = MairaForConditionalGeneration.from_pretrained(checkpoint).eval()
    studies = {study.sample_id: study for study in read_manifest(phantoms)}
    rows = read_rows(preferences)
    assert len(saved) == len(rows) == 12
    with torch.no_grad():
        for row, log_probs in list(zip(rows, saved, strict=True))[:4]:
            example = make_example(studies[row["sample_id"]], "grounded")
            prompt = processor.encode_prompt(example.prompt, len(example.images))
            images = processor.image_processor(list(example.images))["pixel_values"][:, 0].numpy()
            expected = [
                log_prob(initial, [*prompt, *processor.encode_target(row[name])], len(prompt), images).item()
                for name in ("chosen", "rejected")
            ]
            assert log_probs == pytest.approx(expected, rel=1e-4)


def test_an_estimate_reads_the_preferences(checkpoint: Path, phantoms: Path, preferences: Path, tmp_path: Path) -> None:
    config = config_of(checkpoint, phantoms, preferences, tmp_path)
    processor = MairaProcessor.from_pretrained(checkpoint)
    table = open_preferences(config, processor, 4096).table
    workload = measure_workload(config, read_config(checkpoint))
    assert workload.answers == len(workload.rows) == 12
    assert "12 preference pairs" in workload.basis
    # two answers per pair
    assert (2 * workload.rows["images"] == table["images"]).all()
    assert (2 * workload.tokens - (table["prompt"] + table["answer"])).tolist() == [
        -(answer % 2) for answer in table["answer"].tolist()
    ]


def test_the_record_names_the_preferences(
    finished: Path, checkpoint: Path, phantoms: Path, preferences: Path, tmp_path: Path
) -> None:
    (source,) = json.loads((finished / "checkpoint" / RECORD_FILE).read_text())["data"]
    config = config_of(checkpoint, phantoms, preferences, tmp_path)
    assert source["preferences_sha256"] == data_fingerprints(config)["preferences"][0]
    assert source["samples"] == {"grounded": 12}
    # Runs without preferences have the configuration of earlier versions.
    plain = config_of(checkpoint, phantoms, preferences, tmp_path, train=str(phantoms), dpo=None)
    assert "preferences" not in plain.model_dump(mode="json")["train"][0]


def test_a_resumed_run_equals_an_uninterrupted_one(
    checkpoint: Path,
    phantoms: Path,
    preferences: Path,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = config_of(checkpoint, phantoms, preferences, tmp_path / "out")
    interrupt_at(monkeypatch, 3)
    with pytest.raises(Interrupted):
        train(config, quiet())
    monkeypatch.undo()
    reference = tmp_path / "out" / REFERENCE_FILE
    saved = reference.read_bytes()
    reference.unlink()
    with raises(f"{REFERENCE_FILE}: mismatch"):
        train(config, quiet())
    reference.write_bytes(saved)
    train(config, quiet())
    assert metrics(tmp_path / "out") == metrics(finished)
    assert is_same(weights(tmp_path / "out"), weights(finished))


@pytest.mark.parametrize("is_terminated", [False, True])
def test_reference_log_probabilities_are_computed_once(
    is_terminated: bool,
    checkpoint: Path,
    phantoms: Path,
    preferences: Path,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An interrupted or terminated run keeps the rows that it has computed."""
    config, rows = config_of(checkpoint, phantoms, preferences, tmp_path / "out"), list[int]()
    reference = tmp_path / "out" / REFERENCE_FILE
    monkeypatch.setattr(dpo, "_ROWS_PER_SAVE", 100 if is_terminated else 1)

    def collate(row: EncodedRow, *arguments: Any) -> PackedBatch:
        rows.append(len(row.samples))
        if len(rows) == 3:
            if not is_terminated:
                raise Interrupted
            signal.raise_signal(signal.SIGTERM)
        return collate_row(row, *arguments)

    monkeypatch.setattr(dpo, "collate_row", collate)
    with pytest.raises(Interrupted) if not is_terminated else raises_code(ErrorCode.INTERRUPTED):
        train(config, quiet())
    kept = [pair for pair in json.loads(reference.read_text())["log_probs"] if pair is not None]
    assert len(kept) == sum(rows[: 3 if is_terminated else 2])
    repeated = sum(rows) - len(kept)
    train(config, quiet())
    assert sum(rows) - repeated == 12
    assert reference.read_bytes() == (finished / REFERENCE_FILE).read_bytes()
    assert metrics(tmp_path / "out") == metrics(finished)


def test_changed_preferences_are_not_resumed(
    checkpoint: Path, phantoms: Path, preferences: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "preferences.jsonl"
    own.write_bytes(preferences.read_bytes())
    config = config_of(checkpoint, phantoms, own, tmp_path / "out")
    interrupt_at(monkeypatch, 3)
    with pytest.raises(Interrupted):
        train(config, quiet())
    monkeypatch.undo()
    first, *others = read_rows(own)
    write_jsonl(own, [{**first, "chosen": first["rejected"], "rejected": first["chosen"]}, *others])
    with raises("train: mismatch"):
        train(config, quiet())


def test_a_duplicate_study_is_refused(checkpoint: Path, phantoms: Path, preferences: Path, tmp_path: Path) -> None:
    manifest = phantoms.with_name("duplicate.jsonl")
    lines = phantoms.read_text().splitlines(keepends=True)
    manifest.write_text("".join([*lines, lines[0]]))
    with raises("duplicate.jsonl: sample_id: duplicate"):
        train(config_of(checkpoint, manifest, preferences, tmp_path / "out"), quiet())


def test_low_rank_adapters_start_at_the_reference(
    checkpoint: Path, phantoms: Path, preferences: Path, tmp_path: Path
) -> None:
    changes = {"trained": ["language_model"], "lora": {"rank": 4, "alpha": 8}, "passes": 8, "learning_rate": 1e-2}
    train(config_of(checkpoint, phantoms, preferences, tmp_path, **changes), quiet())
    first, second = metrics(tmp_path)
    assert first["rewards/margins"] == pytest.approx(0, abs=1e-3)
    assert second["rewards/margins"] > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_train_as_one(
    parallel: str, checkpoint: Path, phantoms: Path, preferences: Path, tmp_path: Path
) -> None:
    for size in (1, 2):
        config = values(checkpoint, phantoms, preferences, tmp_path / f"out{size}", passes=8, parallel=parallel)
        run = Command(tmp_path / str(size), size, **config)
        assert set(run.end()) == {0}, run.said
    for one, two in zip(metrics(tmp_path / "out1"), metrics(tmp_path / "out2"), strict=True):
        assert two == pytest.approx(one, rel=1e-3, abs=1e-3)


def test_a_validation_logs_what_is_not_preferred(
    checkpoint: Path, phantoms: Path, preferences: Path, tmp_path: Path
) -> None:
    validation = {"sources": [{"manifest": str(phantoms)}], "every": 1, "samples": 2, "drafts_every": 1, "drafts": 2}
    config = config_of(checkpoint, phantoms, preferences, tmp_path, passes=4, validation=validation)
    train(config, quiet())
    (row,) = [row for row in metrics(tmp_path) if "epoch" not in row]
    assert {"loss/all", "drafts/logical_f1", *NAMES} <= row.keys()
    with Image.open(tmp_path / "rewards.png") as plot:
        assert plot.getcolors(1 << 20) is not None


def test_unreadable_pairs_are_skipped(checkpoint: Path, phantoms: Path, preferences: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in phantoms.read_text().splitlines()]
    for index, row in enumerate(rows):
        for name in ("frontal", "lateral", "prior_frontal"):
            if row.get(name):
                row[name] = str(phantoms.parent / row[name])
        if index < 2:
            # Only the header can be read.
            row["frontal"] = str(tmp_path / f"{index}.png")
            whole = (phantoms.parent / json.loads(phantoms.read_text().splitlines()[index])["frontal"]).read_bytes()
            Path(row["frontal"]).write_bytes(whole[: len(whole) // 2])
    manifest = tmp_path / "manifest.jsonl"
    write_jsonl(manifest, rows)
    stopped = config_of(checkpoint, manifest, preferences, tmp_path / "stop")
    with raises_code(ErrorCode.FILE_UNREADABLE, r"[01]\.png"):
        train(stopped, quiet())
    config = config_of(checkpoint, manifest, preferences, tmp_path / "skip", passes=12, faults={"unreadable": "skip"})
    train(config, quiet())
    saved = json.loads((tmp_path / "skip" / REFERENCE_FILE).read_text())["log_probs"]
    assert [pair == [None, None] for pair in saved] == [True] * 2 + [False] * 10
    assert all(math.isfinite(row["loss"]) for row in metrics(tmp_path / "skip"))


VALID = "<obj>No pleural effusion.</obj>"


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ({"sample_id": "nobody"}, "preferences.jsonl:2: sample_id: mismatch"),
        ({"rejected": None}, "preferences.jsonl:2: rejected: invalid-value"),
        ({"rejected": VALID}, "preferences.jsonl:2: rejected: invalid-value"),
        ({"chosen": " "}, "preferences.jsonl:2: chosen: invalid-value"),
        ({"chosen": "No pleural effusion."}, "preferences.jsonl:2: chosen: invalid-format"),
        ({"rejected": "<obj>A mass.<box><x9><y9></box></obj>"}, "preferences.jsonl:2: rejected: invalid-format"),
        (
            {"rejected": f"<obj>{'effusion ' * 900}</obj>".replace(" <", "<")},
            "preferences.jsonl:2: rejected: invalid-value",
        ),
        ({"prompt": "Describe the image."}, "preferences.jsonl:2: prompt: mismatch"),
    ],
)
def test_an_unusable_pair_is_refused_before_the_first_step(
    row: dict[str, Any], error: str, checkpoint: Path, phantoms: Path, preferences: Path, tmp_path: Path
) -> None:
    first, second, *_ = read_rows(preferences)
    file = tmp_path / "preferences.jsonl"
    write_jsonl(file, [first, {**second, "chosen": VALID, **row}])
    with raises(error):
        train(config_of(checkpoint, phantoms, file, tmp_path / "out"), quiet())
    assert not (tmp_path / "out" / "metrics.jsonl").exists()


def test_a_prompt_tells_the_task(checkpoint: Path, phantoms: Path, preferences: Path, tmp_path: Path) -> None:
    study = read_manifest(phantoms)[0]
    both = {"tasks": {"grounded": 1, "findings": 1}, "global_batch": 2, "passes": 2}
    with raises("preferences.jsonl:1: prompt: missing-field"):
        train(config_of(checkpoint, phantoms, preferences, tmp_path / "out", **both), quiet())
    rows = [
        {
            "sample_id": study.sample_id,
            "prompt": make_example(study, task).prompt,
            "chosen": chosen,
            "rejected": rejected,
        }
        for task, chosen, rejected in (
            ("grounded", VALID, "<obj>A mass.</obj>"),
            ("findings", "No effusion.", "A mass."),
        )
    ]
    write_jsonl(tmp_path / "both.jsonl", rows)
    train(config_of(checkpoint, phantoms, tmp_path / "both.jsonl", tmp_path / "both", **both), quiet())
    record = json.loads((tmp_path / "both" / "checkpoint" / RECORD_FILE).read_text())
    assert record["data"][0]["samples"] == {"findings": 1, "grounded": 1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grpo": {}}, "dpo: expected either grpo or dpo"),
        ({"dpo": None}, "dpo: expected options, since a source"),
        ({"train": "manifest.jsonl"}, "train: expected `preferences` in each source"),
        (
            {"validation": {"sources": [{"manifest": "m", "preferences": "p"}]}},
            "validation.sources: preferences are only available",
        ),
        ({"tasks": {"grounded": 1, "phrase": 1}}, "tasks: phrase grounding is not available with dpo"),
        ({"patch_loss": 1.0, "trained": ["encoder"]}, "patch_loss: not available with dpo"),
        ({"lora": {"dropout": 0.1}}, "lora.dropout: expected 0"),
        ({"model": {"vision_config": {}, "text_config": {}}}, "model: expected the folder"),
        ({"dpo": {"beta": 0}}, "greater than 0"),
    ],
)
def test_an_inconsistent_config_is_refused(changes: dict[str, Any], message: str, checkpoint: Path) -> None:
    path = Path("none.jsonl")
    with pytest.raises(ValueError, match=message):
        config_of(checkpoint, path, path, path, **changes)


def test_missing_or_empty_preferences_are_refused(checkpoint: Path, phantoms: Path, tmp_path: Path) -> None:
    file = tmp_path / "preferences.jsonl"
    with raises("preferences.jsonl: file-not-found"):
        train(config_of(checkpoint, phantoms, file, tmp_path / "out"), quiet())
    file.touch()
    with raises("preferences.jsonl: empty-input"):
        train(config_of(checkpoint, phantoms, file, tmp_path / "out"), quiet())


def test_preferences_of_a_review_are_trained_on(checkpoint: Path, tmp_path: Path) -> None:
    report = [{"text": "No effusion.", "boxes": None}]
    with closing(new_store(tmp_path, {"one": report, "two": report}, ["Ada"])) as store:
        pixels = np.random.default_rng(0).integers(0, 255, (64, 64)).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / "radiograph.png")
        for number in (1, 2):
            change(store, "add", number, text="Rib fracture.", boxes=[CORNERS])
            finish(store, number)
    manifest = tmp_path / "manifest.jsonl"
    out = tmp_path / "export"
    arguments = ["review", "export", str(store.path), "--manifest", str(manifest), "--out", str(out)]
    result = CliRunner().invoke(app, arguments)
    assert "preferences: 2" in result.output
    changes = {"global_batch": 2, "passes": 8, "faults": {"image_check": "off"}}
    train(config_of(checkpoint, manifest, out / "preferences.jsonl", tmp_path / "run", **changes), quiet())
    assert metrics(tmp_path / "run")[-1]["rewards/margins"] > 0


@pytest.fixture
def draft_files(phantoms: Path, tmp_path: Path) -> Callable[..., list[Path]]:
    """Return a function that writes files of drafts with so many sentences of the reports of the first studies."""

    def write(*counts: list[int]) -> list[Path]:
        files = []
        for number, kept in enumerate(counts):
            studies = read_manifest(phantoms)[: len(kept)]
            rows = [
                {
                    "sample_id": study.sample_id,
                    "report": [
                        s.model_dump(include={"text", "boxes"}) for s in (study.grounded_findings or [])[:count]
                    ],
                    "irregularities": [],
                }
                for study, count in zip(studies, kept, strict=True)
            ]
            files.append(tmp_path / f"drafts-{number}.jsonl")
            write_jsonl(files[-1], rows)
        return files

    return write


def run_preferences(files: list[Path], manifest: Path, out: Path, *more: str) -> Any:
    arguments = ["--manifest", str(manifest), "--out", str(out), "--scores", SCORES, "--margin", "0.001", *more]
    return CliRunner().invoke(app, ["preferences", *map(str, files), *arguments])


def test_the_best_and_the_worst_draft_are_paired(
    draft_files: Callable[..., list[Path]], checkpoint: Path, phantoms: Path, tmp_path: Path
) -> None:
    files, out = draft_files([1, 3, 2, 2], [2, 1, 2], [3, 2, 2]), tmp_path / "pairs.jsonl"
    result = run_preferences(files, phantoms, out)
    assert result.exit_code == 0, result.output
    studies = read_manifest(phantoms)
    rows = read_rows(out)
    assert [(row["sample_id"], row["chosen"], row["rejected"]) for row in rows] == [
        (study.sample_id, texts(study, 1), texts(study, 3)) for study in studies[:2]
    ]
    for row in rows:
        assert row["chosen_reward"] > row["rejected_reward"]
    assert "2 pairs from 14 studies" in result.output.replace("\n", "")
    assert "1 (identical reports)" in result.output
    assert "11 (fewer than two drafts)" in result.output
    train(config_of(checkpoint, phantoms, out, tmp_path / "run", global_batch=2, passes=2), quiet())


def test_a_margin_and_the_penalties_of_grpo_decide(
    draft_files: Callable[..., list[Path]], phantoms: Path, tmp_path: Path
) -> None:
    files, out = draft_files([1], [2]), tmp_path / "pairs.jsonl"
    equal = run_preferences(files, phantoms, out, "--margin", "0", "--scores", "reward_metrics:Constant=1")
    assert "1 (reward difference below the margin)" in str(equal.exception)
    result = run_preferences(files, phantoms, out, "--margin", "0.5")
    assert result.exit_code == 1
    assert "1 (reward difference below the margin)" in str(result.exception)
    assert not out.exists()
    (row,) = read_rows(files[0])
    write_jsonl(files[0], [{**row, "irregularities": [{"index": None, "kind": "cut_off"}]}])
    assert run_preferences(files, phantoms, out, "--format-penalty", "1").exit_code == 0
    (pair,) = read_rows(out)
    assert pair["rejected"] == texts(read_manifest(phantoms)[0], 1)
    assert pair["rejected_reward"] < 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--scores", "findings"], "--scores"),
        (["--scores", "findings=much"], "--scores"),
        (["--scores", "no_such_score=1"], "--scores"),
        (["--reward-option", "no_such_option=1"], "--reward-option"),
        (["--length-penalty", "inf"], "--length-penalty"),
    ],
)
def test_wrong_options_are_refused(
    more: list[str], message: str, draft_files: Callable[..., list[Path]], phantoms: Path, tmp_path: Path
) -> None:
    out = tmp_path / "pairs.jsonl"
    result = run_preferences(draft_files([1], [2]), phantoms, out, *more)
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)
    assert not out.exists()


def test_drafts_of_unknown_studies_are_refused(
    draft_files: Callable[..., list[Path]], phantoms: Path, tmp_path: Path
) -> None:
    files, out = draft_files([1], [2]), tmp_path / "pairs.jsonl"
    (row,) = read_rows(files[1])
    write_jsonl(files[1], [{**row, "sample_id": "nobody"}])
    assert isinstance(run_preferences(files, phantoms, out).exception, InputError)
    assert isinstance(run_preferences(files[:1], phantoms, out).exception, InputError)
    # An input is no output.
    before = files[0].read_bytes()
    assert run_preferences(draft_files([1], [2]), phantoms, files[0]).exit_code != 0
    assert files[0].read_bytes() == before


def test_samples_are_a_function_of_study_and_seed(checkpoint: Path, phantoms: Path, tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.jsonl"
    lines = phantoms.read_text().splitlines()[:3]
    folder = str(phantoms.parent) + "/"
    rows = [json.loads(line) for line in lines]
    rows = [
        {k: folder + v if k in ("frontal", "lateral", "prior_frontal") and v else v for k, v in row.items()}
        for row in rows
    ]

    def sample(name: str, rows: list[Any], *more: str) -> list[dict[str, Any]]:
        write_jsonl(manifest, rows)
        out = tmp_path / f"{name}.jsonl"
        arguments = ["--checkpoint", str(checkpoint), "--manifest", str(manifest), "--out", str(out)]
        result = CliRunner().invoke(
            app, ["generate", *arguments, "--max-new-tokens", "12", "--device", "cpu", "--temperature", "1", *more]
        )
        assert out.exists(), result.output
        return [{k: v for k, v in row.items() if k in ("sample_id", "raw")} for row in without_time(out)]

    first = sample("first", rows, "--seed", "1")
    assert sample("same", rows[::-1], "--seed", "1")[::-1] == first
    assert sample("other", rows, "--seed", "2") != first
    record = json.loads((tmp_path / "first.run.json").read_text())
    assert (record["temperature"], record["seed"]) == (1.0, 1)
    assert not any(row for _, row in read_jsonl(tmp_path / "first.jsonl") if not row["raw"])


def test_a_seed_needs_a_temperature(checkpoint: Path, phantoms: Path, tmp_path: Path) -> None:
    arguments = ["--checkpoint", str(checkpoint), "--manifest", str(phantoms), "--out", str(tmp_path / "d.jsonl")]
    result = CliRunner().invoke(app, ["generate", *arguments, "--seed", "1"])
    assert isinstance(result.exception, InputError)
    assert result.exception.field == "--seed"
