"""The two halves that vLLM's engine makes of a checkpoint: the plain Llama, and what is in front of it."""

import asyncio
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from error_checks import raises_code
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from maira.data.manifest import read_manifest
from maira.data.study import Study
from maira.generate import vllm_engine
from maira.generate import vllm_parts as module
from maira.generate.engine import FailedRequest, report_request
from maira.generate.vllm_engine import VLLMEngine
from maira.generate.vllm_parts import PromptEmbedder, export_plain_llama
from maira.model.checkpoint import fingerprint
from maira.model.task_examples import make_example
from maira.model.tokens import OBJECT
from radfact.errors import ErrorCode, RunError


@pytest.fixture
def study(phantoms: Path) -> Study:
    """A study that has a lateral and a prior, too."""
    first, second, third, *_ = read_manifest(phantoms)
    return first.model_copy(update={"lateral": second.frontal, "prior_frontal": third.frontal})


def _contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir()}


def test_encoder_and_language_model_together_equal_the_model(
    model: Any, processor: Any, checkpoint: Path, study: Study, tmp_path: Path
) -> None:
    missing = [{"lateral": None, "prior_frontal": None}, {"prior_frontal": None}, {}]
    examples = [make_example(study.model_copy(update=names), "grounded") for names in missing]
    assert [len(example.images) for example in examples] == [1, 2, 3]
    llama = AutoModelForCausalLM.from_pretrained(export_plain_llama(checkpoint, torch.float32, tmp_path / "llama"))
    prompts = PromptEmbedder.from_checkpoint(checkpoint).embed([*map(report_request, examples)], 1000)
    for example, embedded in zip(examples, prompts, strict=True):
        assert isinstance(embedded, tuple)
        with torch.no_grad():
            logits = llama(inputs_embeds=embedded[1][None]).logits
            expected = model(**processor([example.images], [processor.render(example.messages)])).logits
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)


def test_the_folder_is_a_plain_llama_checkpoint(checkpoint: Path, processor: Any, tmp_path: Path) -> None:
    folder = export_plain_llama(checkpoint, torch.bfloat16, tmp_path / "llama")
    config = json.loads((folder / "config.json").read_text())
    assert (config["architectures"], config["dtype"]) == (["LlamaForCausalLM"], "bfloat16")
    assert next(AutoModelForCausalLM.from_pretrained(folder).parameters()).dtype == torch.bfloat16
    text = f" No mass.{OBJECT}"
    assert AutoTokenizer.from_pretrained(folder)(text).input_ids == processor.tokenizer(text).input_ids
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [2]


def test_shards_are_written_with_their_index(
    checkpoint: Path, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SHARD_SIZE", "30KB")
    folder = export_plain_llama(checkpoint, torch.float32, tmp_path / "llama")
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    state = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    for name, tensor in model.model.language_model.state_dict().items():
        assert torch.equal(state[f"model.{name}"], tensor)
    assert torch.equal(state["lm_head.weight"], model.lm_head.weight)
    assert export_plain_llama(checkpoint, torch.float32, folder) == folder
    shard = next(folder.glob("model-*.safetensors"))
    save_file({"another": torch.zeros(1)}, shard)
    with raises_code(ErrorCode.INVALID_FORMAT):
        export_plain_llama(checkpoint, torch.float32, folder)
    shard.unlink()
    with raises_code(ErrorCode.FILE_NOT_FOUND):
        export_plain_llama(checkpoint, torch.float32, folder)


def test_the_folder_is_cached_for_the_user(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = export_plain_llama(checkpoint, torch.float32)
    assert folder == tmp_path / "maira" / f"{checkpoint.name}@{fingerprint(checkpoint)}-float32"
    before = _contents(folder)
    assert export_plain_llama(checkpoint, torch.float32) == folder
    assert _contents(folder) == before
    assert export_plain_llama(checkpoint, torch.bfloat16) != folder


def test_a_half_written_folder_is_never_used(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "llama"
    with monkeypatch.context() as patched:
        patched.setattr(module, "write_json", MagicMock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            export_plain_llama(checkpoint, torch.float32, folder)
    assert not folder.exists()
    export_plain_llama(checkpoint, torch.float32, folder)
    assert AutoModelForCausalLM.from_pretrained(folder) is not None


def test_the_folder_of_another_checkpoint_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    copy = tmp_path / "other"
    shutil.copytree(checkpoint, copy)
    (copy / "config.json").write_text((copy / "config.json").read_text() + " ")
    folder = export_plain_llama(checkpoint, torch.float32, tmp_path / "llama")
    before = _contents(folder)
    for wrong in ((copy, torch.float32, folder), (checkpoint, torch.half, folder), (checkpoint, torch.half, copy)):
        with raises_code(ErrorCode.OUTPUT_CONFLICT):
            export_plain_llama(*wrong)
    assert _contents(folder) == before


def test_processes_write_the_folder_once(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export = MagicMock(wraps=module._export)
    monkeypatch.setattr(module, "_export", export)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: export_plain_llama(checkpoint, torch.float32, tmp_path / "llama"), range(3)))
    export.assert_called_once()


def test_a_prompt_without_its_image_is_an_error(checkpoint: Path, study: Study, tmp_path: Path) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    example = make_example(study, "findings")
    bad = make_example(study.model_copy(update={"prior_frontal": broken}), "findings")
    embedder = PromptEmbedder.from_checkpoint(checkpoint)
    length = len(embedder.processor.encode_example(example))
    unread, embedded = embedder.embed([report_request(bad), report_request(example)], length + 1)
    assert isinstance(unread, FailedRequest)
    assert "broken.png: " in unread.reason
    assert isinstance(embedded, tuple)
    assert (embedded[0].max_new_tokens, embedded[1].shape) == (1, (length, 32))


def test_an_engine_without_grammar_support_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM has one of two model runners."""
    engine = MagicMock()
    engine.vllm_config.use_v2_model_runner = True
    monkeypatch.setattr(vllm_engine, "start_engine", lambda *_, **__: engine)
    monkeypatch.setattr(vllm_engine, "version", lambda _: "9.9")
    with pytest.raises(RunError, match=r"vLLM 9\.9 .* model runner"):
        asyncio.run(vllm_engine._start("folder", {}, "engine_args"))
    engine.shutdown.assert_called_once()


@pytest.mark.parametrize("failing", ["weights", "load_shared_weights", "kv_cache", "prefix_cache"])
def test_an_engine_that_cannot_load_weights_ends_with_an_explanation(failing: str) -> None:
    async def call(name: str, *_: Any, **__: Any) -> None:
        if name == failing:
            raise ValueError("CUDA out of memory")

    engine: Any = VLLMEngine.__new__(VLLMEngine)
    engine._has_sleep_mode, engine._run = True, asyncio.run
    engine._engine = SimpleNamespace(
        wake_up=lambda tags: call(*tags), collective_rpc=call, reset_prefix_cache=lambda: call("prefix_cache")
    )
    with pytest.raises(RunError, match=r"cannot load the weights \(CUDA out of memory\)"):
        engine.load_weights([(torch.empty(0), b"")])
