"""Direct preference optimization: loss and gradient, reference log-probabilities, resuming, pairs, and bad input."""

import hashlib
import json
import math
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from draft_files import read_rows
from error_checks import raises, raises_code
from maira_command import maira
from packed_rows import answer_scores, encode_prompt, gradients
from PIL import Image
from review_files import CORNERS, change, finish, new_store
from test_train import Interrupted, interrupt_at, is_same, weights
from tiny_runs import CASES, Command, metrics, post_values, start, write_damaged

from maira.data.manifest import read_manifest, write_manifest
from maira.data.study import Study
from maira.model.config import read_config
from maira.model.modeling import MairaForConditionalGeneration
from maira.model.processor import MairaProcessor
from maira.model.task_examples import drop_inputs, make_example
from maira.train.config.run_config import DpoConfig, TrainConfig
from maira.train.cost.estimate import measure_workload
from maira.train.data.packing import EncodedSample, PackedBatch, Preference, StepTotals, collate
from maira.train.data.schedule import EncodedRow, collate_row
from maira.train.loss import Losses, MairaLossModel
from maira.train.post import dpo
from maira.train.post.dpo import REFERENCE_FILE, DpoLoss
from maira.train.post.preferences import open_preferences
from maira.train.record import RECORD_FILE
from radfact.errors import ErrorCode, InputError, RunError
from radfact.io.jsonl import write_jsonl

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


Values = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def run_values(checkpoint: Path, phantoms: Path, preferences: Path) -> Values:
    """Return a function that makes a config as YAML has it: 4 steps of 4 pairs."""

    def make(out: Path, manifest: Path = phantoms, file: Path = preferences, **changes: Any) -> dict[str, Any]:
        own = {
            "train": [{"manifest": str(manifest), "preferences": str(file)}],
            "dpo": {"beta": BETA, "nll_weight": NLL_WEIGHT},
            "token_budget": 1500,
            "passes": 16,
        }
        return post_values(checkpoint, manifest, out, **(own | changes))

    return make


@pytest.fixture(scope="module")
def pairs(processor: MairaProcessor, studies: list[Study]) -> list[EncodedSample]:
    """Three pairs of answers, with other log-probabilities than the model's."""
    encoded = []
    for index, study in enumerate(studies[:3]):
        prompt, images = encode_prompt(study, processor)
        chosen, rejected = ([*prompt, *processor.encode_target(texts(study, kept))] for kept in (2, 1))
        preference = Preference(rejected, (-100.0 - index, -70.0 + index))
        encoded.append(EncodedSample(str(index), "grounded", chosen, len(prompt), images, preference=preference))
    return encoded


def log_prob(model: MairaForConditionalGeneration, ids: list[int], prompt: int, images: Any) -> torch.Tensor:
    """Log-probability of an answer by the model's plain forward pass."""
    scores = answer_scores(model, ids, prompt, images)
    return scores.log_softmax(-1).gather(1, torch.tensor(ids[prompt:])[:, None]).sum()


def test_loss_and_gradient_follow_the_formula(model: MairaForConditionalGeneration, pairs: list[EncodedSample]) -> None:
    training = MairaLossModel(model, 0, 0.0, policy=DpoLoss(DpoConfig(beta=BETA, nll_weight=NLL_WEIGHT)))
    losses: Losses = training(collate(pairs, StepTotals(1, 1), 0, 64))
    losses.answer.backward()
    ours = gradients(training)
    total, rewards, nll = torch.zeros(()), [], 0.0
    for pair in pairs:
        assert pair.preference is not None
        assert pair.preference.reference_log_probs is not None
        answers, references = (pair.input_ids, pair.preference.rejected_ids), pair.preference.reference_log_probs
        chosen, rejected = (log_prob(model, ids, pair.prompt_tokens, pair.images) for ids in answers)
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


