"""Runs in vLLM's environment: the answers of its engine to the tests' questions, and what else shows only inside.

Arguments: the checkpoint, the manifest, a broken image, the folder for the language model, the JSON file to write.
"""

from __future__ import annotations

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

from data.manifest import read_manifest
from maira.generate import vllm_engine
from maira.generate.options import EngineOptions
from radfact.errors import InputError, RunError

WINDOW_BYTES = 500_000
"""Room for about five prompts of 380 tokens."""


def answers(engine: Any, questions: dict[str, Any], *, free: bool) -> dict[str, Any]:
    """Each question's answer by its name, as JSON values."""
    engine.options = engine.options.model_copy(update={"free": free})
    names = list(questions)
    return {names[index]: asdict(answer) for index, answer in engine.generate(list(questions.values()))}


def watch(engine: Any) -> list[int]:
    """From now on, how many bytes of prompts vLLM holds after each that it is given."""
    held, generate = [0], engine._engine.generate

    async def watched(prompt: Any, *arguments: Any) -> Any:
        size = prompt["prompt_embeds"].nbytes
        held.append(held[-1] + size)
        async for output in generate(prompt, *arguments):
            yield output
        held.append(held[-1] - size)

    engine._engine.generate = watched
    return held


def refusals(checkpoint: Path) -> dict[str, str]:
    """What is said of arguments that cannot be, by their names."""
    said = {}
    for arguments in ({"nonsense": 1}, {"model": "other"}, {"dtype": "int8"}):
        try:
            vllm_engine.VLLMEngine(checkpoint, EngineOptions(engine="vllm", engine_args=arguments))
        except InputError as error:
            said[next(iter(arguments))] = str(error)
    return said


def no_start(checkpoint: Path, folder: Path) -> str:
    """What is said when vLLM's process ends while it starts: its processor of logits has no tokenizer to read."""
    broken = folder.with_name("broken_language_model")
    shutil.copytree(folder, broken)
    (broken / "tokenizer.json").unlink()
    options = EngineOptions(engine="vllm", language_model=broken, engine_args={"enforce_eager": True})
    try:
        vllm_engine.VLLMEngine(checkpoint, options).close()
    except RunError as error:
        return str(error)
    return "it started"


def other_device(checkpoint: Path) -> str:
    """What is said of a device that vLLM does not run on."""
    try:
        vllm_engine.VLLMEngine(checkpoint, EngineOptions(engine="vllm", device="cuda"))
    except InputError as error:
        return str(error)
    return "it started"


def non_finite(engine: Any, questions: dict[str, Any], name: str, *, free: bool) -> dict[str, Any]:
    """The answers where the prompt of one question is NaN."""
    embed, poisoned = engine._embedder.embed, questions[name].example

    def embed_with_nan(examples: Any, window: int) -> Any:
        for example, prompt in zip(examples, embed(examples, window), strict=True):
            yield torch.full_like(prompt, torch.nan) if example is poisoned else prompt

    engine._embedder.embed = embed_with_nan
    found = answers(engine, questions, free=free)
    engine._embedder.embed = embed
    return found


def death(engine: Any, questions: dict[str, Any]) -> str:
    """What is said when vLLM's process is killed while it answers."""
    answering = engine.generate(list(questions.values()))
    next(answering)
    (process,) = multiprocessing.active_children()
    process.kill()
    try:
        return f"{len(list(answering))} more answers"
    except RunError as error:
        return str(error)


def allowed_after_loop(folder: Path) -> dict[str, list[int]]:
    """Ids that may follow a narrative, before and after a sentence's third copy, in a row that changed its place."""
    from vllm import SamplingParams
    from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality

    from maira.generate.vllm_grammar import FORM, MairaLogitsProcessor

    processor = MairaLogitsProcessor(
        SimpleNamespace(model_config=SimpleNamespace(model=str(folder))), torch.device("cpu"), False
    )
    tokenizer = processor._guard.tokenizer
    params = SamplingParams(temperature=0, max_tokens=99, extra_args={FORM: "narrative"})
    copy = tokenizer("No mass. ", add_special_tokens=False)["input_ids"]
    said = copy * 2
    processor.update_state(BatchUpdate(1, removed=[], added=[(1, params, None, said)], moved=[]))
    processor.update_state(BatchUpdate(1, removed=[], added=[], moved=[(1, 0, MoveDirectionality.UNIDIRECTIONAL)]))
    found = {}
    for name in ("twice", "thrice"):
        scores = torch.zeros(1, len(tokenizer))
        scores[0, tokenizer(" ", add_special_tokens=False)["input_ids"][0]] = 1
        found[name] = torch.isfinite(processor.apply(scores)[0]).nonzero().flatten().tolist()
        said += tokenizer("No mass.", add_special_tokens=False)["input_ids"]
    return found


if __name__ == "__main__":
    import tiny_maira

    checkpoint, manifest, broken, folder, out = map(Path, sys.argv[1:])
    questions = tiny_maira.requests(read_manifest(manifest), broken)
    vllm_engine.WINDOW_BYTES = WINDOW_BYTES
    options = EngineOptions(engine="vllm", batch_size=4, language_model=folder, engine_args={"enforce_eager": True})
    started = vllm_engine.VLLMEngine(checkpoint, options)
    held = watch(started)
    found = {
        "name": started.name,
        "guided": answers(started, questions, free=False),
        "free": answers(started, questions, free=True),
        "held": [WINDOW_BYTES, max(held)],
        "refusals": refusals(checkpoint),
        "loop": allowed_after_loop(folder),
    }
    found["room"] = started._engine.model_config.max_model_len
    few = {
        name: question
        for name, question in questions.items()
        if name.endswith(("000000", "000001", "000002")) and name.startswith(("findings", "grounded"))
    }
    for mode in ("guided", "free"):
        found[f"nan {mode}"] = non_finite(started, few, "grounded phantom-7-000000", free=mode == "free")
    found["death"] = death(started, questions)
    started.close()
    found["device"] = other_device(checkpoint)
    found["start"] = no_start(checkpoint, folder)
    out.write_text(json.dumps(found))
