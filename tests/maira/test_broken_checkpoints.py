"""Checkpoints with missing or broken files: the error is one line with the file and a hint."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from error_checks import raises_code
from releases import write_release
from safetensors.torch import load_file, save_file

from maira.generate.engine import EngineOptions
from maira.generate.transformers_engine import TransformersEngine
from maira.generate.vllm_parts import PromptEmbedder, export_plain_llama
from maira.model.checkpoint import WEIGHTS
from maira.train.components import train_tokenizer
from radfact.errors import ErrorCode, InputError

CASES = yaml.safe_load(Path(__file__).with_name("model_folders.yaml").read_text("utf-8"))


def _vllm_parts(folder: Path) -> None:
    """What vLLM's engine reads of a checkpoint before it starts vLLM."""
    export_plain_llama(folder, torch.float32, folder.parent / "llama")
    PromptEmbedder.from_checkpoint(folder)


def _transformers(folder: Path) -> None:
    TransformersEngine(folder, EngineOptions(device="cpu"))


def _other_tokenizer(folder: Path) -> None:
    """A tokenizer of its kind that MAIRA-2's tokens were not added to."""
    train_tokenizer(["No mass."], 270).save_pretrained(folder)
    values = json.loads((folder / "tokenizer.json").read_text())
    values["added_tokens"] = [token for token in values["added_tokens"] if token["id"] < 3]
    (folder / "tokenizer.json").write_text(json.dumps(values))
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<unk>"}')


OTHER_TOKENIZER = (_other_tokenizer, "mismatch", "205 tokens of MAIRA-2, such as <image>")


@pytest.fixture
def folder(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    shutil.copytree(checkpoint, tmp_path / "broken")
    return tmp_path / "broken"


@pytest.mark.parametrize(
    ("use", "change", "code", "part"),
    [
        *((_transformers, *case) for case in [*CASES["models"], *CASES["processors"], OTHER_TOKENIZER]),
        *((_vllm_parts, *case) for case in CASES["models"]),
    ],
)
def test_a_broken_checkpoint_is_a_one_line_error_that_names_the_folder(
    folder: Path, use: Callable[[Path], object], change: Any, code: str | None, part: str
) -> None:
    if callable(change):
        change(folder)
    else:
        write_release(folder, {"files": change})
    before = set(folder.parent.iterdir())
    with pytest.raises(InputError) as caught:
        use(folder)
    line = str(caught.value)
    assert line.startswith(str(folder))
    assert code in (str(caught.value.code), None)
    assert part in line
    assert "\n" not in line
    assert len(line) - len(str(folder)) < 300
    assert {path for path in folder.parent.iterdir() if not path.name.endswith(".lock")} == before


@pytest.mark.parametrize("use", [_transformers, _vllm_parts])
@pytest.mark.parametrize(("prefix", "value"), [("vision_tower", torch.nan), ("language_model", -torch.inf)])
def test_non_finite_weights_are_named(folder: Path, use: Callable[[Path], object], prefix: str, value: float) -> None:
    weights = load_file(folder / WEIGHTS)
    name = max(key for key in weights if key.startswith(prefix))
    weights[name].view(-1)[-1] = value
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    with raises_code(ErrorCode.INVALID_VALUE, field=name):
        use(folder)


@pytest.mark.parametrize("use", [_transformers, _vllm_parts])
def test_without_generation_settings_the_tokenizer_defines_the_end(folder: Path, use: Callable[[Path], object]) -> None:
    (folder / "generation_config.json").unlink()
    use(folder)
    assert TransformersEngine(folder, EngineOptions(device="cpu")).grammar.ends == frozenset({2})