@pytest.fixture(scope="module")
def finished(run_values: Values, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of 4 steps that was never interrupted."""
    out = tmp_path_factory.mktemp("dpo")
    start(run_values(out))
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
            prompt, images = encode_prompt(studies[row["sample_id"]], processor)
            answers = (processor.encode_target(row[name]) for name in ("chosen", "rejected"))
            expected = [log_prob(initial, [*prompt, *ids], len(prompt), images).item() for ids in answers]
            assert log_probs == pytest.approx(expected, rel=1e-4)


def test_the_record_and_an_estimate_count_the_preferences(
    finished: Path, run_values: Values, checkpoint: Path, preferences: Path
) -> None:
    (source,) = json.loads((finished / "checkpoint" / RECORD_FILE).read_text())["data"]
    assert source["preferences_sha256"] == hashlib.sha256(preferences.read_bytes()).hexdigest()
    assert source["samples"] == {"grounded": 12}
    config = TrainConfig.model_validate(run_values(finished))
    assert measure_workload(config, read_config(checkpoint)).samples == 12


def test_a_resumed_run_equals_an_uninterrupted_one(
    run_values: Values, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_at(monkeypatch, 3)
    with pytest.raises(Interrupted):
        start(run_values(tmp_path))
    monkeypatch.undo()
    reference = (tmp_path / REFERENCE_FILE).rename(tmp_path / "moved.json")
    with raises(f"{REFERENCE_FILE}: mismatch"):
        start(run_values(tmp_path))
    reference.rename(tmp_path / REFERENCE_FILE)
    start(run_values(tmp_path))
    assert metrics(tmp_path) == metrics(finished)
    assert is_same(weights(tmp_path), weights(finished))


@pytest.mark.parametrize("is_terminated", [False, True])
def test_reference_log_probabilities_are_computed_once(
    is_terminated: bool, run_values: Values, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted or terminated run keeps the rows that it has computed."""
    rows = list[int]()
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
        start(run_values(tmp_path / "out"))
    kept = [pair for pair in json.loads(reference.read_text())["log_probs"] if None not in pair]
    assert len(kept) == sum(rows[: 3 if is_terminated else 2])
    repeated = sum(rows) - len(kept)
    start(run_values(tmp_path / "out"))
    assert sum(rows) - repeated == 12
    assert reference.read_bytes() == (finished / REFERENCE_FILE).read_bytes()
    assert metrics(tmp_path / "out") == metrics(finished)


def test_changed_preferences_have_another_fingerprint(
    run_values: Values, processor: MairaProcessor, preferences: Path, tmp_path: Path
) -> None:
    first, *others = read_rows(preferences)
    changed = tmp_path / "preferences.jsonl"
    write_jsonl(changed, [{**first, "chosen": first["rejected"], "rejected": first["chosen"]}, *others])
    configs = (TrainConfig.model_validate(run_values(tmp_path, file=file)) for file in (preferences, changed))
    before, after = (open_preferences(config, processor, 4096).table.tobytes() for config in configs)
    assert before != after


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_train_as_one(parallel: str, run_values: Values, finished: Path, tmp_path: Path) -> None:
    command = Command(tmp_path, 2, **run_values(tmp_path / "out", parallel=parallel))
    assert command.end() == [0, 0], command.said
    for one, two in zip(metrics(finished), metrics(tmp_path / "out"), strict=True):
        assert two == pytest.approx(one, rel=1e-3, abs=1e-3)


def test_unreadable_pairs_are_skipped(run_values: Values, phantoms: Path, tmp_path: Path) -> None:
    manifest = write_damaged(phantoms, tmp_path, 0, 1)
    with raises_code(ErrorCode.FILE_UNREADABLE, r"[01]\.png"):
        start(run_values(tmp_path / "stop", manifest))
    start(run_values(tmp_path / "skip", manifest, passes=12, faults={"unreadable": "skip"}))
    saved = json.loads((tmp_path / "skip" / REFERENCE_FILE).read_text())["log_probs"]
    assert [pair == [None, None] for pair in saved] == [True] * 2 + [False] * 10
    assert all(math.isfinite(row["loss"]) for row in metrics(tmp_path / "skip"))


VALID = "<obj>No pleural effusion.</obj>"


def test_the_form_of_the_reports_tells_the_task_and_the_run_makes_the_prompt(
    run_values: Values, processor: MairaProcessor, phantoms: Path, tmp_path: Path
) -> None:
    study, file = read_manifest(phantoms)[0], tmp_path / "both.jsonl"
    reports = ((VALID, "<obj>A mass.</obj>"), ("No effusion.", "A mass."))
    # Files of earlier versions have the prompt of other settings.
    row = {"sample_id": study.sample_id, "prompt": make_example(study, "grounded").text}
    write_jsonl(file, [{**row, "chosen": chosen, "rejected": rejected} for chosen, rejected in reports])
    changes = {"tasks": {"grounded": 1, "findings": 1}, "global_batch": 2, "passes": 2, "preset": "paper"}
    config = run_values(tmp_path / "both", file=file, drop=["lateral"], **changes)
    assert "2 of 2 answers: `prompt` is ignored" in start(config)
    record = json.loads((tmp_path / "both" / "checkpoint" / RECORD_FILE).read_text())
    assert record["data"][0]["samples"] == {"findings": 1, "grounded": 1}
    sample = open_preferences(TrainConfig.model_validate(config), processor, 4096).encode(0)
    example = make_example(drop_inputs(study, ["lateral"]), "grounded", preset="paper")
    assert sample.input_ids[: sample.prompt_tokens] == processor.encode_example(example)


@pytest.mark.parametrize(("line", "error"), CASES["preferences"])
def test_unusable_pairs_are_refused_before_the_first_step(
    line: dict[str, Any] | list[Any] | None, error: str, run_values: Values, preferences: Path, tmp_path: Path
) -> None:
    first, second, *_ = read_rows(preferences)
    file = tmp_path / "preferences.jsonl"
    if line is not None:
        write_jsonl(file, [first, {**second, "chosen": VALID, **line}] if isinstance(line, dict) else [])
        file.write_text(file.read_text().replace("LONG", ("effusion " * 900).strip()))
    with raises(error):
        start(run_values(tmp_path / "out", file=file))
    assert not (tmp_path / "out" / "metrics.jsonl").exists()


def test_a_duplicate_study_of_the_manifest_is_refused(run_values: Values, phantoms: Path, tmp_path: Path) -> None:
    lines, manifest = phantoms.read_text().splitlines(keepends=True), phantoms.with_name("duplicate.jsonl")
    manifest.write_text("".join([*lines, lines[0]]))
    with raises("duplicate.jsonl: sample_id: duplicate"):
        start(run_values(tmp_path / "out", manifest))


def test_preferences_of_a_review_are_trained_on(run_values: Values, tmp_path: Path) -> None:
    report = [{"text": "No effusion.", "boxes": None}]
    with closing(new_store(tmp_path, {"one": report, "two": report}, ["Ada"])) as store:
        pixels = np.random.default_rng(0).integers(0, 255, (64, 64)).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / "radiograph.png")
        for number in (1, 2):
            change(store, "add", number, text="Rib fracture.", boxes=[CORNERS])
            finish(store, number)
    manifest, out = tmp_path / "manifest.jsonl", tmp_path / "export"
    assert "preferences: 2" in maira("review", "export", store.path, "--manifest", manifest, "--out", out).output
    changes = {"global_batch": 2, "passes": 8, "faults": {"image_check": "off"}, "preset": "paper"}
    start(run_values(tmp_path / "run", manifest, out / "preferences.jsonl", **changes))
    assert metrics(tmp_path / "run")[-1]["rewards/margins"] > 0


