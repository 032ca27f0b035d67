"""Checkpoints with missing or broken files: the error is one line with the file and a hint."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from error_checks import raises_code
from safetensors.torch import load_file, save_file

from maira.generate.engine import EngineOptions
from maira.generate.transformers_engine import TransformersEngine
from maira.generate.vllm_parts import PromptEmbedder, export_plain_llama
from maira.model.checkpoint import WEIGHTS
from maira.train.components import train_tokenizer
from radfact.errors import ErrorCode, InputError

Break = Callable[[Path], object]


def _vllm_parts(folder: Path) -> None:
    """What vLLM's engine reads of a checkpoint before it starts vLLM."""
    export_plain_llama(folder, torch.float32, folder.parent / "llama")
    PromptEmbedder.from_checkpoint(folder)


def _transformers(folder: Path) -> None:
    TransformersEngine(folder, EngineOptions(device="cpu"))


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
    values["added_tokens"] = [token for token in values["added_tokens"] if token["id"] < 3]
    (folder / "tokenizer.json").write_text(json.dumps(values))
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<unk>"}')


PROCESSORS = [
    (_lose("tokenizer.json"), ErrorCode.FILE_NOT_FOUND, ""),
    (_lose("tokenizer_config.json"), ErrorCode.FILE_NOT_FOUND, "tokenizer_config.json"),
    (_write("tokenizer.json", "{"), None, "tokenizer.json:1: "),
    (_write("tokenizer.json", "{}"), ErrorCode.FILE_UNREADABLE, ""),
    (_write("tokenizer_config.json", "{}"), ErrorCode.MISSING_FIELD, "tokenizer_config.json: bos_token: "),
    (_other_tokenizer, ErrorCode.MISMATCH, "205 tokens of MAIRA-2, such as <image>"),
    (_lose("processor_config.json", "preprocessor_config.json"), ErrorCode.FILE_NOT_FOUND, "processor_config.json"),
    (_write("processor_config.json", "{\n,"), None, "processor_config.json:2: "),
    (_write("processor_config.json", '{"image_seq_length": 9}'), ErrorCode.MISMATCH, "image_seq_length: expected 16"),
]
MODELS = [
    (_lose("config.json"), ErrorCode.FILE_NOT_FOUND, "config.json"),
    (_write("config.json", '{"a": 1\n'), None, "config.json:2: "),
    (_write("config.json", '{"model_type": "llama"}'), ErrorCode.MISMATCH, "config.json: model_type: "),
    (_write("config.json", '{"model_type": "maira2", "text_config": 3}'), ErrorCode.INVALID_FORMAT, "config.json: "),
    (_lose("model.safetensors"), ErrorCode.FILE_NOT_FOUND, "model.safetensors"),
    (_write("model.safetensors", "no weights"), ErrorCode.FILE_UNREADABLE, "model.safetensors: "),
]
GENERATION = (_write("generation_config.json", "{"), None, "generation_config.json:1: ")
"""What spoils a folder, the code of the error (None: that of the reader of JSON), and a part of its text."""


@pytest.fixture
def folder(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    shutil.copytree(checkpoint, tmp_path / "broken")
    return tmp_path / "broken"


@pytest.mark.parametrize(
    ("use", "spoil", "code", "part"),
    [
        *((_transformers, *case) for case in [*MODELS, *PROCESSORS, GENERATION]),
        *((_vllm_parts, *case) for case in [*MODELS, PROCESSORS[0], GENERATION]),
    ],
)
def test_a_broken_checkpoint_is_a_one_line_error_that_names_the_folder(
    folder: Path, use: Callable[[Path], object], spoil: Break, code: ErrorCode | None, part: str
) -> None:
    spoil(folder)
    before = set(folder.parent.iterdir())
    with pytest.raises(InputError) as caught:
        use(folder)
    line = str(caught.value)
    assert line.startswith(str(folder))
    assert caught.value.code is code or code is None
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
def test_without_generation_settings_the_tokenizer_defines_the_end_token(
    folder: Path, use: Callable[[Path], object]
) -> None:
    (folder / "generation_config.json").unlink()
    use(folder)
    assert TransformersEngine(folder, EngineOptions(device="cpu")).grammar.ends == frozenset({2})
