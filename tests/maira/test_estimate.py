"""Estimates of memory and time of a run from config, data and hardware."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from error_checks import raises
from typer.testing import CliRunner

import maira.train.cost.estimate as cost_estimate
from maira.cli.main import app
from maira.model.config import MairaConfig
from maira.train.config.run_config import TrainConfig, read_train_config
from maira.train.cost.accelerators import Accelerator, find_accelerator
from maira.train.cost.estimate import GIB, RESERVED, estimate, read_mfu
from maira.train.cost.memory import ParallelSetup, RowShape, build_shapes, estimate_memory
from maira.train.cost.workload import measure_workload
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


def test_the_time_of_sampling_is_not_estimated() -> None:
    with raises("grpo: invalid-option"):
        estimate(make_recipe(model=Path("absent"), grpo={}, tasks={"grounded": 1}), "h100")


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
    tight = Accelerator("tight", "tight", (RESERVED + 0.9 * need) / GIB, 1e12)
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
