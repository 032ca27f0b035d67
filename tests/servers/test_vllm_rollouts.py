"""GRPO with vLLM: it uses the current weights, and responses and metrics equal those of the transformers engine."""

import importlib
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import tiny_maira
import torch
import yaml
from long_values import DATA
from real_servers import HERE, ROOT, VLLM_ENVIRONMENT, VLLM_PYTHON, RunVLLM, require_vllm, run
from test_fake_cuda import GPU, Recorder
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from maira.data.manifest import read_manifest
from maira.generate.engine import EngineOptions
from maira.generate.transformers_engine import TransformersEngine
from maira.model.processor import MairaProcessor
from maira.train.config.run_config import TrainConfig
from maira.train.post import rollout_engine
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


@pytest.mark.parametrize(("field", "message"), DATA["refused rollouts"])
def test_unsupported_engine_arguments_and_devices_are_refused(
    responses: dict[str, Any], field: str, message: str
) -> None:
    assert responses["refused"][field].startswith(f"grpo.engine{field}: ")
    assert message in responses["refused"][field]


def test_the_folder_of_the_engine_is_removed(responses: dict[str, Any]) -> None:
    assert responses["removed"]


def test_two_processes_with_vllm_train_like_one_with_transformers(folder: Path, tmp_path: Path) -> None:
    require_vllm()
    reward = {"scores": {"reward_metrics:Brevity": 1.0}, "length_penalty": 0.0, "format_penalty": 0.0}
    manifest, out = folder / "studies" / "manifest.jsonl", tmp_path / "transformers"
    config: dict[str, Any] = {"model": str(folder / CHECKPOINTS[0]), "train": str(manifest), "out": str(out)}
    config |= {"tasks": {"grounded": 1}, "precision": "no", "trackers": []}
    config |= {"grpo": {"num_generations": 4, "max_new_tokens": 24, "reward": reward}, "log_every": 1}
    config |= {"global_batch": 16, "token_budget": 2048, "passes": 32, "learning_rate": 1e-3, "warmup": 0.0}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    command: list[object] = [VLLM_PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += [HERE / "vllm_maira.py", "train", tmp_path / "config.yaml", f"out={tmp_path / 'vllm'}", "parallel=fsdp"]
    command += ["grpo.engine=vllm", "grpo.engine_args={enforce_eager: true}"]
    # vLLM's sockets are in this folder, and the path of a socket can have at most 107 characters.
    with TemporaryDirectory() as temporary:
        paths = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'maira'}", "TMPDIR": temporary}
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


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module that vLLM's process imports; the names of vLLM that it uses do nothing."""
    for name in DATA["modules of vllm"].split():
        monkeypatch.setitem(sys.modules, name, MagicMock(LogitsProcessor=object))
    monkeypatch.delitem(sys.modules, "maira.generate.vllm_worker", raising=False)
    return importlib.import_module("maira.generate.vllm_worker")


def rebuild(device: int, memory: Tensor) -> Tensor:
    """Stands for torch's function, which needs a GPU."""
    assert device == 5
    return memory


def test_shared_weights_are_opened_on_the_device_of_the_engine(worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, loader = {"a": torch.rand(2, 3), "b": torch.rand(4)}, MagicMock(device=torch.device("cuda", 5))
    monkeypatch.setattr(worker, "rebuild_cuda_tensor", rebuild)
    monkeypatch.setattr(worker, "_DEVICE", 0)
    monkeypatch.setattr(rollout_engine, "reduce_tensor", lambda memory: (rebuild, (3, memory)))
    settings: list[str] = []
    monkeypatch.setattr(torch._C, "_accelerator_getAllocatorSettings", lambda: "expandable_segments:True")
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", settings.append)
    _memory, content = rollout_engine.share_weights([*weights.items()], torch.bfloat16)
    assert settings == ["expandable_segments:True,expandable_segments:False", "expandable_segments:True"]
    worker.SharedWeightLoader.load_shared_weights(loader, content, 0)
    loaded = dict(*loader.model_runner.get_model().load_weights.call_args.args)
    assert loaded.keys() == weights.keys()
    assert all(torch.equal(loaded[name], weight.bfloat16()) for name, weight in weights.items())


def test_scores_of_tokens_are_marked_without_waiting_for_the_device(worker: Any) -> None:
    processor = worker.MairaLogitsProcessor.__new__(worker.MairaLogitsProcessor)
    processor._grammar, processor._responses = SimpleNamespace(ends=[2]), {}
    with FakeTensorMode(allow_non_fake_inputs=True), Recorder(GPU) as recorder:
        broken, logits = torch.empty(3, dtype=torch.bool, device=GPU), torch.empty(3, 4, device=GPU)
        processor._constraints = lambda *_: (broken, broken)
        processor.apply(logits)
    assert (recorder.read, recorder.copies) == (0, [])
