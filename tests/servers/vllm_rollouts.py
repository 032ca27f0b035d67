"""Generate responses with the vLLM engine of a training process and the weights of several checkpoints.

Runs in the vLLM environment. Arguments: the checkpoints, the manifest, the JSON file to write.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torchvision_operators  # noqa: F401

from maira.data.manifest import read_manifest
from maira.model.modeling import MairaForConditionalGeneration
from maira.model.processor import MairaProcessor
from maira.runtime.processes import DistributedContext
from maira.train.config.run_config import TrainConfig
from maira.train.loss import MairaLossModel
from maira.train.parallel import ParallelModel
from maira.train.post.rollout_engine import RolloutEngine, check_engine
from radfact.errors import InputError


def generate(engine: Any, requests: dict[str, Any]) -> dict[str, list[int]]:
    """Return the tokens of each response by the name of its request, or the failure."""
    names = list(requests)
    responses = engine.generate(list(requests.values()))
    return {names[index]: getattr(response, "ids", response) for index, response in responses}


def refusal(config: TrainConfig, context: DistributedContext, **arguments: Any) -> str:
    """Return the error of a run with these engine arguments, or "none"."""
    assert config.grpo is not None
    grpo = config.grpo.model_copy(update={"engine_args": arguments})
    try:
        check_engine(config.model_copy(update={"grpo": grpo}), context)
    except InputError as error:
        return str(error)
    return "none"


if __name__ == "__main__":
    import tiny_maira

    first, *others, manifest, out = map(Path, sys.argv[1:])
    studies = read_manifest(manifest)
    model: Any = MairaForConditionalGeneration.from_pretrained(first, dtype=torch.float32)
    processor = MairaProcessor.from_pretrained(first)
    config = TrainConfig.model_validate(
        {"model": first, "train": manifest, "tasks": {"grounded": 1}, "out": out.parent / "unused", "passes": 128}
        | {"precision": "no", "grpo": {"engine": "vllm", "engine_args": {"enforce_eager": True}}}
    )
    wrapped = MairaLossModel(model, 0, 0.0)
    context = DistributedContext(0, 1, torch.device("cpu"))
    engine = RolloutEngine(config, ParallelModel(wrapped, wrapped, context), processor)
    greedy, sampled = tiny_maira.report_requests(studies), tiny_maira.report_requests(studies, temperature=1.0)
    subset = dict(reversed(list(sampled.items())[::5]))
    arguments = {"tensor_parallel_size": 2, "max_model_len": 99, "nonsense": 1}
    refused = {f"_args.{name}": refusal(config, context, **{name: value}) for name, value in arguments.items()}
    refused[""] = refusal(config, DistributedContext(0, 1, torch.device("cuda", 1)))
    results: dict[str, Any] = {"refused": refused}
    for checkpoint in (first, *others):
        model.load_state_dict(MairaForConditionalGeneration.from_pretrained(checkpoint).state_dict())
        with engine.sync_weights() as vllm:
            results[checkpoint.name] = {"greedy": generate(vllm, greedy), "sampled": generate(vllm, sampled)}
            results[checkpoint.name]["subset"] = generate(vllm, subset)
    folder = Path(engine._folder.name)
    engine.close()
    results["removed"] = not folder.exists()
    out.write_text(json.dumps(results))
