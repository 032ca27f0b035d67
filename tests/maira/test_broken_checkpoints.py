"""Checkpoints that lack a file or have a broken one: one line that names the file and what would be right."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from maira.generate.options import EngineOptions
from maira.generate.plain_llama import plain_llama
from maira.generate.prompt_embedder import PromptEmbedder
from maira.generate.transformers_engine import TransformersEngine
from maira.model.convert import convert
from maira.model.processor import MairaProcessor
from maira.train.data.tokenizer import train_tokenizer
from radfact.errors import InputError

Break = Callable[[Path], object]


def _vllm_parts(folder: Path) -> None:
    """What vLLM's engine reads of a checkpoint before it starts vLLM."""
    plain_llama(folder, torch.float32, folder.parent / "llama")
    PromptEmbedder(folder)


def _transformers(folder: Path) -> None:
    TransformersEngine(folder, EngineOptions(device="cpu"))


def _convert(folder: Path) -> None:
    convert(folder, folder.parent / "out", "released")


def _lose(*names: str) -> Break:
    def lose(folder: Path) -> None:
        for name in names:
            (folder / name).unlink(missing_ok=True)

    return lose


def _write(name: str, text: str) -> Break:
    return lambda folder: (folder / name).write_text(text, encoding="utf-8")


def _other_tokenizer(folder: Path) -> None:
    """A tokenizer of its kind that MAIRA-2's tokens were not added to."""
    train_tokenizer(["No mass."], 270).save_pretrained(folder)
    values = json.loads((folder / "tokenizer.json").read_text())
    values["added_tokens"] = [one for one in values["added_tokens"] if one["id"] < 3]
    (folder / "tokenizer.json").write_text(json.dumps(values))
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<unk>"}')


TOKENIZER = "no tokenizer here: expected tokenizer.json or tokenizer.model"
WRONG_TOKENIZER = "the tokenizer lacks MAIRA-2's tokens (<image> and 204 more)"
PROCESSOR = "no processor here: expected processor_config.json or preprocessor_config.json"
LLAMA = "model_type: is 'llama', not 'maira2'"
PROCESSORS = [
    (_lose("tokenizer.json"), TOKENIZER),
    (_write("tokenizer.json", "{"), "tokenizer.json:1: not JSON"),
    (_write("tokenizer.json", "{}"), "the tokenizer cannot be read"),
    (_other_tokenizer, WRONG_TOKENIZER),
    (_lose("processor_config.json"), PROCESSOR),
    (_write("processor_config.json", "{\n,"), "processor_config.json:2: not JSON"),
]
MODELS = [
    (_lose("config.json"), "no checkpoint here (config.json is missing)"),
    (_write("config.json", '{"a": 1\n'), "config.json:2: not JSON"),
    (_write("config.json", '{"model_type": "llama"}'), LLAMA),
    (_write("config.json", '{"model_type": "maira2", "text_config": 3}'), "config.json: no configuration of MAIRA-2"),
    (_lose("model.safetensors"), "no weights here: expected model.safetensors"),
    (_write("model.safetensors", "no weights"), "model.safetensors: cannot be read as safetensors"),
]
ENGINES = [*MODELS, *PROCESSORS, (_write("generation_config.json", "{"), "generation_config.json:1: not JSON")]


@pytest.fixture
def folder(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    shutil.copytree(checkpoint, tmp_path / "broken")
    return tmp_path / "broken"


@pytest.mark.parametrize(
    ("use", "spoil", "said"),
    [
        *((use, spoil, said) for use in (_transformers, _vllm_parts) for spoil, said in ENGINES),
        *((MairaProcessor.from_pretrained, spoil, said) for spoil, said in PROCESSORS),
        *((_convert, spoil, said) for spoil, said in MODELS),
    ],
)
def test_a_broken_checkpoint_is_one_line_with_the_folder(
    folder: Path, use: Callable[[Path], object], spoil: Break, said: str
) -> None:
    spoil(folder)
    before = set(folder.parent.iterdir())
    with pytest.raises(InputError) as caught:
        use(folder)
    line = str(caught.value)
    assert line.startswith(str(folder))
    assert said in line
    assert "\n" not in line
    assert len(line) - len(str(folder)) < 300
    assert {path for path in folder.parent.iterdir() if not path.name.endswith(".lock")} == before


@pytest.mark.parametrize("use", [_transformers, _vllm_parts])
def test_a_checkpoint_without_generation_settings_ends_answers_as_its_tokenizer_does(
    folder: Path, use: Callable[[Path], object]
) -> None:
    (folder / "generation_config.json").unlink()
    use(folder)
    assert TransformersEngine(folder, EngineOptions(device="cpu")).vocabulary.ends == frozenset({2})