def write_drafts(manifest: Path, folder: Path, *counts: list[int]) -> list[Path]:
    """Write files of drafts with so many sentences of the reports of the first studies."""
    files = [folder / f"drafts-{number}.jsonl" for number in range(len(counts))]
    for file, kept in zip(files, counts, strict=True):
        rows = []
        for study, count in zip(read_manifest(manifest), kept, strict=False):
            sentences = (study.grounded_findings or [])[:count]
            report = [sentence.model_dump(include={"text", "boxes"}) for sentence in sentences]
            rows.append({"sample_id": study.sample_id, "report": report, "irregularities": []})
        write_jsonl(file, rows)
    return files


def run_preferences(files: list[Path], manifest: Path, out: Path, *more: str) -> Any:
    return maira(
        "preferences", *files, "--manifest", manifest, "--out", out, "--scores", SCORES, "--margin", 0.001, *more
    )


def test_the_best_and_the_worst_draft_are_paired(run_values: Values, phantoms: Path, tmp_path: Path) -> None:
    files, out = write_drafts(phantoms, tmp_path, [1, 3, 2, 2], [2, 1, 2], [3, 2, 2]), tmp_path / "pairs.jsonl"
    result = run_preferences(files, phantoms, out)
    rows = read_rows(out)
    paired = [(s.sample_id, "grounded", texts(s, 1), texts(s, 3)) for s in read_manifest(phantoms)[:2]]
    assert [(row["sample_id"], row["task"], row["chosen"], row["rejected"]) for row in rows] == paired
    assert all(row["chosen_reward"] > row["rejected_reward"] for row in rows)
    for expected in ("2 pairs from 14 studies", "1 (identical reports)", "11 (fewer than two drafts)"):
        assert expected in result.output.replace("\n", "")
    start(run_values(tmp_path / "run", file=out, global_batch=2, passes=2))


