"""GRPO with vLLM: it uses the current weights, and responses and metrics equal those of the transformers engine."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import tiny_maira
import torch
import yaml
from real_servers import HERE, ROOT, VLLM_ENVIRONMENT, VLLM_PYTHON, RunVLLM, require_vllm, run

from maira.data.manifest import read_manifest
from maira.generate.engine import EngineOptions
from maira.generate.transformers_engine import TransformersEngine
from maira.model.processor import MairaProcessor
from maira.train.config.run_config import TrainConfig
from maira.train.report_training import train

CHECKPOINTS = ("first", "language_model", "all")
METRICS = ("loss", "reward", "reward_std", "answer_tokens", "words", "entropy", "grad_norm", "unscored")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Studies and three checkpoints: the second has another language model, in the third all weights differ."""
    root = tmp_path_factory.mktemp("rollouts")
    model = tiny_maira.write_checkpoint(root / CHECKPOINTS[0])
    processor = MairaProcessor.from_pretrained(root / CHECKPOINTS[0])
    generator = torch.Generator().manual_seed(2)
    for name in CHECKPOINTS[1:]:
        with torch.no_grad():
            for weight, parameter in model.named_parameters():
                if parameter.ndim >= 2 and (name == "all" or "language_model.layers" in weight):
                    parameter.mul_(1 + 0.3 * torch.randn(parameter.shape, generator=generator))
        model.save_pretrained(root / name)
        processor.save_pretrained(root / name)
    tiny_maira.write_studies(root / "studies")
    return root


@pytest.fixture(scope="module")
def responses(folder: Path, run_vllm: RunVLLM) -> dict[str, Any]:
    """The output of `vllm_rollouts.py`: responses of one engine with the weights of each checkpoint."""
    out = folder / "responses.json"
    checkpoints = [folder / name for name in CHECKPOINTS]
    process = run_vllm(HERE / "vllm_rollouts.py", *checkpoints, folder / "studies" / "manifest.jsonl", out)
    assert process.returncode == 0, process.stderr[-4000:]
    content: dict[str, Any] = json.loads(out.read_text())
    return content


@pytest.mark.parametrize("temperature", [None, 1.0])
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_responses_equal_those_of_transformers_with_the_current_weights(
    folder: Path, responses: dict[str, Any], name: str, temperature: float | None
) -> None:
    requests = tiny_maira.report_requests(read_manifest(folder / "studies" / "manifest.jsonl"), temperature)
    names = list(requests)
    engine = TransformersEngine(folder / name, EngineOptions())
    expected = {
        names[index]: list(getattr(response, "ids", ())) for index, response in engine.generate([*requests.values()])
    }
    assert responses[name]["greedy" if temperature is None else "sampled"] == expected
    assert len({tuple(ids) for ids in expected.values()}) > len(expected) / 2


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_sampled_response_depends_on_its_seed_and_not_on_its_batch(responses: dict[str, Any], name: str) -> None:
    subset, sampled = responses[name]["subset"], responses[name]["sampled"]
    assert len(subset) > 3
    assert subset == {request: sampled[request] for request in subset}
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
def test_unsupported_engine_arguments_are_refused(responses: dict[str, Any], name: str, message: str) -> None:
    assert responses["refused"][name].startswith(f"grpo.engine_args.{name}: ")
    assert message in responses["refused"][name]


def test_a_device_without_vllm_is_refused(responses: dict[str, Any]) -> None:
    assert responses["device"].startswith("grpo.engine: expected cpu, for which vLLM is installed, found cuda")


def test_the_weight_files_are_removed(responses: dict[str, Any]) -> None:
    assert responses["removed"]


def test_two_processes_with_vllm_train_like_one_with_transformers(folder: Path, tmp_path: Path) -> None:
    require_vllm()
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
    command: list[object] = [VLLM_PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += [HERE / "vllm_maira.py", "train", tmp_path / "config.yaml", f"out={tmp_path / 'vllm'}", "parallel=fsdp"]
    command += ["grpo.engine=vllm", "grpo.engine_args={enforce_eager: true}"]
    # vLLM's sockets are in this folder, and the path of a socket can have at most 107 characters.
    with TemporaryDirectory() as temporary:
        paths = {"PYTHONPATH": str(ROOT / "tests" / "maira"), "TMPDIR": temporary}
        process = run(command, VLLM_ENVIRONMENT | paths)
        assert process.returncode == 0, process.stderr[-4000:]
        assert not list(Path(temporary).glob("maira-language-model-*"))
    train(TrainConfig.model_validate(config))
    rows, expected = (
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("vllm", "transformers")
    )
    assert [row["step"] for row in rows] == [row["step"] for row in expected] == [1, 2]
    for row, reference in zip(rows, expected, strict=True):
        values = [reference[name] for name in METRICS]
        assert [row[name] for name in METRICS] == pytest.approx(values, rel=1e-3, abs=1e-6)
        assert 0 < row["sampling_logp_difference"] < 1e-4
    assert expected[0]["reward"] != expected[1]["reward"]
