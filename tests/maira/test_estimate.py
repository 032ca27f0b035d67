"""Estimates of memory and time of a run from config, data and hardware."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from error_checks import raises
from tiny_runs import CASES, TEXT, VISION, minimal_config
from typer.testing import CliRunner

import maira.train.cost.estimate as cost_estimate
from maira.cli.estimate import describe_times
from maira.cli.main import app
from maira.model.config import MairaConfig
from maira.train.config.run_config import TrainConfig, read_train_config
from maira.train.cost.estimate import GIB, RESERVED, estimate, measure_workload
from maira.train.cost.flops import ACCELERATORS, Accelerator, find_accelerator
from maira.train.cost.memory import build_shapes, estimate_memory
from radfact.errors import InputError

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
SMALL: dict[str, Any] = {"vision_config": VISION, "text_config": TEXT, "vocab_size": 300}


def make_config(**values: Any) -> TrainConfig:
    return minimal_config(**{"model": SMALL, "passes": None, "epochs": 3, "token_budget": 2048} | values)


def test_estimates_for_the_paper_config() -> None:
    result = estimate(make_config(model=Path("absent"), token_budget=8192), "a100-80g", gpus=16, mfu=0.5)
    assert sum(counts["all"] for counts in result["parameters"].values()) == pytest.approx(6.880e9, rel=1e-3)
    assert result["parameters"]["encoder"]["trained"] == 0
    assert result["steps"] == 3 * (510_848 // 128)
    flops = result["flops_per_step"]["total"]
    assert result["seconds_per_step"] == pytest.approx(flops / (16 * 312e12 * 0.5))
    # The specification's arithmetic: about 115 TFLOP a sample.
    assert flops / 128 == pytest.approx(115e12, rel=0.05)
    assert "absent" in result["model"]
    assert "paper" in result["assumptions"]["samples"]


@pytest.mark.parametrize(("name", "gpu", "gpus", "memory", "hours"), CASES["estimates"])
def test_shipped_configs_keep_their_estimates(
    name: str, gpu: str, gpus: int, memory: float, hours: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory (GiB) is that of a forward and backward pass on fake tensors in an earlier version."""
    config = read_train_config(CONFIGS / f"{name}.yaml")
    monkeypatch.chdir(tmp_path)
    result = estimate(config, gpu, gpus)
    sampling = (result["generation"] or {"memory": {"total": 0}})["memory"]["total"]
    assert max(result["memory"]["total"], sampling) / GIB == pytest.approx(memory, rel=0.05)
    assert result["hours"] == pytest.approx(hours, rel=0.05)


