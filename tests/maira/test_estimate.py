"""Estimates of memory and time of a run from config, data and hardware."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from error_checks import raises
from typer.testing import CliRunner

import maira.train.cost.estimate as cost_estimate
from maira.cli.main import app
from maira.data.study import Study
from maira.generate.engine import Sampling, report_request
from maira.generate.options import EngineOptions
from maira.generate.transformers_engine import TransformersEngine
from maira.model.config import MairaConfig
from maira.model.modeling import MairaForConditionalGeneration
from maira.model.processor import MairaProcessor
from maira.model.prompts import Task
from maira.model.task_examples import make_example
from maira.train.config.run_config import TrainConfig, read_train_config
from maira.train.cost.accelerators import Accelerator, find_accelerator
from maira.train.cost.estimate import GIB, RESERVED, estimate, read_mfu
from maira.train.cost.memory import Memory, ParallelSetup, RowShape, build_shapes, estimate_memory
from maira.train.cost.sampling import (
    Responses,
    SamplingCost,
    SamplingRates,
    SamplingSetup,
    estimate_sampling,
    make_sampling_rates,
    plan_batches,
)
from maira.train.cost.workload import measure_workload
from maira.train.data.packing import SAMPLE_LENGTHS, TASKS
from radfact.errors import ErrorCode, InputError

SMALL = {
    "vision_config": {"image_size": 56, "patch_size": 14, "hidden_size": 32, "num_hidden_layers": 1},
    "text_config": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
    },
    "vocab_size": 300,
}
SMALL["vision_config"]["num_attention_heads"] = 2  # type: ignore[index]


def make_recipe(**values: Any) -> TrainConfig:
    defaults = {"model": SMALL, "train": "absent.jsonl", "out": Path("o"), "epochs": 3, "token_budget": 2048}
    return TrainConfig.model_validate(defaults | values)


def test_estimates_for_the_paper_config() -> None:
    result = estimate(make_recipe(model=Path("absent"), token_budget=8192), "a100-80g", gpus=16, mfu=0.5)
    assert sum(every for every, _ in result.parameters.values()) == pytest.approx(6.880e9, rel=1e-3)
    assert result.parameters["encoder"][1] == 0
    assert result.steps == 3 * (510_848 // 128)
    assert result.step_seconds == pytest.approx(result.flops.total / (16 * 312e12 * 0.5))
    # The specification's arithmetic: about 115 TFLOP a sample.
    assert result.flops.total / 128 == pytest.approx(115e12, rel=0.05)
    assert "absent" in result.model
    assert "paper" in result.workload.basis


def test_fsdp_memory_is_per_process() -> None:
    alone, shared = (estimate(make_recipe(parallel="fsdp"), "h100", gpus) for gpus in (1, 8))
    assert shared.sharding == "fsdp"
    for part in ("weights", "gradients", "states"):
        assert getattr(shared.memory, part) == pytest.approx(getattr(alone.memory, part) / 8, rel=0.01)


def test_suggestions_accompany_a_config_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    train_config = make_recipe()
    need = estimate(train_config, "h100").memory.total
    tight = Accelerator("tight", "tight", (RESERVED + 0.9 * need) / GIB, 1e12, 1e12)
    monkeypatch.setattr(cost_estimate, "ACCELERATORS", (tight,))
    result = estimate(train_config, "tight")
    assert not result.fits
    ways = {remedy.overrides: remedy for remedy in result.remedies}
    assert ways["activation_checkpointing=full"].fits
    assert ways["activation_checkpointing=full"].total < need


def test_a_sample_longer_than_a_row_is_an_input_error() -> None:
    with pytest.raises(InputError, match="does not fit in 300"):
        estimate(make_recipe(token_budget=300), "h100")


def test_an_unknown_gpu_is_an_error_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="h200"):
        estimate(make_recipe(), "gtx")


def test_only_the_configuration_of_a_checkpoint_is_read(checkpoint: Path, tmp_path: Path) -> None:
    shutil.copy(checkpoint / "config.json", tmp_path / "config.json")
    for name in ("tokenizer.json", "tokenizer_config.json", "processor_config.json", "preprocessor_config.json"):
        if (checkpoint / name).exists():
            shutil.copy(checkpoint / name, tmp_path / name)
    result = estimate(make_recipe(model=tmp_path), "h100")
    config = MairaConfig.from_pretrained(checkpoint)
    shapes = build_shapes(config, make_recipe())
    assert sum(every for every, _ in result.parameters.values()) == sum(p.numel() for p in shapes.parameters())


def test_answers_are_counted_from_available_data(phantoms: Path) -> None:
    train_config = make_recipe(train=phantoms, tasks={"findings": 1, "grounded": 0.5})
    workload = measure_workload(train_config, cost_estimate.resolve_model_config(train_config)[0])
    assert workload.answers == 14 + 7
    assert "configured data" in workload.basis


CONFIGS = Path(__file__).resolve().parents[2] / "configs"


@pytest.mark.parametrize(
    ("name", "samples"),
    [("maira2_7b", 248_153), ("ablations/no_findings", 4_000), ("ablations/no_grounding", 244_153)],
)
def test_absent_data_are_estimated_from_table_1_by_folder_name(
    name: str, samples: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_config = read_train_config(CONFIGS / f"{name}.yaml")
    monkeypatch.chdir(tmp_path)
    workload = measure_workload(train_config, MairaConfig())
    assert workload.answers == samples
    assert f"an epoch of {samples:,} samples" in workload.basis
    assert "PadChest-GR" in workload.basis


def test_image_counts_of_absent_data_come_from_table_1() -> None:
    train_config = make_recipe(train="padchest/manifest.jsonl")
    assert measure_workload(train_config, MairaConfig()).rows["images"].mean() == pytest.approx(1.843, abs=0.05)
    dropped = train_config.model_copy(update={"drop": ("lateral", "prior")})
    assert set(measure_workload(dropped, MairaConfig()).rows["images"]) == {1}


def test_unreadable_shards_are_an_error() -> None:
    train_config = make_recipe(train=[{"shards": "memory://nothing/here"}])
    assert (
        "memory://nothing/here cannot be opened (memory://nothing/here"
        in measure_workload(train_config, MairaConfig()).basis
    )


def test_eight_bit_state_size_matches_torchao() -> None:
    optim = pytest.importorskip("torchao.optim")
    train_config = make_recipe(trained=["adapter"], optimizer="adamw_8bit", weights="bfloat16")
    model = build_shapes(cost_estimate.resolve_model_config(train_config)[0], train_config)
    made = estimate_memory(model, train_config, RowShape((200,), 1, 10), ParallelSetup())
    trained = [torch.empty(p.shape, dtype=p.dtype) for p in model.parameters() if p.requires_grad]
    optimizer = optim.AdamW8bit([torch.nn.Parameter(torch.zeros(1))])
    size = 0
    for parameter in trained:
        for signed in (True, False):
            state = optimizer._new_buffer(parameter, signed)
            quantized = hasattr(state, "codes")
            size += sum(t.nbytes for t in (state.codes, state.scale, state.qmap)) if quantized else state.nbytes
    assert made.states == size


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-80g"),
        ("NVIDIA A100-SXM4-40GB", "a100-40g"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA A10G", None),
    ],
)
def test_driver_names_map_to_accelerators(device: str, name: str | None) -> None:
    result = find_accelerator(device)
    assert (result and result.name) == name


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    file = tmp_path / "r.yaml"
    file.write_text(json.dumps({"model": SMALL, "train": "absent.jsonl", "out": "o", "epochs": 1}))
    return file


def test_the_command_writes_json(recipe_file: Path) -> None:
    ran = CliRunner().invoke(
        app, ["estimate", str(recipe_file), "token_budget=4096", "--gpus", "2", "--gpu", "h200", "--json"]
    )
    assert ran.exit_code == 0, ran.output
    written = json.loads(ran.stdout)
    assert written["gpus"] == 2
    assert written["memory"]["total"] == sum(v for part, v in written["memory"].items() if part != "total")


def test_the_table_of_the_command_lists_every_part(recipe_file: Path) -> None:
    ran = CliRunner().invoke(app, ["estimate", str(recipe_file)])
    assert ran.exit_code == 0, ran.output
    for expected in ("language model", "optimizer states", "fits in", "GPU hours", "the paper's whole mix"):
        assert expected in ran.stdout
    # A model as small as this has units of its size, and no time that is promised.
    assert " 0.0 M" not in ran.stdout
    assert "0.00 GiB" not in ran.stdout
    assert "A model of this size does not reach an MFU of 45%" in ran.stdout
    assert "45.0%, assumed and not measured" in ran.stdout
    assert "estimating" in ran.stderr


def _post_training(**values: Any) -> TrainConfig:
    return make_recipe(model=Path("absent"), tasks={"grounded": 1}, global_batch=128, **{"grpo": {}, **values})


H100 = {"operations": 0.6 * 989e12, "bandwidth": 3.35e12}


def test_generation_takes_the_time_of_the_specification() -> None:
    """Three images and 150 new tokens on an H100, with a cache that is not copied."""
    rates = make_sampling_rates(build_shapes(MairaConfig(), _post_training()), _post_training())
    assert rates.keys_and_values == 2**19
    assert (4360 + 150) * rates.keys_and_values == pytest.approx(2.36e9, rel=0.003)
    assert rates.prompt_operations(1, 4360) == pytest.approx(61e12, rel=0.01)
    reading = rates.prompt_operations(1, 4360) / H100["operations"]
    assert reading == pytest.approx(0.103, rel=0.01)
    static = replace(rates, cache_moves=1)
    assert reading + static.decoding_seconds(1, 4360, 150, **H100) == pytest.approx(0.80, abs=0.015)
    assert reading + static.decoding_seconds(24, 4360, 150, **H100) / 24 == pytest.approx(0.23, abs=0.005)
    # As computed in `TransformersEngine`.
    assert static.decoding_seconds(32, 3300, 1, **H100) == pytest.approx(0.021, abs=1e-3)
    assert rates.decoding_seconds(32, 3300, 1, **H100) == pytest.approx(0.054, abs=1e-3)


def test_a_decoding_step_takes_the_longer_of_operations_and_moves() -> None:
    rates = SamplingRates(0, 0, token=8, pair=1, head=2, weights=100, quantized=0, keys_and_values=4)
    # 26 and 28 operations; 100 bytes of weights, and 3 times 24 and 32 bytes of keys and values.
    assert rates.decoding_seconds(2, 3, 2, operations=1, bandwidth=10) == 26 + 28
    assert rates.decoding_seconds(2, 3, 2, operations=1, bandwidth=4) == (172 + 196) / 4
    quantized = replace(rates, weights=0, quantized=1000)
    fused, written = (quantized.decoding_seconds(rows, 0, 1, operations=1e9, bandwidth=1) for rows in (4, 5))
    assert written - fused == 4 * 1000


def _sampling_cost(config: TrainConfig, setup: SamplingSetup, training: Memory) -> SamplingCost:
    """The cost of the 7B model for samples of three images, 4,360 tokens of the prompt and 150 of the report."""
    lengths = np.zeros(10, SAMPLE_LENGTHS)
    lengths["task"], lengths["images"], lengths["prompt"], lengths["answer"] = TASKS.index("grounded"), 3, 4360, 150
    return estimate_sampling(build_shapes(MairaConfig(), config), config, lengths, training, setup)


def test_sampling_by_sharded_processes() -> None:
    """16 prompts with 8 responses each; 2 prompts on each of 8 GPUs."""
    config = _post_training(lora={}, grpo={"num_iterations": 2})
    training = Memory(int(1.7e9), 0, int(0.2e9), 0, 0, 0, 0, 0, 0)
    cost = _sampling_cost(config, SamplingSetup(8, "fsdp", 77 * GIB, **H100), training)
    assert (cost.responses, cost.batch_size, cost.decoding_steps) == (16, 16, 150)
    assert cost.memory.cache == 16 * (4360 + 450) * 2**19
    model = build_shapes(MairaConfig(), config)
    assert cost.memory.gathered == 2 * sum(p.numel() for p in model.parameters())
    assert (cost.memory.weights, cost.memory.copies, cost.memory.gradients) == (training.weights, 0, 0)
    rates = make_sampling_rates(model, config)
    # The adapters take operations too.
    assert rates.token == pytest.approx(2 * (6.476e9 + 0.160e9), rel=1e-3)
    assert cost.decoding_seconds == pytest.approx(rates.decoding_seconds(16, 4360, 150, **H100) / 2)
    operations = rates.prompt_operations(16, 4360) + 48 * rates.adapter_image + 6 * rates.encoder_image
    assert cost.prompt_seconds == pytest.approx(operations / H100["operations"] / 2)


def test_sampling_beside_all_states_of_full_training_and_weights_in_4_bits() -> None:
    full, quantized = _post_training(), _post_training(lora={"quantize": "nf4"})
    setup = SamplingSetup(1, "none", 138 * GIB, **H100)
    # Weights and states in float32. Autocast copies the trained weights, all but the encoder's.
    states = Memory(int(27.3e9), int(27.2e9), int(54.4e9), 0, 0, 0, 0, 0, 0)
    cost = _sampling_cost(full, setup, states)
    trained = sum(p.numel() for p in build_shapes(MairaConfig(), full).parameters() if p.requires_grad)
    assert (cost.memory.copies, cost.memory.gradients) == (2 * trained, 0)
    assert 1 < cost.batch_size < cost.responses == 128
    assert 100 * GIB < cost.memory.total <= 138 * GIB
    ddp = _sampling_cost(full, replace(setup, processes=2, sharding="ddp"), states)
    assert ddp.memory.gradients == 4 * trained
    assert ddp.batch_size < cost.batch_size
    small = _sampling_cost(quantized, setup, Memory(int(4.8e9), 0, int(1.3e9), 0, 0, 0, 0, 0, 0))
    assert small.batch_size > cost.batch_size
    rates = make_sampling_rates(build_shapes(MairaConfig(), quantized), quantized)
    assert rates.quantized == pytest.approx(6.476e9, rel=1e-3)
    assert rates.weights == pytest.approx(2 * (0.160e9 + 4096 * 32207), rel=1e-2)


def test_responses_are_batched_as_by_the_engine(
    model: MairaForConditionalGeneration,
    processor: MairaProcessor,
    studies: list[Study],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kinds: list[tuple[Task, int]] = [("grounded", 12), ("findings", 12), ("grounded", 9)]
    requests = [
        replace(report_request(make_example(study, task), limit), sampling=Sampling(1.0, seed))
        for seed, study in enumerate(studies)
        for task, limit in kinds
    ]
    engine = TransformersEngine.from_model(model, processor, EngineOptions(cache="dynamic"))
    prompts = [len(engine._encode_prompt(request)) for request in requests]
    assert len(set(prompts)) > 3

    def batch_size(length: int) -> int:
        return 2 + length % 3

    batches = []
    generate = engine._generate

    def record(batch: Any, images: Any) -> Any:
        lengths = [len(engine._encode_prompt(request)) for request in batch]
        made = generate(batch, images)
        tokens = max(len(ids) for _, _, ids in filter(None, made))
        batches.append((len(batch), max(lengths), tokens, batch[0].max_new_tokens))
        return made

    monkeypatch.setattr(engine, "_batch_size", batch_size)
    monkeypatch.setattr(engine, "_generate", record)
    responses: dict[int, Any] = dict(engine.generate(requests))
    columns = (
        [TASKS.index(request.example.task) for request in requests],
        prompts,
        [request.max_new_tokens for request in requests],
        [len(responses[index].ids) for index in range(len(requests))],
    )
    planned = plan_batches(Responses(*map(np.array, columns)), batch_size)
    assert sorted((b.rows, b.length, b.tokens, b.limit) for b in planned) == sorted(batches)


@pytest.fixture
def post_training_file(checkpoint: Path, phantoms: Path, tmp_path: Path) -> Path:
    file = tmp_path / "grpo.yaml"
    values = {
        "model": str(checkpoint),
        "train": str(phantoms),
        "out": "o",
        "tasks": {"grounded": 1},
        "grpo": {"num_generations": 4, "max_new_tokens": 24},
        "global_batch": 8,
        "token_budget": 1024,
        "epochs": 2,
    }
    file.write_text(json.dumps(values))
    return file


def test_generation_is_a_part_of_a_step(post_training_file: Path) -> None:
    result = estimate(read_train_config(post_training_file), "h100", 2)
    assert result.sampling is not None
    # 14 studies, two of them in a step; each process has one.
    assert (result.steps, result.sampling.responses) == (2 * 7, 4)
    assert 0 < result.sampling.decoding_steps <= 24
    assert result.training_seconds == pytest.approx(result.flops.total / (2 * 989e12 * 0.45))
    assert result.step_seconds == pytest.approx(result.training_seconds + result.sampling.seconds)
    written = result.to_json()
    assert written["generation"]["share"] == pytest.approx(result.sampling.seconds / result.step_seconds)
    assert {"generation", "responses"} <= set(written["assumptions"])
    supervised = read_train_config(post_training_file, ["grpo=null"])
    assert estimate(supervised, "h100", 2).to_json()["generation"] is None


def test_a_run_needs_the_larger_of_the_memory_of_training_and_sampling(
    post_training_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_config = read_train_config(post_training_file)
    first = estimate(train_config, "h100")
    assert first.sampling is not None
    assert first.sampling.memory.total > first.memory.total
    between = (RESERVED + first.memory.total * 1.01) / GIB
    monkeypatch.setattr(cost_estimate, "ACCELERATORS", (Accelerator("tight", "tight", between, 1e12, 1e12),))
    assert not estimate(train_config, "tight").fits


def test_the_command_prints_the_share_of_generation(post_training_file: Path) -> None:
    ran = CliRunner().invoke(app, ["estimate", str(post_training_file)])
    assert ran.exit_code == 0, ran.output
    for expected in ("generation share", "keys and values", "8, at most 8 per batch", "a lower bound"):
        assert expected in ran.stdout


def test_a_response_at_the_limit_must_fit_in_a_row(post_training_file: Path) -> None:
    train_config = read_train_config(post_training_file)
    rows = measure_workload(train_config, cost_estimate.resolve_model_config(train_config)[0]).rows
    shortest, longest = int(rows["prompt"].min()) + 24, int(rows["prompt"].max()) + 24
    assert int(rows["answer"].min()) > 24
    assert estimate(train_config.model_copy(update={"token_budget": longest}), "h100").fits
    with pytest.raises(InputError, match="does not fit"):
        estimate(train_config.model_copy(update={"token_budget": shortest - 1}), "h100")


def test_vllm_is_not_estimated(post_training_file: Path) -> None:
    with raises("grpo.engine: invalid-option"):
        estimate(read_train_config(post_training_file, ["grpo.engine=vllm"]), "h100")


def test_a_pair_of_preferences_takes_two_answers(post_training_file: Path) -> None:
    overrides = ["grpo=null", "token_budget=4096"]
    supervised = estimate(read_train_config(post_training_file, overrides), "h100")
    train = f"train=[{{manifest: {read_train_config(post_training_file).train[0].manifest}, preferences: p.jsonl}}]"
    pairs = estimate(read_train_config(post_training_file, [*overrides, train, "dpo={}"]), "h100")
    assert pairs.steps == supervised.steps
    assert pairs.step_seconds == pytest.approx(2 * supervised.step_seconds)
    assert pairs.step_tokens == 2 * supervised.step_tokens
    assert pairs.packing.filled * pairs.packing.rows == pytest.approx(
        2 * supervised.packing.filled * supervised.packing.rows, rel=0.2
    )
    assert "reference model" in pairs.assumptions
    assert "one preference pair per study" in pairs.assumptions["samples"]


def test_the_mfu_of_a_run_with_generation_is_refused(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(json.dumps({"step": 1, "mfu": 0.2, "generation_seconds": 3.0}) + "\n")
    with raises("metrics.jsonl:1: generation_seconds: invalid-value"):
        read_mfu(metrics)


def _write_metrics(file: Path, *values: Any) -> Path:
    rows = [{"step": step, "epoch": 0} | ({} if value is None else {"mfu": value}) for step, value in enumerate(values)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_the_mfu_of_a_run_is_the_median_without_its_first_line(recipe_file: Path, tmp_path: Path) -> None:
    metrics = _write_metrics(tmp_path / "metrics.jsonl", 0.02, 0.3, None, 0.4, 0.32)
    ran = CliRunner().invoke(app, ["estimate", str(recipe_file), "--mfu-from", str(metrics), "--json"])
    assert ran.exit_code == 0, ran.output
    written = json.loads(ran.stdout)
    assert (written["mfu"], written["mfu_measured"]) == (0.32, True)
    assert written["assumptions"]["MFU"].startswith(f"32.0%, measured: the median of 3 lines of {metrics}")
    assumed = estimate(read_train_config(recipe_file), "a100-80g", mfu=0.16)
    assert written["seconds_per_step"] == pytest.approx(assumed.step_seconds / 2)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((None, None), "metrics.jsonl: mfu: missing-field"),
        ((0.3, 1.5), "metrics.jsonl:2: mfu: invalid-value"),
        (("fast",), "metrics.jsonl:1: mfu: invalid-value"),
    ],
)
def test_metrics_without_a_valid_mfu_are_an_error(values: tuple[Any, ...], expected: str, tmp_path: Path) -> None:
    with raises(expected):
        read_mfu(_write_metrics(tmp_path / "metrics.jsonl", *values))


def test_an_assumed_and_a_measured_mfu_conflict(recipe_file: Path, tmp_path: Path) -> None:
    metrics = _write_metrics(tmp_path / "metrics.jsonl", 0.3)
    ran = CliRunner().invoke(app, ["estimate", str(recipe_file), "--mfu", "0.4", "--mfu-from", str(metrics)])
    assert isinstance(ran.exception, InputError)
    assert ran.exception.code == ErrorCode.CONFLICTING_OPTIONS
