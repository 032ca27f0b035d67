"""Generate responses and provoke errors with the vLLM engine.

Runs in the vLLM environment. Arguments: the checkpoint, the manifest, a broken image, the folder for the language
model, the JSON file to write.
"""

import json
import multiprocessing
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torchvision_operators  # noqa: F401

from maira.data.manifest import read_manifest
from maira.generate import vllm_engine
from maira.generate.engine import EngineOptions
from radfact.errors import InputError, RunError

WINDOW_BYTES = 500_000
"""About five prompts of 380 tokens."""


def generate(engine: Any, requests: dict[str, Any], *, free: bool) -> dict[str, Any]:
    """Return each response by the name of its request, as JSON values."""
    engine.options = engine.options.model_copy(update={"free": free})
    names = list(requests)
    return {names[index]: asdict(response) for index, response in engine.generate(list(requests.values()))}


def track_prompt_bytes(engine: Any) -> list[int]:
    """Return a list that gets the bytes of all prompts in flight whenever a request starts or ends."""
    sizes, original = [0], engine._engine.generate

    async def tracked(prompt: Any, *arguments: Any) -> Any:
        size = prompt["prompt_embeds"].nbytes
        sizes.append(sizes[-1] + size)
        async for output in original(prompt, *arguments):
            yield output
        sizes.append(sizes[-1] - size)

    engine._engine.generate = tracked
    return sizes


def argument_errors(checkpoint: Path) -> dict[str, str]:
    """Return the errors of invalid engine arguments by name."""
    errors = {}
    for arguments in ({"nonsense": 1}, {"model": "other"}, {"dtype": "int8"}):
        try:
            vllm_engine.VLLMEngine(checkpoint, EngineOptions(engine="vllm", engine_args=arguments))
        except InputError as error:
            errors[next(iter(arguments))] = str(error)
    return errors


def start_error(checkpoint: Path, folder: Path) -> str:
    """Return the error of a start that fails in vLLM's process: its logits processor finds no tokenizer."""
    broken = folder.with_name("broken_language_model")
    shutil.copytree(folder, broken)
    (broken / "tokenizer.json").unlink()
    options = EngineOptions(engine="vllm", language_model=broken, engine_args={"enforce_eager": True})
    try:
        vllm_engine.VLLMEngine(checkpoint, options).close()
    except RunError as error:
        return str(error)
    return "none"


def generate_with_nan(engine: Any, requests: dict[str, Any], name: str, *, free: bool) -> dict[str, Any]:
    """Return the responses when the embedded prompt of one request is NaN."""
    embed, target = engine._embedder.embed, requests[name].example

    def embed_with_nan(requests: Any, window: int) -> Any:
        for request, prompt in embed(requests, window):
            yield request, torch.full_like(prompt, torch.nan) if request.example is target else prompt

    engine._embedder.embed = embed_with_nan
    responses = generate(engine, requests, free=free)
    engine._embedder.embed = embed
    return responses


def kill_error(engine: Any, requests: dict[str, Any]) -> str:
    """Return the error after vLLM's process is killed during generation."""
    responses = engine.generate(list(requests.values()))
    next(responses)
    (process,) = multiprocessing.active_children()
    process.kill()
    try:
        return f"{len(list(responses))} more responses"
    except RunError as error:
        return str(error)


def allowed_after_loop(folder: Path) -> dict[str, list[int]]:
    """Return the allowed next tokens after two and three copies of a sentence; the request moves to another row."""
    from vllm import SamplingParams
    from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality

    from maira.generate.vllm_worker import FORM, MairaLogitsProcessor

    processor = MairaLogitsProcessor(
        SimpleNamespace(model_config=SimpleNamespace(model=str(folder))), torch.device("cpu"), False
    )
    tokenizer = processor.tokenizer
    params = SamplingParams(temperature=0, max_tokens=99, extra_args={FORM: "narrative"})
    copy = tokenizer("No mass. ", add_special_tokens=False)["input_ids"]
    ids = copy * 2
    processor.update_state(BatchUpdate(1, removed=[], added=[(1, params, None, ids)], moved=[]))
    processor.update_state(BatchUpdate(1, removed=[], added=[], moved=[(1, 0, MoveDirectionality.UNIDIRECTIONAL)]))
    allowed = {}
    for name in ("after_two", "after_three"):
        scores = torch.zeros(1, len(tokenizer))
        scores[0, tokenizer(" ", add_special_tokens=False)["input_ids"][0]] = 1
        allowed[name] = torch.isfinite(processor.apply(scores)[0]).nonzero().flatten().tolist()
        ids += tokenizer("No mass.", add_special_tokens=False)["input_ids"]
    return allowed


if __name__ == "__main__":
    import tiny_maira

    checkpoint, manifest, broken, folder, out = map(Path, sys.argv[1:])
    requests = tiny_maira.all_requests(read_manifest(manifest), broken)
    vllm_engine.WINDOW_BYTES = WINDOW_BYTES
    options = EngineOptions(engine="vllm", batch_size=4, language_model=folder, engine_args={"enforce_eager": True})
    engine = vllm_engine.VLLMEngine(checkpoint, options)
    prompt_bytes = track_prompt_bytes(engine)
    results = {
        "name": engine.name,
        "constrained": generate(engine, requests, free=False),
        "unconstrained": generate(engine, requests, free=True),
        "prompt_bytes": [WINDOW_BYTES, max(prompt_bytes)],
        "argument_errors": argument_errors(checkpoint),
        "loop": allowed_after_loop(folder),
        "context_window": engine._engine.model_config.max_model_len,
    }
    subset = {
        name: request
        for name, request in requests.items()
        if name.endswith(("000000", "000001", "000002")) and name.startswith(("findings", "grounded"))
    }
    for mode in ("constrained", "unconstrained"):
        results[f"nan {mode}"] = generate_with_nan(
            engine, subset, "grounded phantom-7-000000", free=mode == "unconstrained"
        )
    results["kill_error"] = kill_error(engine, requests)
    engine.close()
    results["start_error"] = start_error(checkpoint, folder)
    out.write_text(json.dumps(results))