def test_a_margin_and_the_penalties_of_grpo_decide(phantoms: Path, tmp_path: Path) -> None:
    files, out = write_drafts(phantoms, tmp_path, [1], [2]), tmp_path / "pairs.jsonl"
    for options in (("--margin", "0", "--scores", "reward_metrics:Constant=1"), ("--margin", "0.5")):
        with pytest.raises(RunError, match=r"1 \(reward difference below the margin\)"):
            run_preferences(files, phantoms, out, *options)
        assert not out.exists()
    (row,) = read_rows(files[0])
    write_jsonl(files[0], [{**row, "irregularities": [{"index": None, "kind": "cut_off"}]}])
    run_preferences(files, phantoms, out, "--format-penalty", "1")
    (pair,) = read_rows(out)
    assert pair["rejected"] == texts(read_manifest(phantoms)[0], 1)
    assert pair["rejected_reward"] < 0


@pytest.mark.parametrize("option", CASES["options of preferences"])
def test_wrong_options_are_refused(option: str, phantoms: Path, tmp_path: Path) -> None:
    out = tmp_path / "pairs.jsonl"
    with pytest.raises(InputError, match=option.split()[0]):
        run_preferences(write_drafts(phantoms, tmp_path, [1], [2]), phantoms, out, *option.split())
    assert not out.exists()


def test_unusable_draft_files_are_refused(phantoms: Path, tmp_path: Path) -> None:
    files, out = write_drafts(phantoms, tmp_path, [1], [2]), tmp_path / "pairs.jsonl"
    with pytest.raises(InputError):
        run_preferences(files[:1], phantoms, out)
    write_jsonl(files[1], [{**read_rows(files[1])[0], "sample_id": "nobody"}])
    with pytest.raises(InputError):
        run_preferences(files, phantoms, out)


def test_samples_are_a_function_of_study_and_seed(checkpoint: Path, phantoms: Path, tmp_path: Path) -> None:
    manifest = write_damaged(phantoms, tmp_path, count=3)
    options = ["--max-new-tokens", "12", "--device", "cpu"]

    def sample(name: str, *more: str) -> list[tuple[str, str]]:
        out = tmp_path / f"{name}.jsonl"
        maira("generate", "--checkpoint", checkpoint, "--manifest", manifest, "--out", out, *options, *more, code=None)
        return [(row["sample_id"], row["raw"]) for row in read_rows(out)]

    first = sample("first", "--temperature", "1", "--seed", "1")
    assert all(raw for _, raw in first)
    record = json.loads((tmp_path / "first.run.json").read_text())
    assert (record["temperature"], record["seed"]) == (1.0, 1)
    assert sample("other", "--temperature", "1", "--seed", "2") != first
    write_manifest(manifest, read_manifest(manifest)[::-1])
    assert sample("same", "--temperature", "1", "--seed", "1")[::-1] == first
    with raises("--seed: conflicting-options"):
        sample("greedy", "--seed", "1")
