"""A model from published parts: every weight where it belongs, tokens at the specified ids, ready to train or write."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
from error_checks import raises_code
from maira_command import maira
from torch import Tensor
from transformers import Dinov2Config, Dinov2Model, LlamaConfig, LlamaForCausalLM, LlamaTokenizer

from maira.data.images import Gray
from maira.model.assemble import assemble
from maira.model.modeling import MairaForConditionalGeneration
from maira.model.processor import MairaProcessor
from maira.model.tokens import IMAGE
from radfact.errors import ErrorCode

TEXTS = ["The lungs are clear.", "There is a small left pleural effusion.", "No pneumothorax. Heart size is normal."]
ROWS = 400
"""Rows of the language model's embeddings, more than its tokenizer needs, as is common."""


def sentencepiece_tokenizer(folder: Path) -> None:
    """`tokenizer.model` alone, as Vicuna's folder has it."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 20),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=340,
        model_type="bpe",
        byte_fallback=True,
        hard_vocab_limit=False,
        normalization_rule_name="identity",
        minloglevel=2,
    )


def language_model(folder: Path, **options: Any) -> LlamaForCausalLM:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(1)
    built = LlamaForCausalLM(LlamaConfig(**{"vocab_size": ROWS} | sizes | options))
    built.save_pretrained(folder)
    return built


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Folders of an encoder and of a language model."""
    root = tmp_path_factory.mktemp("parts")
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    Dinov2Model(Dinov2Config(image_size=56, patch_size=14, **sizes)).save_pretrained(root / "encoder")
    language_model(root / "language")
    sentencepiece_tokenizer(root / "language")
    return root / "encoder", root / "language"


@pytest.fixture(scope="module")
def assembled(parts: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("assembled") / "model"
    assemble(*parts, out, seed=3)
    return out


def state(folder: Path) -> dict[str, Tensor]:
    return dict(MairaForConditionalGeneration.from_pretrained(folder).state_dict())


def test_encoder_and_language_model_weights_come_from_the_folders(parts: tuple[Path, Path], assembled: Path) -> None:
    result = state(assembled)
    language = LlamaForCausalLM.from_pretrained(parts[1]).state_dict()
    for name in language:
        if "embed_tokens" not in name and "lm_head" not in name:
            assert torch.equal(result[name.replace("model.", "model.language_model.")], language[name]), name
    encoder = Dinov2Model.from_pretrained(parts[0]).state_dict()
    assert torch.equal(result["model.vision_tower.vit.pos_embed"], encoder["embeddings.position_embeddings"])


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "lm_head.weight"])
def test_new_embeddings_are_the_mean_of_existing_ones(parts: tuple[Path, Path], assembled: Path, name: str) -> None:
    before = LlamaForCausalLM.from_pretrained(parts[1]).state_dict()[name]
    after = state(assembled)[name.replace("model.", "model.language_model.")]
    known = len(LlamaTokenizer.from_pretrained(parts[1]))
    assert known < ROWS
    assert after.shape == (known + 207, 32)
    assert torch.equal(after[:known], before[:known])
    torch.testing.assert_close(after[known:], before[:known].mean(0).expand(207, -1))


def test_the_adapter_depends_on_the_seed(parts: tuple[Path, Path], assembled: Path, tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    assemble(*parts, tmp_path / "same", seed=3)
    assemble(*parts, tmp_path / "other", seed=4)
    assert torch.rand(1) == expected  # the global random state is unchanged
    first, same, different = (state(folder) for folder in (assembled, tmp_path / "same", tmp_path / "other"))
    differs = {name for name in first if not torch.equal(first[name], different[name])}
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert differs == {f"model.multi_modal_projector.layers.{i}.weight" for i in (0, 2, 4, 6)}


def test_an_assembled_model_is_configured_by_its_parts_and_generates(assembled: Path, radiographs: list[Gray]) -> None:
    model = MairaForConditionalGeneration.from_pretrained(assembled)
    processor = MairaProcessor.from_pretrained(assembled)
    config, text, tokenizer = model.config, model.config.text_config, processor.tokenizer
    assert text.rope_parameters == {"rope_type": "linear", "rope_theta": 10000.0, "factor": 1.5}
    assert (text.vocab_size, text.pad_token_id, text.eos_token_id) == (len(tokenizer), 0, 2)
    assert (config.image_token_index, config.image_seq_length) == (tokenizer.convert_tokens_to_ids(IMAGE), 16)
    inputs = processor([radiographs[:2]], [f"The lungs{IMAGE} and{IMAGE} are ASSISTANT:"])
    assert inputs["input_ids"][0, 0] == tokenizer.bos_token_id
    assert model.generate(**inputs, max_new_tokens=4, do_sample=False).shape[1] > inputs["input_ids"].shape[1]


def test_a_tied_head_is_untied(parts: tuple[Path, Path], tmp_path: Path) -> None:
    language_model(tmp_path / "tied", tie_word_embeddings=True)
    shutil.copy(parts[1] / "tokenizer.model", tmp_path / "tied")
    assemble(parts[0], tmp_path / "tied", tmp_path / "out")
    result = MairaForConditionalGeneration.from_pretrained(tmp_path / "out")
    head, embeddings = result.get_output_embeddings().weight, result.get_input_embeddings().weight
    assert torch.equal(head, embeddings)
    assert head.data_ptr() != embeddings.data_ptr()


def test_folders_of_other_content_are_refused_and_nothing_is_written(
    parts: tuple[Path, Path], assembled: Path, tmp_path: Path
) -> None:
    empty, small = tmp_path / "empty", tmp_path / "small"
    empty.mkdir()
    # By one row than its tokenizer.
    language_model(small, vocab_size=len(LlamaTokenizer.from_pretrained(parts[1])) - 1)
    shutil.copy(parts[1] / "tokenizer.model", small)
    before = {*tmp_path.iterdir()}
    for encoder, language, code, match in (
        (empty, parts[1], ErrorCode.FILE_UNREADABLE, None),
        (parts[0], empty, ErrorCode.FILE_NOT_FOUND, None),
        (parts[1], parts[1], ErrorCode.FILE_UNREADABLE, None),
        (parts[0], assembled, ErrorCode.MISMATCH, "<image>"),
        (parts[0], small, ErrorCode.MISMATCH, "340 .* 339"),
    ):
        with raises_code(code, match=match):
            assemble(encoder, language, tmp_path / "out")
        assert {*tmp_path.iterdir()} == before


def test_the_command_assembles(parts: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    maira("assemble", "--encoder", parts[0], "--language-model", parts[1], "--out", out, "--dtype", "float16")
    assert next(iter(state(out).values())).dtype == torch.float16
