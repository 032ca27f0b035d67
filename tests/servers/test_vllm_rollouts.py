"""vLLM in training: it uses the current weights, and samples and trains as the transformers engine does."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import tiny_maira
import torch
import yaml
from real_servers import HERE, ROOT, VLLM_ENVIRONMENT, VLLM_PYTHON, missing
from test_vllm_generate import VISION, in_vllm

from data.manifest import read_manifest
from maira.generate.options import EngineOptions
from maira.generate.transformers_engine import TransformersEngine
from maira.model.processor import MairaProcessor
from maira.train.config.run_config import TrainConfig
from maira.train.report_training import train

CHECKPOINTS = ("first", "language_model", "everything")
CLOSE = ("loss", "reward", "reward_std", "answer_tokens", "words", "entropy", "grad_norm", "unscored")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three checkpoints: the second has another language model than the first, the third other weights everywhere."""
    if not (VLLM_PYTHON.parents[1] / "installed").is_file() or not VISION.is_dir():
        missing("vLLM's build for the CPU is not installed: make .venv/vllm/installed")
    made = tmp_path_factory.mktemp("rollouts")
    model = tiny_maira.write_checkpoint(made / CHECKPOINTS[0])
    processor = MairaProcessor.from_pretrained(made / CHECKPOINTS[0])
    generator = torch.Generator().manual_seed(2)
    for name in CHECKPOINTS[1:]:
        with torch.no_grad():
            for weight, parameter in model.named_parameters():
                if parameter.ndim >= 2 and (name == "everything" or "language_model.model.layers" in weight):
                    parameter.mul_(1 + 0.3 * torch.randn(parameter.shape, generator=generator))
        model.save_pretrained(made / name)
        processor.save_pretrained(made / name)
    tiny_maira.write_studies(made / "studies")
    return made


@pytest.fixture(scope="module")
def responses(folder: Path) -> dict[str, Any]:
    """The responses of one engine with the weights of each checkpoint in turn (`vllm_rollouts.py`)."""
    out = folder / "responses.json"
    checkpoints = [folder / name for name in CHECKPOINTS]
    done = in_vllm("vllm_rollouts.py", *checkpoints, folder / "studies" / "manifest.jsonl", out)
    assert done.returncode == 0, done.stderr[-4000:]
    content: dict[str, Any] = json.loads(out.read_text())
    return content


@pytest.mark.parametrize("temperature", [None, 1.0])
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_responses_are_those_of_transformers_with_the_current_weights(
    folder: Path, responses: dict[str, Any], name: str, temperature: float | None
) -> None:
    requests = tiny_maira.reports(read_manifest(folder / "studies" / "manifest.jsonl"), temperature)
    names = list(requests)
    engine = TransformersEngine(folder / name, EngineOptions())
    expected = {
        names[index]: list(getattr(response, "ids", ())) for index, response in engine.generate([*requests.values()])
    }
    assert responses[name]["greedy" if temperature is None else "sampled"] == expected
    assert len({tuple(ids) for ids in expected.values()}) > len(expected) / 2


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_sampled_response_depends_on_its_seed_and_not_on_its_batch(responses: dict[str, Any], name: str) -> None:
    few, sampled = responses[name]["few"], responses[name]["sampled"]
    assert len(few) > 3
    assert few == {request: sampled[request] for request in few}
    assert sampled != responses[name]["greedy"]


def test_other_weights_give_other_responses(responses: dict[str, Any]) -> None:
    # Otherwise, an engine with old weights or an old prefix cache would pass.
    assert len({json.dumps(responses[name]["greedy"]) for name in CHECKPOINTS}) == len(CHECKPOINTS)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tensor_parallel_size", "each process runs its own engine"),
        ("max_model_len", "each process runs its own engine"),
        ("nonsense", "vLLM has no such engine argument"),
    ],
)
def test_arguments_that_a_run_cannot_use_are_refused(responses: dict[str, Any], name: str, message: str) -> None:
    assert responses["refused"][name].startswith(f"grpo.engine_args.{name}: ")
    assert message in responses["refused"][name]


def test_a_device_that_vllm_does_not_run_on_is_refused(responses: dict[str, Any]) -> None:
    assert responses["device"].startswith("grpo.engine: expected cpu, for which vLLM is installed, found cuda")


def test_the_files_of_the_weights_are_removed(responses: dict[str, Any]) -> None:
    assert responses["removed"]


def test_a_run_of_two_processes_equals_one_with_transformers(folder: Path, tmp_path: Path) -> None:
    reward = {"scores": {"reward_metrics:Brevity": 1.0}, "length_penalty": 0.0, "format_penalty": 0.0}
    config = {
        "model": str(folder / CHECKPOINTS[0]),
        "train": str(folder / "studies" / "manifest.jsonl"),
        "tasks": {"grounded": 1},
        "out": str(tmp_path / "transformers"),
        "grpo": {"num_generations": 4, "max_new_tokens": 24, "reward": reward},
        "global_batch": 16,
        "token_budget": 2048,
        "passes": 32,
        "learning_rate": 1e-3,
        "warmup": 0.0,
        "precision": "no",
        "log_every": 1,
        "trackers": [],
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    command = [str(VLLM_PYTHON), "-m", "torch.distributed.run", "--nproc-per-node", "2", str(HERE / "vllm_maira.py")]
    command += ["train", str(tmp_path / "config.yaml"), f"out={tmp_path / 'vllm'}", "parallel=fsdp"]
    command += ["grpo.engine=vllm", "grpo.engine_args={enforce_eager: true}"]
    # Sockets of vLLM are in this folder, and the path of a socket has at most 107 characters.
    with TemporaryDirectory() as temporary:
        paths = {"PYTHONPATH": str(ROOT / "tests" / "maira"), "TMPDIR": temporary}
        done = subprocess.run(
            command, env=os.environ | VLLM_ENVIRONMENT | paths, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr[-4000:]
        assert not list(Path(temporary).glob("maira-language-model-*"))
    train(TrainConfig.model_validate(config))
    ours, expected = (
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("vllm", "transformers")
    )
    assert [row["step"] for row in ours] == [row["step"] for row in expected] == [1, 2]
    for row, other in zip(ours, expected, strict=True):
        assert [row[name] for name in CLOSE] == pytest.approx([other[name] for name in CLOSE], rel=1e-3, abs=1e-6)
        assert 0 < row["sampling_logp_difference"] < 1e-4
    assert expected[0]["reward"] != expected[1]["reward"]