@pytest.mark.parametrize(("page", "words", "texts"), CASES["documented estimates"])
def test_documented_estimates_are_those_of_the_command(
    page: str, words: str, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documented = " ".join((CONFIGS.parent / page).read_text("utf-8").replace("\\\n", "").split())
    (tmp_path / "configs").symlink_to(CONFIGS)
    monkeypatch.chdir(tmp_path)
    arguments = [path for word in words.split() for path in sorted(map(str, Path().glob(word))) or [word]]
    results = json.loads(CliRunner().invoke(app, ["estimate", *arguments, "--json"]).stdout)
    tables = [describe_times(r) | {"config": c} for c, r in (results if "*" in words else {"": results}).items()]
    expected = {f"maira estimate {words}", *(text.format_map(table) for text in texts for table in tables)}
    assert {text for text in expected if text not in documented} == set()


def test_only_the_configuration_of_a_checkpoint_is_read(checkpoint: Path, tmp_path: Path) -> None:
    for file in checkpoint.glob("*.json"):
        shutil.copy(file, tmp_path)
    result = estimate(make_config(model=tmp_path), "h100")
    shapes = build_shapes(MairaConfig.from_pretrained(checkpoint), make_config())
    assert sum(counts["all"] for counts in result["parameters"].values()) == sum(p.numel() for p in shapes.parameters())
    with raises("token_budget: invalid-value"):
        estimate(make_config(model=tmp_path, token_budget=300), "h100")


def test_answers_are_counted_from_available_data(phantoms: Path) -> None:
    train_config = make_config(train=phantoms, tasks={"findings": 1, "grounded": 0.5})
    workload = measure_workload(train_config, cost_estimate.resolve_model_config(train_config)[0])
    assert workload.samples == 14 + 7
    assert f"{phantoms}, 4 characters assumed" in workload.basis


@pytest.mark.parametrize(("name", "samples"), CASES["samples of absent data"])
def test_absent_data_are_estimated_from_table_1_by_folder_name(
    name: str, samples: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_config = read_train_config(CONFIGS / f"{name}.yaml")
    monkeypatch.chdir(tmp_path)
    workload = measure_workload(train_config, MairaConfig())
    assert workload.samples == samples
    assert f"an epoch of {samples:,} samples" in workload.basis
    assert "PadChest-GR" in workload.basis


def test_image_counts_of_absent_data_come_from_table_1() -> None:
    train_config = make_config(train="padchest/manifest.jsonl")
    assert measure_workload(train_config, MairaConfig()).images.mean() == pytest.approx(1.843, abs=0.05)
    dropped = train_config.model_copy(update={"drop": ("lateral", "prior")})
    assert set(measure_workload(dropped, MairaConfig()).images) == {1}


def test_eight_bit_state_size_matches_torchao() -> None:
    optim = pytest.importorskip("torchao.optim")
    train_config = make_config(trained=["adapter"], optimizer="adamw_8bit", weights="bfloat16")
    model = build_shapes(cost_estimate.resolve_model_config(train_config)[0], train_config)
    made = estimate_memory(model, train_config, [200], 1, 10)
    trained = [torch.empty(p.shape, dtype=p.dtype) for p in model.parameters() if p.requires_grad]
    optimizer = optim.AdamW8bit([torch.nn.Parameter(torch.zeros(1))])
    size = 0
    for parameter in trained:
        for signed in (True, False):
            state = optimizer._new_buffer(parameter, signed)
            quantized = hasattr(state, "codes")
            size += sum(t.nbytes for t in (state.codes, state.scale, state.qmap)) if quantized else state.nbytes
    assert made["states"] == size


@pytest.mark.parametrize(("device", "name"), CASES["accelerators"])
def test_driver_names_map_to_accelerators(device: str, name: str | None) -> None:
    assert find_accelerator(device) == (ACCELERATORS[name] if name else None)


def test_the_command_writes_json_or_a_table_of_every_part(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(json.dumps({"model": SMALL, "train": "absent.jsonl", "out": "o", "epochs": 1}))
    as_json, table = (
        CliRunner().invoke(app, ["estimate", str(file), *options], catch_exceptions=False).stdout
        for options in (["token_budget=4096", "--gpus", "2", "--gpu", "h200", "--json"], [])
    )
    written = json.loads(as_json)
    assert written["gpus"] == 2
    assert written["memory"]["total"] == sum(v for part, v in written["memory"].items() if part != "total")
    for expected in ("language model", "optimizer states", "fits in", "GPU hours", "the paper's whole mix"):
        assert expected in table
    # A model as small as this has units of its size, and no time that is promised.
    assert " 0.0 M" not in table
    assert "0.00 GiB" not in table
    assert "45.0%, assumed; small models do not reach it" in table


@pytest.fixture
def post_training_file(checkpoint: Path, phantoms: Path, tmp_path: Path) -> Path:
    file = tmp_path / "grpo.yaml"
    values = {"model": str(checkpoint), "train": str(phantoms), "out": "o", "tasks": {"grounded": 1}, "epochs": 2}
    values |= {"grpo": {"num_generations": 4, "max_new_tokens": 24}, "global_batch": 8, "token_budget": 1024}
    file.write_text(json.dumps(values))
    return file


def test_generation_is_a_part_of_a_step(post_training_file: Path) -> None:
    result = estimate(read_train_config(post_training_file), "h100", 2)
    generation = result["generation"]
    # 14 studies, two of them in a step; each process has one.
    assert (result["steps"], generation["responses_per_gpu"]) == (2 * 7, 4)
    assert 0 < generation["decoding_steps"] <= 24
    sampling = generation["prompt_seconds_per_step"] + generation["decoding_seconds_per_step"]
    training = result["flops_per_step"]["total"] / (2 * 989e12 * 0.45)
    assert result["seconds_per_step"] == pytest.approx(training + sampling)
    assert generation["share"] == pytest.approx(sampling / result["seconds_per_step"])
    assert "generation" in result["assumptions"]
    assert estimate(read_train_config(post_training_file, ["grpo=null"]), "h100", 2)["generation"] is None
    ran = CliRunner().invoke(app, ["estimate", str(post_training_file)])
    for expected in ("generation share", "keys and values", "8, at most 8 per batch", "a lower bound"):
        assert expected in ran.stdout


def test_a_run_needs_the_larger_of_the_memory_of_training_and_sampling(
    post_training_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_config = read_train_config(post_training_file)
    first = estimate(train_config, "h100")
    assert first["generation"]["memory"]["total"] > first["memory"]["total"]
    between = (RESERVED + first["memory"]["total"] * 1.01) / GIB
    monkeypatch.setitem(ACCELERATORS, "tight", Accelerator("tight", between, 1e12, 1e12))
    assert not estimate(train_config, "tight")["fits"]
    with raises("grpo.engine: invalid-option"):
        estimate(read_train_config(post_training_file, ["grpo.engine=vllm"]), "h100")


def test_a_response_at_the_limit_must_fit_in_a_row(post_training_file: Path) -> None:
    train_config = read_train_config(post_training_file)
    workload = measure_workload(train_config, cost_estimate.resolve_model_config(train_config)[0])
    shortest, longest = int(workload.prompt.min()) + 24, int(workload.prompt.max()) + 24
    assert int(workload.answer.min()) > 24
    assert estimate(train_config.model_copy(update={"token_budget": longest}), "h100")["fits"]
    with pytest.raises(InputError, match="does not fit"):
        estimate(train_config.model_copy(update={"token_budget": shortest - 1}), "h100")


def test_a_pair_of_preferences_takes_two_answers(post_training_file: Path) -> None:
    overrides = ["grpo=null", "token_budget=4096"]
    supervised = estimate(read_train_config(post_training_file, overrides), "h100")
    train = f"train=[{{manifest: {read_train_config(post_training_file).train[0].manifest}, preferences: p.jsonl}}]"
    pairs = estimate(read_train_config(post_training_file, [*overrides, train, "dpo={}"]), "h100")
    assert pairs["steps"] == supervised["steps"]
    assert pairs["seconds_per_step"] == pytest.approx(2 * supervised["seconds_per_step"])
    assert pairs["tokens"] == pytest.approx(2 * supervised["tokens"], rel=1e-3)
    assert "one preference pair per study" in pairs["assumptions"]["samples"]
